// SPDX-License-Identifier: GPL-2.0
/*
 * The count of reserved pages falls below 0 while a pipe holds a page that was unmapped.
 *
 * cc -static -o reproducer reproducer.c; root, no pages in the default pool, room for 1.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
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
	struct iovec piece = {.iov_len = 16};
	long reserved;
	int ends[2];

	set(POOL, number(MEMINFO, "HugePages_Total:") ? -1 : 1);
	if (number(MEMINFO, "HugePages_Free:") != 1 || pipe(ends))
		return puts("cannot be tried here: the default pool has pages, or no room for 1"), 2;
	piece.iov_base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	memset(piece.iov_base, 42, piece.iov_len);
	if (vmsplice(ends[1], &piece, 1, 0) != (ssize_t)piece.iov_len)
		return perror("cannot be tried here: vmsplice"), 2;
	munmap(piece.iov_base, size);
	reserved = number(MEMINFO, "HugePages_Rsvd:");
	printf("wrote a private page, vmsplice() to a pipe, munmap()\n");
	printf("expected: 0 pages are reserved\nfound: %ld\n", reserved);
	return reserved ? 1 : 0;
}
