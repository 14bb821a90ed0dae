// SPDX-License-Identifier: GPL-2.0
/*
 * MADV_SOFT_OFFLINE of several base pages replaces one alone where they are of a huge page.
 *
 * cc -static -o reproducer reproducer.c; root. Base pages are out of use until the machine boots again.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGES 16
#define SOFT_OFFLINE 101 /* include/uapi/asm-generic/mman-common.h */
#define THP "/sys/kernel/mm/transparent_hugepage/"

/* Say that pages in the middle of some memory will break, and return how many are replaced, below 0 if that fails. */
static int replace(char *memory, long size)
{
	uint64_t before[PAGES], after[PAGES], *words[] = {before, after};
	int page, time, replaced = 0, map = open("/proc/self/pagemap", O_RDONLY);

	for (time = 0; time < 2; time++) {
		if (time && madvise(memory, PAGES * size, SOFT_OFFLINE))
			return -1;
		if (pread(map, words[time], sizeof(before), (uintptr_t)memory / size * 8) != sizeof(before))
			return -1;
	}
	for (page = 0; page < PAGES; page++)
		replaced += (before[page] ^ after[page]) << 9 != 0;
	return close(map), replaced;
}

int main(void)
{
	long huge = 0, size = getpagesize();
	int way, replaced, wrong = 0, tried = 0;
	FILE *file = fopen(THP "hpage_pmd_size", "r"), *enabled = fopen(THP "enabled", "w");
	char *memory;

	if (!file || fscanf(file, "%ld", &huge) != 1 || fputs("madvise", enabled) < 0 || fclose(enabled))
		return puts("cannot be tried here: no huge pages"), 2;
	printf("expected: MADV_SOFT_OFFLINE of %d base pages replaces %d\n", PAGES, PAGES);
	for (way = 0; way < 2; way++) {
		memory = mmap(NULL, 3 * huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (memory == MAP_FAILED || madvise(memory, 3 * huge, way ? MADV_HUGEPAGE : MADV_NOHUGEPAGE))
			return perror("cannot be tried here: memory"), 2;
		memset(memory, 1, 3 * huge);
		memory = (char *)(((uintptr_t)memory + huge - 1) / huge * huge) + huge / 2;
		replaced = replace(memory, size);
		if (replaced < 0)
			return perror("cannot be tried here: MADV_SOFT_OFFLINE"), 2;
		printf("found: it replaces %d %s\n", replaced, way ? "in huge pages" : "of no huge page");
		tried += !way && replaced == PAGES, wrong += replaced != PAGES;
	}
	return tried ? wrong > 0 : 2;
}
