// SPDX-License-Identifier: GPL-2.0
/*
 * A hole that is punched in a file of huge pages takes the private copies of its pages, too.
 *
 * cc -static -o reproducer reproducer.c; root, no pages in the default pool, room for 2.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define WRITTEN 7

/* Write to a private mapping of a file with a page, punch that page out of the file, and return what is read then. */
static int read_copy(int file)
{
	volatile char *copy;
	struct stat found;

	if (file < 0 || fstat(file, &found) || fallocate(file, 0, 0, found.st_blksize))
		return -1;
	copy = mmap(NULL, found.st_blksize, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
	if (copy == MAP_FAILED)
		return -1;
	copy[0] = WRITTEN;
	if (fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, found.st_blksize))
		return -1;
	return copy[0];
}

int main(void)
{
	FILE *pool = fopen("/proc/sys/vm/nr_hugepages", "w");
	int base, huge;

	if (!pool || fputs("2\n", pool) < 0 || fclose(pool))
		return perror("cannot be tried here: a pool"), 2;
	base = read_copy(memfd_create("file", 0));
	huge = read_copy(memfd_create("file", MFD_HUGETLB));
	if (base != WRITTEN || huge < 0)
		return perror("cannot be tried here: files of base pages and of huge pages, a hole in them"), 2;
	printf("a private mapping of a file is written, and a hole is punched in the file\n");
	printf("expected: what was written is there still, %d\nfound: %d\n", WRITTEN, huge);
	return huge != WRITTEN;
}
