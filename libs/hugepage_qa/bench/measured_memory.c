/* What measured_memory.h declares. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "measured_memory.h"

#ifndef MAP_HUGE_SHIFT
#define MAP_HUGE_SHIFT 26
#endif

/* what a table of the second level covers (x86, arm64 with 4K pages); those of others cover less or a multiple of it */
#define TABLE_SPAN (1UL << 30)

size_t base_page, huge_page, block;
int sharing = MAP_PRIVATE, is_one_of_many;

static int is_thp;

void choose_pages(const char *kind, const char *block_bytes)
{
	base_page = (size_t)sysconf(_SC_PAGESIZE);
	block = strtoull(block_bytes, NULL, 10);
	is_thp = !strcmp(kind, "thp");
	huge_page = is_thp ? block : strtoull(kind, NULL, 10);
}

void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	fflush(NULL);
	if (is_one_of_many)
		kill(0, SIGKILL);
	exit(1);
}

uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

long kilobytes(const char *path, const char *const *names)
{
	char line[256], format[64];
	long sum = 0, value;
	FILE *file = fopen(path, "re");

	if (!file)
		fail(path);
	while (fgets(line, sizeof(line), file))
		for (const char *const *name = names; *name; name++) {
			snprintf(format, sizeof(format), "%s: %%ld kB", *name);
			if (sscanf(line, format, &value) == 1)
				sum += value;
		}
	fclose(file);
	return sum;
}

long huge(void)
{
	static const char *const names[] = { "AnonHugePages", "ShmemPmdMapped", "Shared_Hugetlb", "Private_Hugetlb", NULL };

	return kilobytes("/proc/self/smaps_rollup", names);
}

long swapped(void)
{
	static const char *const names[] = { "Swap", NULL };

	return kilobytes("/proc/self/smaps_rollup", names);
}

long page_tables(void)
{
	static const char *const names[] = { "VmPTE", NULL };

	return kilobytes("/proc/self/status", names);
}

static int flags_of_pages(void)
{
	int huge_flags = MAP_HUGETLB | __builtin_ctzl(huge_page ? huge_page : 1) << MAP_HUGE_SHIFT;

	return sharing | MAP_ANONYMOUS | (huge_page && !is_thp ? huge_flags : 0);
}

static char *checked(char *memory)
{
	if (memory == MAP_FAILED)
		fail("mmap");
	return memory;
}

char *map(size_t bytes)
{
	size_t alignment = is_thp ? huge_page : base_page, before, after;
	int is_static = huge_page && !is_thp, flags = flags_of_pages();
	char *start = checked(mmap(NULL, bytes + (is_static ? 0 : alignment), PROT_READ | PROT_WRITE, flags, -1, 0));

	if (is_static)
		return start;
	before = (alignment - (uintptr_t)start % alignment) % alignment;
	after = alignment - before;
	if ((before && munmap(start, before)) || munmap(start + before + bytes, after))
		fail("munmap");
	return start + before;
}

char *map_apart(size_t bytes)
{
	static char *apart;
	size_t whole = (bytes + TABLE_SPAN - 1) / TABLE_SPAN * TABLE_SPAN;
	int reserving = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

	if (!apart) {
		apart = checked(mmap(NULL, whole + TABLE_SPAN, PROT_NONE, reserving, -1, 0));
		apart += (TABLE_SPAN - (uintptr_t)apart % TABLE_SPAN) % TABLE_SPAN;
	}
	return checked(mmap(apart, bytes, PROT_READ | PROT_WRITE, MAP_FIXED | flags_of_pages(), -1, 0));
}

void unmap(char *start, size_t bytes)
{
	if (munmap(start, bytes))
		fail("munmap");
}

void touch(char *start, size_t bytes, size_t step)
{
	for (size_t offset = 0; offset < bytes; offset += step)
		*(volatile char *)(start + offset) = 1;
}

