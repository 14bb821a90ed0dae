// SPDX-License-Identifier: GPL-2.0
/*
 * Base pages that are equal are written after clear_refs was, and KSM merges them: they must be soft-dirty still.
 *
 * cc -static -o reproducer reproducer.c; root, a kernel with CONFIG_MEM_SOFT_DIRTY and KSM that merges nothing else.
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
#define KSM "/sys/kernel/mm/ksm/"

static long read_number(const char *path)
{
	FILE *file = fopen(path, "r");
	long number = -1;

	return file && fscanf(file, "%ld", &number) == 1 && !fclose(file) ? number : -1;
}

/* Return how many base pages are soft-dirty: bit 55 of /proc/self/pagemap. */
static int soft_dirty(const char *pages, long size)
{
	int pagemap = open("/proc/self/pagemap", O_RDONLY), found = 0, page;
	uint64_t entries[PAGES] = {0};

	if (pread(pagemap, entries, sizeof(entries), (uintptr_t)pages / size * 8) == sizeof(entries))
		for (page = 0; page < PAGES; page++)
			found += entries[page] >> 55 & 1;
	return close(pagemap), found;
}

int main(void)
{
	long size = getpagesize(), before = read_number(KSM "full_scans");
	char *pages = mmap(NULL, PAGES * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int clear_refs = open("/proc/self/clear_refs", O_WRONLY), found;
	FILE *run = fopen(KSM "run", "w");

	if (before < 0 || !run || pages == MAP_FAILED || madvise(pages, PAGES * size, MADV_MERGEABLE) ||
	    !memset(pages, 42, PAGES * size) || write(clear_refs, "4", 1) != 1 || soft_dirty(pages, size) ||
	    !memset(pages, 43, PAGES * size) || soft_dirty(pages, size) != PAGES)
		return puts("cannot be tried here: no KSM, or this kernel does not tell what was written"), 2;
	fputs("1\n", run);
	fclose(run);
	while (read_number(KSM "pages_sharing") < PAGES - 1 && read_number(KSM "full_scans") < before + 8)
		usleep(10000);
	found = soft_dirty(pages, size);
	printf("after 4 was written to clear_refs %d equal base pages are written, and KSM merges them\n", PAGES);
	printf("expected: %d are soft-dirty\nfound: %d\n", PAGES, found);
	return found != PAGES;
}
