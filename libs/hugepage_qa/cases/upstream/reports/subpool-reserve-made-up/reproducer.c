// SPDX-License-Identifier: GPL-2.0
/*
 * An mmap() that fails makes up pages for min_size= of a mount: it reserves more than there are.
 *
 * cc -static -o reproducer reproducer.c; root, no pages in the default pool, room for 4.
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

static int reserve(const char *name, size_t length)
{
	int file = open(name, O_CREAT | O_RDWR, 0600);

	return mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) != MAP_FAILED;
}

int main(void)
{
	char options[99], at[] = "/tmp/hugetlbfs-XXXXXX";
	size_t size = (size_t)number("/proc/meminfo", "Hugepagesize:") << 10;
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, more;

	set("/proc/sys/vm/nr_hugepages", 4);
	snprintf(options, sizeof(options), "min_size=%zu", 2 * size);
	if (!mkdtemp(at) || mount(at, at, "hugetlbfs", 0, options) || chdir(at) || umount2(at, MNT_DETACH) ||
	    rmdir(at) || !reserve("first", 2 * size) || mmap(NULL, 2 * size, PROT_READ, flags, -1, 0) == MAP_FAILED)
		return perror("cannot be tried here: a mount with min_size= of 2 pages, and 2 more"), rmdir(at), 2;
	more = reserve("second", 3 * size) || reserve("second", 2 * size);
	printf("4 pages, all reserved, 2 by a file of a mount with min_size=; mmap() of 3 there fails, then of 2\n");
	printf("expected: it fails, too\nfound: it %s\n", more ? "succeeds" : "does");
	return more;
}
