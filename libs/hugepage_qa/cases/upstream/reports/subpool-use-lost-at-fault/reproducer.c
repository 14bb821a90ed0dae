// SPDX-License-Identifier: GPL-2.0
/*
 * A fallocate() that finds no page uses up size= of a hugetlbfs mount for good.
 *
 * cc -static -o reproducer reproducer.c; root, no pages in the default pool, room for 4.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
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
	char options[99], at[] = "/tmp/hugetlbfs-XXXXXX";
	off_t size = (off_t)number(MEMINFO, "Hugepagesize:") << 10;
	int file, failed = 0, done;

	snprintf(options, sizeof(options), "size=%lld", (long long)(4 * size));
	if (!mkdtemp(at) || mount(at, at, "hugetlbfs", 0, options) || chdir(at) || umount2(at, MNT_DETACH) || rmdir(at))
		return perror("cannot be tried here: a mount of hugetlbfs"), rmdir(at), 2;
	file = open("file", O_CREAT | O_RDWR, 0600);
	for (int i = 0; i < 4; i++)
		failed += fallocate(file, 0, 0, size) != 0;
	set(POOL, 4);
	if (failed != 4 || number(MEMINFO, "HugePages_Free:") != 4)
		return puts("cannot be tried here: the default pool has pages, or no room for 4"), 2;
	done = fallocate(file, 0, 0, size);
	printf("a mount with size= of 4 pages: 4 calls of fallocate() find the pool empty, then it gets 4 pages\n");
	printf("expected: the fifth call succeeds\nfound: %s\n", done ? strerror(errno) : "it does");
	return done != 0;
}
