// SPDX-License-Identifier: GPL-2.0
/*
 * demote of a node splits huge pages that are reserved.
 *
 * cc -static -o reproducer reproducer.c; root, a 1G page on each of 2 nodes:
 * boot with "hugepagesz=1G hugepages=0:1,1:1".
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>

#define POOL "/sys/kernel/mm/hugepages/hugepages-1048576kB/"
#define NODE "/sys/devices/system/node/node0/hugepages/hugepages-1048576kB/"

static long read_pool(const char *name)
{
	char path[99];
	unsigned long value = -1000UL;
	FILE *file;

	snprintf(path, sizeof(path), POOL "%s", name);
	file = fopen(path, "r");
	if (file && fscanf(file, "%lu", &value) == 1)
		fclose(file);
	return (long)value;
}

int main(void)
{
	FILE *demote = fopen(NODE "demote", "w");
	void *both = mmap(NULL, 2UL << 30, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | 30 << MAP_HUGE_SHIFT, -1, 0);
	long pages, reserved;

	if (!demote || both == MAP_FAILED || read_pool("free_hugepages") != 2 || read_pool("resv_hugepages") != 2)
		return puts("cannot be tried here: demote of node 0, and 2 free pages of 1G"), 2;
	fputs("1", demote);
	fclose(demote);
	pages = read_pool("nr_hugepages");
	reserved = read_pool("resv_hugepages");
	printf("a free page of 1G on each of 2 nodes, mmap() reserves both, 1 is written to demote of node 0\n");
	printf("expected: 2 pages, 2 reserved\nfound: %ld pages, %ld reserved\n", pages, reserved);
	return pages < reserved;
}
