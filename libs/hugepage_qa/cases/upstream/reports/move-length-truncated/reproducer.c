// SPDX-License-Identifier: GPL-2.0
/*
 * mremap() of 4 GiB of hugetlb fails with ENOMEM and loses what was in the pages.
 *
 * cc -static -o reproducer reproducer.c; root, no pages in the default pool, room for 6.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LENGTH (4UL << 30)

static long meminfo(const char *name)
{
	char line[99];
	long value = -1;
	FILE *file = fopen("/proc/meminfo", "r");

	while (file && fgets(line, sizeof(line), file))
		if (!strncmp(line, name, strlen(name)))
			value = strtol(line + strlen(name), NULL, 10);
	fclose(file);
	return value;
}

static void set_pool(int pages)
{
	FILE *file = fopen("/proc/sys/vm/nr_hugepages", "w");

	if (file && fprintf(file, "%d\n", pages) > 0)
		fclose(file);
}

int main(void)
{
	char *room = mmap(NULL, 3 * LENGTH, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *from = (char *)(((size_t)room + LENGTH - 1) & -LENGTH), *to = from + LENGTH, *moved;
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_NORESERVE | MAP_FIXED, error;

	if (meminfo("HugePages_Total:") || (set_pool(6), meminfo("HugePages_Free:") != 6))
		return puts("cannot be tried here: the default pool has pages, or no room for 6"), 2;
	if (mmap(from, LENGTH, PROT_READ | PROT_WRITE, flags, -1, 0) != from)
		return perror("cannot be tried here: mmap"), 2;
	from[0] = from[LENGTH - 1] = 42;
	errno = 0;
	moved = mremap(from, LENGTH, LENGTH, MREMAP_MAYMOVE | MREMAP_FIXED, to);
	error = errno;
	if (error == EINVAL)
		return puts("cannot be tried here: this kernel does not move hugetlb"), 2;
	printf("wrote 42 at both ends of 4 GiB of hugetlb, then mremap(): %s\n", strerror(error));
	moved = moved == MAP_FAILED ? from : moved;
	printf("expected: 42 and 42, wherever the mapping is now\nfound: %d and %d\n", moved[0], moved[LENGTH - 1]);
	error = moved[0] != 42 || moved[LENGTH - 1] != 42;
	set_pool(0);
	return error;
}
