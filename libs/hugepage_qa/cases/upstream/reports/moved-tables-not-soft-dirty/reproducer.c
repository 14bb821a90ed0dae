// SPDX-License-Identifier: GPL-2.0
/*
 * Memory that mremap() moves is soft-dirty at the new address, so that who tracks writes reads it: not a whole table.
 *
 * cc -static -o reproducer reproducer.c; no root, CONFIG_MEM_SOFT_DIRTY.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LENGTH (2UL << 20) /* that of a page table with base pages of 4 KiB */

/* Return how many base pages are soft-dirty: bit 55 of /proc/self/pagemap. */
static long soft_dirty(const char *memory, long length, long base)
{
	int pagemap = open("/proc/self/pagemap", O_RDONLY);
	uint64_t entry = 0;
	long found = 0, offset;

	for (offset = 0; offset < length; offset += base)
		if (pread(pagemap, &entry, 8, (uintptr_t)(memory + offset) / base * 8) == 8)
			found += entry >> 55 & 1;
	close(pagemap);
	return found;
}

/* Return how many base pages of LENGTH bytes are soft-dirty when they were moved, or -1 where that cannot be told. */
static long soft_dirty_when_moved(long length, long base)
{
	int clear_refs = open("/proc/self/clear_refs", O_WRONLY), kind = MAP_PRIVATE | MAP_ANONYMOUS;
	char *room = mmap(NULL, 4 * LENGTH, PROT_NONE, kind, -1, 0), *from, *to;

	from = (char *)(((uintptr_t)room + LENGTH - 1) & -LENGTH), to = from + 2 * LENGTH;
	if (room == MAP_FAILED || mmap(from, LENGTH, PROT_READ | PROT_WRITE, kind | MAP_FIXED, -1, 0) != from)
		return -1;
	madvise(from, LENGTH, MADV_NOHUGEPAGE);
	memset(from, 42, LENGTH);
	if (!soft_dirty(from, length, base) || write(clear_refs, "4", 1) != 1 || soft_dirty(from, length, base))
		return -1;
	close(clear_refs);
	to = mremap(from, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, to);
	return to == MAP_FAILED ? -1 : soft_dirty(to, length, base);
}

int main(void)
{
	long base = getpagesize(), most = LENGTH / base;
	long part = soft_dirty_when_moved(LENGTH - base, base), all = soft_dirty_when_moved(LENGTH, base);

	if (part != most - 1 || all < 0)
		return puts("cannot be tried here: this kernel does not tell what was written, or moved"), 2;
	printf("after 4 was written to clear_refs %ld base pages are moved, and then %ld\n", most - 1, most);
	printf("expected: %ld and %ld are soft-dirty\nfound: %ld and %ld\n", most - 1, most, part, all);
	return all != most;
}
