// SPDX-License-Identifier: GPL-2.0
/*
 * Memory is lost when a huge page that gave back struct pages is demoted and its parts are freed.
 * cc -static -o reproducer reproducer.c; root, x86_64, 6 GiB, no huge pages, a machine that is idle.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LARGE "/sys/kernel/mm/hugepages/hugepages-1048576kB/"
#define LISTS "/proc/sys/vm/percpu_pagelist_high_fraction"
#define SMALL "/sys/kernel/mm/hugepages/hugepages-2048kB/"
#define OPTIMISE "/proc/sys/vm/hugetlb_optimize_vmemmap"

static int put(const char *path, const char *text)
{
	int file = open(path, O_WRONLY);
	return file < 0 || write(file, text, strlen(text)) < 0 || close(file);
}

static long get(const char *path, const char *name)
{
	char line[128];
	long value = -1;
	FILE *file = fopen(path, "r");

	while (file && value < 0 && fgets(line, sizeof(line), file))
		if (!strncmp(line, name, strlen(name)))
			sscanf(line + strlen(name), "%ld", &value);
	return file && fclose(file) ? -1 : value;
}

/* Demote 2 pages of 1G and free all that they became; return what is free then, in kB. */
static long free_after(const char *optimised)
{
	int demoted = !put(OPTIMISE, optimised) && !put(LARGE "nr_hugepages", "2") &&
		      get(LARGE "nr_hugepages", "") == 2 && !put(LARGE "demote", "2") &&
		      get(SMALL "nr_hugepages", "") == 1024;

	put(LARGE "nr_hugepages", "0"), put(SMALL "nr_hugepages", "0");
	put("/proc/sys/vm/drop_caches", "3"), put("/proc/sys/vm/compact_memory", "1"), sleep(1);
	return demoted ? get("/proc/meminfo", "MemFree:") : -1;
}

int main(void)
{
	long given_back = get(OPTIMISE, ""), before, after;

	put(LISTS, "1000000"); /* what is freed is not on lists of a CPU */
	before = free_after("0"), after = free_after("1");
	put(LISTS, "0"), put(OPTIMISE, given_back == 1 ? "1" : "0");
	if (before < 0 || after < 0)
		return puts("cannot be tried here: vm.hugetlb_optimize_vmemmap, demote of 2 pages of 1G"), 2;
	printf("2 pages of 1G that gave back struct pages are demoted, and all that they became is freed\n"
	       "expected: all memory is free again\nfound: %ld MiB are gone\n", (before - after) / 1024);
	return before - after > 14 << 10;
}
