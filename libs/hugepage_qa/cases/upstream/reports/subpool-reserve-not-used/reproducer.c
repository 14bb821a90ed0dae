// SPDX-License-Identifier: GPL-2.0
/*
 * A fault with MAP_NORESERVE takes a page out of min_size= of a mount, and it stays reserved.
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
	size_t size = (size_t)number(MEMINFO, "Hugepagesize:") << 10;
	int file, flags = MAP_PRIVATE | MAP_NORESERVE, failed;

	set(POOL, 1);
	snprintf(options, sizeof(options), "min_size=%zu", size);
	if (!mkdtemp(at) || mount(at, at, "hugetlbfs", 0, options) || chdir(at) || umount2(at, MNT_DETACH) || rmdir(at))
		return perror("cannot be tried here: a mount with min_size= of a page"), rmdir(at), 2;
	file = open("file", O_CREAT | O_RDWR, 0600);
	/* what a write to it would do, without a SIGBUS */
	failed = madvise(mmap(NULL, size, PROT_READ | PROT_WRITE, flags, file, 0), size, 23 /* MADV_POPULATE_WRITE */);
	printf("a mount with min_size= of 1 page, which is free; wrote to a MAP_NORESERVE mapping of a file there\n");
	printf("expected: it gets the page\nfound: %s, %ld reserved, %ld free\n", failed ? "it does not" : "it does",
	       number(MEMINFO, "HugePages_Rsvd:"), number(MEMINFO, "HugePages_Free:"));
	return failed != 0;
}
