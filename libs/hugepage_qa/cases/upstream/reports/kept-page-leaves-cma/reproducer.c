// SPDX-License-Identifier: GPL-2.0
/*
 * A page of hugetlb_cma= gave struct pages back, and memory is short when the pool gives it up: it stays. Given up when
 * there is memory, it must go back to the area, which has room for a page then.
 *
 * cc -static -o reproducer reproducer.c; root, hugetlb_cma=1G hugetlb_cma_only=on, 6 GiB, an idle machine.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#include <stdio.h>

#define POOL "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages"
#define OPTIMISE "/proc/sys/vm/hugetlb_optimize_vmemmap"
#define KEPT_FREE "/proc/sys/vm/min_free_kbytes"

static long get(const char *path, const char *format)
{
	FILE *file = fopen(path, "r");
	long value = -1;

	return file && fscanf(file, format, &value) == 1 && !fclose(file) ? value : -1;
}

static long put(const char *path, long value)
{
	FILE *file = fopen(path, "w");

	return file && fprintf(file, "%ld", value) > 0 && !fclose(file) ? get(path, "%ld") : -1;
}

int main(void)
{
	long total = get("/proc/meminfo", "MemTotal: %ld"), usual = get(KEPT_FREE, "%ld");
	long optimise = get(OPTIMISE, "%ld"), kept = total / 2, left = 0, found;

	/* the less memory anybody may take the sooner there is none for what it gave back */
	for (; put(OPTIMISE, 1) == 1 && put(POOL, 1) == 1 && kept < total; kept += total / 400) {
		put(KEPT_FREE, kept), left = put(POOL, 0), put(KEPT_FREE, usual);
		if (left)
			break;
	}
	if (left != 1 || put(POOL, 1) != 1 || put(POOL, 0) != 0)
		return printf("cannot be tried here: a page of 1G that cannot be given up (%ld)\n", left), 2;
	puts("an area of 1G for pages of 1G, whose page could not be given up at first, and has been now");
	found = put(POOL, 1), put(POOL, 0), put(OPTIMISE, optimise);
	printf("expected: the pool gets 1 page again\nfound: it gets %ld\n", found);
	return found != 1;
}
