// SPDX-License-Identifier: GPL-2.0
/*
 * mremap() of a part of a private mapping leaks the reservation of the rest.
 *
 * cc -static -o reproducer reproducer.c; root, no pages in the default pool, room for 2.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

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
	char *pages, *moved;
	long reserved;

	set(POOL, number(MEMINFO, "HugePages_Total:") ? -1 : 2);
	if (number(MEMINFO, "HugePages_Free:") != 2)
		return puts("cannot be tried here: the default pool has pages, or no room for 2"), 2;
	pages = mmap(NULL, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	moved = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_NORESERVE, -1, 0);
	if (mremap(pages, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, moved) != moved)
		return perror("cannot be tried here: mremap of hugetlb"), 2;
	munmap(moved, size);
	munmap(pages + size, size);
	reserved = number(MEMINFO, "HugePages_Rsvd:");
	printf("mapped 2 private pages, moved the first one away, unmapped both\n");
	printf("expected: 0 pages are reserved\nfound: %ld\n", reserved);
	set(POOL, 0);
	return reserved ? 1 : 0;
}
