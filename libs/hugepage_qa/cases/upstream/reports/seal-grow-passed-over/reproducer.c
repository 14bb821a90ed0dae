// SPDX-License-Identifier: GPL-2.0
/*
 * mmap() beyond the end of a hugetlb memfd that is sealed with F_SEAL_GROW makes it grow.
 *
 * cc -static -o reproducer reproducer.c; root, no pages in the default pool, room for 4.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void set_pool(int pages)
{
	FILE *file = fopen("/proc/sys/vm/nr_hugepages", "w");

	if (file && fprintf(file, "%d\n", pages) > 0)
		fclose(file);
}

/* How many pages a file of one has after two were mapped; -1 where that cannot be tried. */
static long pages_after_mmap(int seals, int flags)
{
	struct stat before, after;
	int file = memfd_create("sealed", MFD_HUGETLB | MFD_ALLOW_SEALING);

	if (file < 0 || fstat(file, &before) || ftruncate(file, before.st_blksize) || fcntl(file, F_ADD_SEALS, seals))
		return -1;
	if (mmap(NULL, 2 * (size_t)before.st_blksize, PROT_READ | PROT_WRITE, flags, file, 0) == MAP_FAILED &&
	    errno == ENOMEM)
		return -1;
	return fstat(file, &after) ? -1 : after.st_size / before.st_blksize;
}

int main(void)
{
	int seals = F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;
	long shared, private;

	set_pool(4);
	shared = pages_after_mmap(seals, MAP_SHARED);
	private = pages_after_mmap(seals | F_SEAL_WRITE, MAP_PRIVATE);
	set_pool(0);
	if (shared < 0 || private < 0)
		return perror("cannot be tried here: a sealed memfd of hugetlb"), 2;
	printf("mapped 2 pages, writable, of memfds of 1 page with F_SEAL_GROW\n");
	printf("expected: both still have 1 page\n");
	printf("found: %ld pages after a shared mapping, %ld after a private one with F_SEAL_WRITE\n", shared, private);
	return shared > 1 || private > 1;
}
