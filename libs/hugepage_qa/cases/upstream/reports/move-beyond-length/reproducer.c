// SPDX-License-Identifier: GPL-2.0
/*
 * mremap() of a base page's length of hugetlb memory replaces a whole huge page's length at the target.
 *
 * cc -static -o reproducer reproducer.c; root, no pages in the default pool, room for 1.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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
	size_t size = (size_t)meminfo("Hugepagesize:") << 10, base = (size_t)getpagesize();
	char *room = mmap(NULL, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *target = (char *)(((size_t)room + size - 1) & -size), *page, *moved;
	int found;

	if (room == MAP_FAILED || meminfo("HugePages_Total:") || (set_pool(1), meminfo("HugePages_Free:") != 1))
		return puts("cannot be tried here: the default pool has pages, or no room for 1"), 2;
	page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	if (page == MAP_FAILED)
		return perror("cannot be tried here: mmap"), set_pool(0), 2;
	page[base] = 3;
	target[base] = 4;
	errno = 0;
	moved = mremap(page, base, base, MREMAP_MAYMOVE | MREMAP_FIXED, target);
	found = target[base];
	printf("mremap() of %zu bytes of a huge page to ordinary memory that holds 4: %s\n", base, strerror(errno));
	printf("expected: %zu bytes further it holds 4\nfound: %d\n", base, found);
	munmap(moved == MAP_FAILED ? page : moved, size);
	return set_pool(0), found != 4;
}
