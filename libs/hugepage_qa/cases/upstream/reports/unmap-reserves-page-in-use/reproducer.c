// SPDX-License-Identifier: GPL-2.0
/*
 * HugePages_Rsvd falls below 0 when a page is unmapped that a forked process still has.
 *
 * cc -static -o reproducer reproducer.c; root, no pages in the default pool, room for 2.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MEMINFO "/proc/meminfo"
#define POOL "/proc/sys/vm/nr_hugepages"

/* The number after NAME in a file: one below 0 is printed as 2^64 - n. -1000 where there is none. */
static long number(const char *path, const char *name)
{
	char line[99];
	long value = -1000;
	FILE *file = fopen(path, "r");

	while (file && fgets(line, sizeof(line), file))
		if (!strncmp(line, name, strlen(name)))
			value = (long)strtoul(line + strlen(name), NULL, 10);
	return value;
}

static void set(const char *path, int value)
{
	FILE *file = fopen(path, "w");

	if (file && fprintf(file, "%d\n", value) > 0)
		fclose(file);
}

int main(void)
{
	size_t size = (size_t)number(MEMINFO, "Hugepagesize:") << 10;
	volatile char *page;
	long reserved, child;

	set(POOL, number(MEMINFO, "HugePages_Total:") ? -1 : 2);
	if (number(MEMINFO, "HugePages_Free:") != 2)
		return puts("cannot be tried here: the default pool has pages, or no room for 2"), 2;
	page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	*page = 42;
	child = fork();
	if (!child)
		return pause();
	munmap((void *)page, size);
	reserved = number(MEMINFO, "HugePages_Rsvd:");
	kill((pid_t)child, SIGKILL);
	printf("wrote a private page, fork(), and the parent unmaps it while the child has it\n");
	printf("expected: 0 pages are reserved\nfound: %ld\n", reserved);
	return reserved ? 1 : 0;
}
