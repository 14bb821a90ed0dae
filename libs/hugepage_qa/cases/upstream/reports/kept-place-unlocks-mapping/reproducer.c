// SPDX-License-Identifier: GPL-2.0
/*
 * mremap(2) with MREMAP_DONTUNMAP of a part of locked memory unlocks all of the mapping, which stays counted as locked.
 *
 * cc -static -o reproducer reproducer.c; root, or RLIMIT_MEMLOCK of 8 MiB.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#define PART (2UL << 20)
#define PARTS 3

/* Return the kB that lines of a file of /proc/self begin with a name and tell; those of mappings with lo, for smaps. */
static long locked(const char *path)
{
	char line[256];
	long all = 0, length = 0, found;
	unsigned long start, end;
	FILE *file = fopen(path, "r");

	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "VmLck: %ld", &found) == 1)
			all = found;
		else if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			length = (long)((end - start) >> 10);
		else if (!strncmp(line, "VmFlags:", 8) && strstr(line, " lo"))
			all += length;
	}
	if (file)
		fclose(file);
	return all;
}

int main(void)
{
	char *memory = mmap(NULL, PARTS * PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *moved;
	long counted, flagged, at_last;

	if (memory == MAP_FAILED || mlock(memory, PARTS * PART))
		return perror("cannot be tried here: 6 MiB of locked memory"), 2;
	moved = mremap(memory + PART, PART, PART, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0);
	if (moved == MAP_FAILED)
		return perror("cannot be tried here: MREMAP_DONTUNMAP (Linux 5.7)"), 2;
	counted = locked("/proc/self/status"), flagged = locked("/proc/self/smaps");
	munmap(moved, PART), munmap(memory, PARTS * PART), at_last = locked("/proc/self/status");
	puts("the second of 3 parts of locked memory, of 2048 kB each, is moved with MREMAP_DONTUNMAP");
	puts("expected: 6144 kB are VmLck, 6144 kB have lo in VmFlags, and 0 kB are VmLck when all is unmapped");
	printf("found: %ld kB are VmLck, %ld kB have lo in VmFlags, and %ld kB are VmLck when all is unmapped\n",
	       counted, flagged, at_last);
	return flagged ? counted != flagged || at_last != 0 : 2; /* what was moved has lo on every kernel with smaps */
}
