/*
 * How fast pages move from one node to another and back.
 *
 * usage: page_migration BYTES base|thp|HUGE_PAGE_BYTES BLOCK_BYTES REPEATS NODE OTHER_NODE
 *
 * BYTES are touched on NODE. Each repeat moves all of them to OTHER_NODE, and back: move-ns N huge-kB N
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "measured_memory.h"

static void bind(char *memory, size_t bytes, int node, int other_node)
{
	unsigned long nodes[16] = { 0 }, bits = 8 * sizeof(*nodes);

	if ((size_t)node >= 16 * bits || (size_t)other_node >= 16 * bits) {
		errno = EINVAL;
		fail("node");
	}
	nodes[(size_t)node / bits] |= 1UL << (size_t)node % bits;
	nodes[(size_t)other_node / bits] |= 1UL << (size_t)other_node % bits;
	if (syscall(SYS_mbind, memory, bytes, MPOL_BIND, nodes, 16 * bits, 0))
		fail("mbind");
}

/* a page that is not on a list yet is busy for a moment (folio_isolate_lru()) */
enum { ATTEMPTS = 20 };

/* A page that does not move at all is a failure: there is memory for all of them. */
static void move(void **pages, size_t count, const int *nodes, int *status)
{
	size_t page;

	for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
		/* it returns how many it could not move, or that it failed */
		if (syscall(SYS_move_pages, 0, count, pages, nodes, status, MPOL_MF_MOVE) < 0)
			fail("move_pages");
		for (page = 0; page < count && status[page] == nodes[page]; page++)
			;
		if (page == count)
			return;
	}
	errno = status[page] < 0 ? -status[page] : EIO;
	fail("a page did not move");
}

int main(int argc, char **argv)
{
	size_t bytes, step, count;
	int *nodes[2], *status, repeats;
	void **pages;
	char *memory;

	if (argc != 7) {
		fprintf(stderr, "usage: page_migration BYTES base|thp|HUGE_PAGE_BYTES BLOCK_BYTES REPEATS NODE OTHER_NODE\n");
		return 2;
	}
	bytes = strtoull(argv[1], NULL, 10);
	choose_pages(argv[2], argv[3]);
	repeats = atoi(argv[4]);
	step = huge_page ? huge_page : base_page;
	count = bytes / step;
	memory = map(bytes);
	bind(memory, bytes, atoi(argv[5]), atoi(argv[5]));
	touch(memory, bytes, base_page);
	/* without a policy NUMA balancing takes their mapping away to see who uses them; before 6.2 such pages do not move */
	bind(memory, bytes, atoi(argv[5]), atoi(argv[6]));
	pages = calloc(count, sizeof(*pages));
	status = calloc(count, sizeof(*status));
	for (int side = 0; side < 2; side++) {
		nodes[side] = calloc(count, sizeof(**nodes));
		if (!pages || !status || !nodes[side])
			fail("calloc");
		for (size_t page = 0; page < count; page++)
			nodes[side][page] = atoi(argv[side ? 5 : 6]);
	}
	for (size_t page = 0; page < count; page++)
		pages[page] = memory + page * step;
	for (int repeat = 0; repeat < repeats; repeat++) {
		uint64_t began = now();

		move(pages, count, nodes[0], status);
		move(pages, count, nodes[1], status);
		printf("move-ns %llu huge-kB %ld\n", (unsigned long long)(now() - began), huge());
	}
	return 0;
}
