// SPDX-License-Identifier: GPL-2.0
/*
 * demote splits huge pages that are reserved.
 *
 * cc -static -o reproducer reproducer.c; root, with 2 free pages of 1G: boot with "hugepagesz=1G hugepages=2".
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define POOL "/sys/kernel/mm/hugepages/hugepages-1048576kB/"

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
	FILE *demote = fopen(POOL "demote", "w");
	volatile char *page = mmap(NULL, 1UL << 30, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | 30 << MAP_HUGE_SHIFT, -1, 0);
	long pages, reserved;
	int status;

	if (!demote || page == MAP_FAILED || read_pool("free_hugepages") != 2 || read_pool("resv_hugepages") != 1)
		return puts("cannot be tried here: demote, and 2 free pages of 1G"), 2;
	fputs("2", demote);
	fclose(demote);
	pages = read_pool("nr_hugepages");
	reserved = read_pool("resv_hugepages");
	printf("2 free pages of 1G, mmap() reserves one, 2 is written to demote\n");
	printf("expected: 1 page, 1 reserved\nfound: %ld pages, %ld reserved\n", pages, reserved);
	fflush(stdout);
	if (!fork()) {
		*page = 42;
		_exit(0);
	}
	wait(&status);
	printf("a child that writes to it: %s\n", WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "can");
	return pages < reserved;
}
