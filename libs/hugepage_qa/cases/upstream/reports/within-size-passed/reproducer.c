// SPDX-License-Identifier: GPL-2.0
/*
 * shmem_enabled=within_size gives a memfd a huge page that reaches beyond its end.
 *
 * cc -static -o reproducer reproducer.c; root, a huge page's memory free.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define THP "/sys/kernel/mm/transparent_hugepage/"

/* The size in bytes of the huge page that a PMD maps, 0 without any. */
static size_t pmd_size(void)
{
	FILE *file = fopen(THP "hpage_pmd_size", "r");
	size_t size = 0;

	return file && fscanf(file, "%zu", &size) == 1 ? size : 0;
}

/* Choose when shared memory without a name gets huge pages: 0, or -1 where it has none. */
static int choose(const char *policy)
{
	FILE *file = fopen(THP "shmem_enabled", "w");

	return file && fputs(policy, file) >= 0 && !fclose(file) ? 0 : -1;
}

int main(void)
{
	size_t size = pmd_size();
	int file = memfd_create("short", 0);
	struct stat status = {0};
	char *room, *memory;

	if (!size || file < 0 || choose("within_size") || ftruncate(file, size / 2))
		return perror("cannot be tried here: a memfd, with shmem_enabled=within_size"), 2;
	room = mmap(NULL, 2 * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memory = (char *)(((uintptr_t)room + size - 1) & -size);
	memory = mmap(memory, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
	if (room == MAP_FAILED || memory == MAP_FAILED)
		return perror("cannot be tried here: mapped where a huge page fits"), 2;
	memory[0] = 1;
	fstat(file, &status);
	choose("never");
	printf("memfd of %zu kB, shmem_enabled=within_size, its first byte written\n", size / 2 >> 10);
	printf("expected: at most %zu kB in use\n", size / 2 >> 10);
	printf("found: %ld kB in use\n", (long)status.st_blocks / 2);
	return (size_t)status.st_blocks * 512 > size / 2;
}
