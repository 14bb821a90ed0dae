/*
 * Memory where one base page of eight is left in a part of it, nearly all else is in use, and no block is free.
 *
 * usage: fragmented_memory fault|hold BYTES KIND BLOCK_BYTES REPEATS OTHER_BYTES FILE
 *
 * fault: a page is touched in each of REPEATS blocks of memory, BLOCK_BYTES each: fault-ns N huge-kB N
 * hold: memory is left like that until the program is ended; as soon as it is, FILE is there
 *
 * BYTES are fragmented, OTHER_BYTES in use. KIND is base, thp, or the bytes of a static huge page; BLOCK_BYTES are
 * those of the largest transparent page.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "measured_memory.h"

/* of so many base pages one is left */
enum { KEPT = 8 };

/* Free blocks in which a huge page has room, by /proc/buddyinfo. */
static size_t free_blocks(size_t size)
{
	size_t wanted = size / base_page, blocks = 0, count, pages;
	char line[512], *at;
	FILE *file = fopen("/proc/buddyinfo", "re");
	int used;

	if (!file)
		fail("/proc/buddyinfo");
	while (fgets(line, sizeof(line), file)) {
		used = 0;
		sscanf(line, "Node %*d, zone %*s%n", &used);
		at = line + used;
		for (pages = 1; sscanf(at, "%zu%n", &count, &used) == 1; at += used, pages *= 2)
			blocks += pages >= wanted ? count * (pages / wanted) : 0;
	}
	fclose(file);
	return blocks;
}

/* Leave no free block, and return memory for so many faults whose pages are nowhere yet. */
static char *fragment(size_t bytes, size_t other_bytes, int faults)
{
	size_t span = base_page * KEPT, taken;
	char *others = map(other_bytes), *scattered = map(bytes), *memory;

	/* in huge pages, where the kernel has them for everybody: nothing of it can be moved to make room */
	madvise(others, other_bytes, MADV_HUGEPAGE);
	touch(others, other_bytes, base_page);
	madvise(scattered, bytes, MADV_NOHUGEPAGE);
	touch(scattered, bytes, base_page);
	for (size_t offset = 0; offset + span <= bytes; offset += span)
		if (madvise(scattered + offset + base_page, span - base_page, MADV_DONTNEED))
			fail("MADV_DONTNEED");
	/* what is free in blocks is no challenge */
	taken = free_blocks(block);
	memory = map((taken + (size_t)faults) * block);
	madvise(memory, (taken + (size_t)faults) * block, MADV_HUGEPAGE);
	touch(memory, taken * block, block);
	return memory + taken * block;
}

static void hold(size_t bytes, size_t other_bytes, const char *ready)
{
	FILE *file;

	fragment(bytes, other_bytes, 0);
	file = fopen(ready, "we");
	if (!file || fclose(file))
		fail(ready);
	for (;;)
		pause();
}

static void fragmented(size_t bytes, size_t other_bytes, int repeats)
{
	char *memory = fragment(bytes, other_bytes, repeats);
	long had, before = huge();

	for (int repeat = 0; repeat < repeats; repeat++, memory += block) {
		uint64_t began = now();

		*(volatile char *)memory = 1;
		began = now() - began;
		had = huge();
		printf("fault-ns %llu huge-kB %ld\n", (unsigned long long)began, had - before);
		before = had;
	}
}

int main(int argc, char **argv)
{
	size_t bytes, other_bytes;

	if (argc != 8) {
		fprintf(stderr, "usage: fragmented_memory fault|hold BYTES base|thp|HUGE_PAGE_BYTES BLOCK_BYTES REPEATS"
				" OTHER_BYTES FILE\n");
		return 2;
	}
	bytes = strtoull(argv[2], NULL, 10);
	choose_pages(argv[3], argv[4]);
	other_bytes = strtoull(argv[6], NULL, 10);
	if (!strcmp(argv[1], "hold"))
		hold(bytes, other_bytes, argv[7]);
	fragmented(bytes, other_bytes, atoi(argv[5]));
	return 0;
}
