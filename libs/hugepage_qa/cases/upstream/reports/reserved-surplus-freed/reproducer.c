// SPDX-License-Identifier: GPL-2.0
/*
 * A surplus page of a hugetlbfs mount with min_size= is freed while it counts as reserved.
 *
 * cc -static -o reproducer reproducer.c; root, no pages in the default pool, room for 2.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <unistd.h>

#define MEMINFO "/proc/meminfo"

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
	char options[99], at[] = "/tmp/hugetlbfs-XXXXXX";
	size_t size = (size_t)number(MEMINFO, "Hugepagesize:") << 10;
	long free_pages, reserved;
	int file;

	snprintf(options, sizeof(options), "min_size=%zu", 2 * size);
	set("/proc/sys/vm/nr_overcommit_hugepages", 2);
	if (!mkdtemp(at) || mount(at, at, "hugetlbfs", 0, options) || chdir(at) || umount2(at, MNT_DETACH) || rmdir(at))
		return perror("cannot be tried here: 2 surplus pages for a mount"), rmdir(at), 2;
	file = open("file", O_CREAT | O_RDWR, 0600);
	*(volatile char *)mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) = 42;
	if (ftruncate(file, 0))
		return perror("cannot be tried here: ftruncate"), 2;
	free_pages = number(MEMINFO, "HugePages_Free:");
	reserved = number(MEMINFO, "HugePages_Rsvd:");
	printf("a mount with min_size= of 2 surplus pages; touched a page of a file there, and truncated it\n");
	printf("expected: all pages that are reserved are free\nfound: %ld reserved, %ld free\n", reserved, free_pages);
	return reserved > free_pages;
}
