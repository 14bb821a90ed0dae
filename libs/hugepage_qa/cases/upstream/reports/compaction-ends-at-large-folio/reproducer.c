// SPDX-License-Identifier: GPL-2.0
/*
 * Compaction of a zone ends at a large folio of a file that somebody holds: what lies behind it stays fragmented.
 *
 * cc -static -o reproducer reproducer.c; root, base pages of 4 kB, 2 GiB of memory that nobody else uses.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PAGE = 4096, MIB = 1 << 20, ENOUGH = 100 };
enum { APART = 40 * MIB, HELD = 32, LENGTH = HELD * APART, LEFT = 1152 * MIB };

static int put(const char *path, const char *text)
{
	int file = open(path, O_WRONLY);
	return write(file, text, strlen(text)) < 0 || close(file);
}

/* Compact memory and return how many free blocks of 2 MiB there are. */
static long compact(void)
{
	FILE *file = fopen("/proc/buddyinfo", "r");
	long count, sum = 0;
	put("/proc/sys/vm/compact_memory", "1");
	while (file && fscanf(file, "Node %*d, zone %*s") != EOF)
		for (int order = 0; order < 11 && fscanf(file, "%ld ", &count) == 1; order++)
			sum += order < 9 ? 0 : count << (order - 9);
	return sum;
}

int main(void)
{
	/* where large folios fit */
	char *file = mmap((void *)(1UL << 40), LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	char *memory = mmap(NULL, LEFT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int ends[2], is_large = !put("/sys/kernel/mm/transparent_hugepage/hugepages-1024kB/shmem_enabled", "always");

	if (file == MAP_FAILED || memory == MAP_FAILED || pipe(ends) || fcntl(ends[1], F_SETPIPE_SZ, 64 * PAGE) < 0)
		return perror("cannot be tried here"), 2;
	memset(file, 1, LENGTH);
	for (char *at = file; at < file + LENGTH; at += APART)
		if (vmsplice(ends[1], &(struct iovec){at, 1}, 1, 0) < 1 || madvise(at + MIB, APART - MIB, MADV_REMOVE))
			return perror("cannot be tried here: vmsplice, MADV_REMOVE"), 2;
	put("/proc/sys/vm/percpu_pagelist_high_fraction", "1000000"); /* what is free is not on lists of a CPU */
	madvise(memory, LEFT, MADV_NOHUGEPAGE);
	memset(memory, 1, LEFT);
	for (char *at = memory; at < memory + LEFT; at += 8 * PAGE)
		madvise(at + PAGE, 7 * PAGE, MADV_DONTNEED);
	long held = compact(), more = (close(ends[0]), close(ends[1]), compact()) - held;
	printf("1 of 8 pages of 1152 MiB left, and a byte of 32 folios of %s in a pipe\n", is_large ? "1 MiB" : "4 kB");
	printf("expected: no more than %d free blocks of 2 MiB more if compacted without the pipe\n", ENOUGH);
	printf("found: %ld more\n", more);
	return more > ENOUGH;
}
