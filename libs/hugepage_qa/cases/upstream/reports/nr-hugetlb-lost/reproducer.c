// SPDX-License-Identifier: GPL-2.0
/*
 * An mmap() that fails for want of surplus pages takes pages out of nr_hugetlb for good.
 *
 * cc -static -o reproducer reproducer.c; root, no pages in the default pool, room for 5.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MEMINFO "/proc/meminfo"
#define POOL "/proc/sys/vm/nr_hugepages"
#define SURPLUS "/proc/sys/vm/nr_overcommit_hugepages"

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
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB;
	long before, after;
	void *more;

	set(POOL, number(MEMINFO, "HugePages_Total:") ? -1 : 3);
	if (number(MEMINFO, "HugePages_Free:") != 3 || number("/proc/vmstat", "nr_hugetlb ") < 0)
		return puts("cannot be tried here: no nr_hugetlb in /proc/vmstat, or no room for 3 pages"), 2;
	set(SURPLUS, 2);
	mmap(NULL, 3 * size, PROT_READ | PROT_WRITE, flags | MAP_POPULATE, -1, 0);
	before = number("/proc/vmstat", "nr_hugetlb ");
	more = mmap(NULL, 3 * size, PROT_READ | PROT_WRITE, flags, -1, 0);
	after = number("/proc/vmstat", "nr_hugetlb ");
	set(SURPLUS, 0);
	if (more != MAP_FAILED)
		return puts("cannot be tried here: there were more pages than expected"), 2;
	printf("3 pages are in use, mmap() of 3 more fails: 2 of them may be surplus\n");
	printf("expected: nr_hugetlb stays at %ld\nfound: %ld\n", before, after);
	return before != after;
}
