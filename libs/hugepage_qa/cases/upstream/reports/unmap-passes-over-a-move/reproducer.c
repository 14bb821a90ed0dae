// SPDX-License-Identifier: GPL-2.0
/*
 * munmap() passes over a hugetlb page that is being moved to another node: the page is in use for ever.
 *
 * cc -static -pthread -o reproducer reproducer.c; root, two processors, two nodes, no pages in the default pool, room
 * for 4. A kernel that has the bug has lost pages afterwards, until it is booted again.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *page;
static volatile int ended, moved;

static long number(const char *name)
{
	char text[4096] = "", *found;
	int file = open("/proc/meminfo", O_RDONLY);

	found = read(file, text, sizeof(text) - 1) > 0 ? strstr(text, name) : NULL;
	close(file);
	return found ? strtol(found + strlen(name), NULL, 10) : -1;
}

static void *move(void *unused)
{
	for (int node = 0, status = -1; !ended; node = !node)
		moved += !syscall(SYS_move_pages, 0, 1UL, &page, &node, &status, 2) && status == node;
	return unused;
}

int main(void)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, round = 0;
	size_t size = (size_t)number("Hugepagesize:") << 10;
	long lost = write(open("/proc/sys/vm/nr_hugepages", O_WRONLY), "4", 1);
	pthread_t mover;

	page = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, -1, 0);
	if (page == MAP_FAILED || lost != 1 || pthread_create(&mover, NULL, move, NULL))
		return perror("cannot be tried here: a page and a thread"), 2;
	for (; round < 2000 && mmap(page, size, PROT_READ | PROT_WRITE, flags | MAP_FIXED, -1, 0) == page; round++) {
		*(volatile char *)page = 1;
		usleep((unsigned int)(round % 100 * 30));
		munmap(page, size);
	}
	ended = 1;
	pthread_join(mover, NULL);
	lost = number("HugePages_Total:") - number("HugePages_Free:");
	printf("%d rounds of munmap() of a page that a thread moves between nodes, %d moves\n", round, moved);
	printf("expected: 0 pages are in use\nfound: %ld\n", lost);
	return lost ? 1 : moved ? 0 : 2;
}
