// SPDX-License-Identifier: GPL-2.0
/*
 * A udmabuf of a hole of a hugetlb memfd takes a page that others have reserved, although one is free.
 *
 * cc -static -o reproducer reproducer.c; root, no pages in the default pool, room for 2; /dev/udmabuf.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
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
	int device = open("/dev/udmabuf", O_RDWR), file = memfd_create("file", MFD_HUGETLB | MFD_ALLOW_SEALING);
	long size = number(MEMINFO, "Hugepagesize:") << 10, reserved;
	struct udmabuf_create part = {.memfd = file, .size = sysconf(_SC_PAGESIZE)};

	set(POOL, number(MEMINFO, "HugePages_Total:") ? -1 : 2);
	if (number(MEMINFO, "HugePages_Free:") != 2 || ftruncate(file, size) ||
	    fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK) ||
	    mmap(NULL, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0) == MAP_FAILED)
		return perror("cannot be tried here: a hugetlb memfd, and a mapping of 1 page of 2"), 2;
	if (number(MEMINFO, "HugePages_Rsvd:") != 1 || ioctl(device, UDMABUF_CREATE, &part) < 0)
		return perror("cannot be tried here: UDMABUF_CREATE of a hole"), 2;
	reserved = number(MEMINFO, "HugePages_Rsvd:");
	puts("1 page of 2 is reserved for a mapping; made a udmabuf of a hole of a memfd, which takes the other one");
	printf("expected: 1 page is reserved, 1 is free\nfound: %ld reserved, %ld free\n", reserved,
	       number(MEMINFO, "HugePages_Free:"));
	return reserved != 1;
}
