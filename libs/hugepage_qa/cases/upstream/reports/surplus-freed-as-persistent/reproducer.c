// SPDX-License-Identifier: GPL-2.0
/*
 * A pool that shrinks frees a surplus page that is reserved as if it were persistent: its node goes on counting it.
 *
 * cc -static -o reproducer reproducer.c; root, two nodes with memory, no pages in the default pool, room for 5.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>

#define PERSISTENT 3 /* Linux 6.1 gives a node one more than is written here */
static long size; /* in kB */

/* Read a number of the pool, of a node unless that is -1, or write it unless that is -1. -1 where this fails. */
static long pool(int node, const char *name, long value)
{
	char path[128], at[64] = "/sys/kernel/mm";
	FILE *file;
	int done;

	if (node >= 0)
		snprintf(at, sizeof(at), "/sys/devices/system/node/node%d", node);
	snprintf(path, sizeof(path), "%s/hugepages/hugepages-%ldkB/%s", at, size, name);
	file = fopen(path, value < 0 ? "r" : "w");
	done = file && (value < 0 ? fscanf(file, "%ld", &value) == 1 : fprintf(file, "%ld\n", value) > 0);
	return file && !fclose(file) && done ? value : -1;
}

int main(void)
{
	FILE *meminfo = fopen("/proc/meminfo", "r");
	long had, pages, surplus, limit;
	char line[128], *reserved;
	int node;

	while (meminfo && fgets(line, sizeof(line), meminfo) && sscanf(line, "Hugepagesize: %ld", &size) != 1)
		;
	had = pool(-1, "nr_hugepages", -1);
	limit = pool(-1, "nr_overcommit_hugepages", -1);
	if (had || limit < 0 || pool(-1, "nr_overcommit_hugepages", 1) < 0)
		return puts("cannot be tried here: the default pool has pages, or cannot grow"), 2;
	reserved = mmap(NULL, size << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	node = pool(1, "surplus_hugepages", -1) == 1;
	if (reserved == MAP_FAILED || pool(!node, "nr_hugepages", PERSISTENT) < 0 ||
	    (had = pool(!node, "nr_hugepages", -1)) < PERSISTENT || pool(node, "surplus_hugepages", -1) != 1)
		return puts("cannot be tried here: no room for 4 pages on nodes 0 and 1"), 2;
	pool(-1, "nr_hugepages", 0);
	pages = pool(node, "nr_hugepages", -1);
	surplus = pool(node, "surplus_hugepages", -1);
	/* with more surplus pages than pages, what is written to nr_hugepages of the node takes all its memory */
	pool(-1, "nr_hugepages", had);
	munmap(reserved, size << 10);
	pool(-1, "nr_hugepages", 0), pool(-1, "nr_overcommit_hugepages", limit);
	printf("mmap() has reserved a surplus page of node %d, node %d has %ld pages of the pool, which shrinks to 0\n",
	       node, !node, had);
	printf("expected: no more surplus pages than pages\nfound: node %d has %ld pages, %ld of them surplus\n", node,
	       pages, surplus);
	return surplus > pages;
}
