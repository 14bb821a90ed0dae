// SPDX-License-Identifier: GPL-2.0
/*
 * pagemap tells of every base page of a huge page whether this process alone has the first one mapped.
 *
 * cc -static -o reproducer reproducer.c; root, a huge page's memory free.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define THP "/sys/kernel/mm/transparent_hugepage/"
#define EXCLUSIVE (1ULL << 56)

int main(void)
{
	FILE *file = fopen(THP "hpage_pmd_size", "r"), *enabled = fopen(THP "enabled", "w");
	size_t size = 0, base = (size_t)getpagesize(), told = 0, pages;
	int pagemap = open("/proc/self/pagemap", O_RDONLY), up[2];
	uint64_t entry;
	char *memory, c;
	pid_t child;

	if (!file || fscanf(file, "%zu", &size) != 1 || !enabled || fputs("madvise", enabled) < 0 || fclose(enabled))
		return puts("cannot be tried here: no transparent huge pages"), 2;
	memory = mmap(NULL, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED || pipe(up) || pagemap < 0)
		return perror("cannot be tried here"), 2;
	memory = (char *)(((uintptr_t)memory + size - 1) & -size);
	madvise(memory, size, MADV_HUGEPAGE);
	memset(memory, 1, size);
	pages = size / base;
	child = fork();
	if (!child) {
		/* all but the first base page, which parent and child have */
		munmap(memory + base, size - base);
		if (write(up[1], "", 1) == 1)
			pause();
		_exit(0);
	}
	if (read(up[0], &c, 1) != 1)
		return perror("cannot be tried here: a child"), 2;
	for (size_t page = 0; page < pages; page++)
		if (pread(pagemap, &entry, 8, (off_t)(((uintptr_t)memory + page * base) / base * 8)) == 8)
			told += !!(entry & EXCLUSIVE);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	printf("a huge page of which a child has the first of %zu base pages\n", pages);
	printf("expected: %zu are told to be this process's alone\n", pages - 1);
	printf("found: %zu\n", told);
	return told != pages - 1;
}
