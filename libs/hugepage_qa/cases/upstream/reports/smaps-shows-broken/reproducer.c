// SPDX-License-Identifier: GPL-2.0
/*
 * smaps shows a hugetlb page that broke as if it were still there; HugetlbPages of /proc/PID/status does not.
 *
 * cc -static -o reproducer reproducer.c; root, CONFIG_MEMORY_FAILURE, and room for three pages in the default pool,
 * whose pages are of 2 MiB. A base page is out of use until the machine boots again.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE (2UL << 20)
#define PAGES 3

/* newer kernels send SIGBUS to who calls madvise(), too */
static void told(int number) { (void)number; }

/* Sum up, in kB, what the lines of a file of this process say that begin with a name. */
static unsigned long sum(const char *path, const char *name)
{
	unsigned long size, all = 0;
	char line[999];
	FILE *file = fopen(path, "r");

	while (file && fgets(line, sizeof(line), file))
		if (!strncmp(line, name, strlen(name)) && sscanf(line + strlen(name), "%lu", &size) == 1)
			all += size;
	return all;
}

int main(void)
{
	FILE *pool = fopen("/proc/sys/vm/nr_hugepages", "r+");
	unsigned long had, there, private, shared;
	int nr = -1;
	char *pages;

	if (!pool || fscanf(pool, "%d", &nr) != 1 || (rewind(pool), fprintf(pool, "%d\n", nr + PAGES) < 0))
		return puts("cannot be tried here: no pool that can grow"), 2;
	fflush(pool);
	pages = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	if (pages == MAP_FAILED || signal(SIGBUS, told) == SIG_ERR)
		return perror("cannot be tried here: three pages"), 2;
	for (int page = 0; page < PAGES; page++)
		pages[page * PAGE] = 42;
	had = sum("/proc/self/status", "HugetlbPages:");
	if (madvise(pages + PAGE, getpagesize(), MADV_HWPOISON))
		return perror("cannot be tried here: MADV_HWPOISON"), 2;
	there = sum("/proc/self/status", "HugetlbPages:");
	private = sum("/proc/self/smaps", "Private_Hugetlb:");
	shared = sum("/proc/self/smaps", "Shared_Hugetlb:");
	printf("%d private pages of 2 MiB, one broke: HugetlbPages fell from %lu to %lu kB\n", PAGES, had, there);
	printf("expected: Private_Hugetlb %lu kB, Shared_Hugetlb 0 kB\n", there);
	printf("found: Private_Hugetlb %lu kB, Shared_Hugetlb %lu kB\n", private, shared);
	return private != there || shared;
}
