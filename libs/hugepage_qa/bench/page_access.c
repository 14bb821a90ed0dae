/*
 * What a page costs: the time to touch memory for the first time, and to read it at random, on pages of one kind.
 *
 * usage: page_access BYTES base|thp|HUGE_PAGE_BYTES ACCESSES REPEATS HUGE_BYTES
 *
 * Of BYTES the first HUGE_BYTES are on static huge pages, if any are; the rest is on base pages. Each repeat maps, touches, reads and unmaps BYTES, and prints a line:
 * first-touch-ns N access-ns N faults N page-table-kB N huge-kB N
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#ifndef MAP_HUGE_SHIFT
#define MAP_HUGE_SHIFT 26
#endif

/* memory starts at a multiple of this: of the largest PMD there is (arm64, 64K pages), and of usual gigantic pages */
#define ALIGNMENT (1UL << 30)

/* no base page is smaller */
#define STEP 4096

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000ULL + time.tv_nsec;
}

static long faults(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_minflt;
}

/* the sum of the lines of a file of ours that begin with one of the names, in kB */
static long kilobytes(const char *path, const char *const *names)
{
	char line[256], format[64];
	long sum = 0, value;
	FILE *file = fopen(path, "r");

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

static long page_tables(void)
{
	static const char *const names[] = { "VmPTE", NULL };

	return kilobytes("/proc/self/status", names);
}

static long huge(void)
{
	static const char *const names[] = { "AnonHugePages", "Shared_Hugetlb", "Private_Hugetlb", NULL };

	return kilobytes("/proc/self/smaps_rollup", names);
}

struct memory {
	char *mapping, *start;
	size_t mapped;
};

static struct memory map(size_t bytes, size_t huge_page, size_t huge_bytes)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS, huge_flags;
	size_t alignment = huge_page > ALIGNMENT ? huge_page : ALIGNMENT;
	/* only what is touched counts */
	struct memory memory = { .mapped = bytes + huge_page + alignment };

	memory.mapping = mmap(NULL, memory.mapped, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, -1, 0);
	if (memory.mapping == MAP_FAILED)
		fail("mmap");
	memory.start = memory.mapping + alignment - (uintptr_t)memory.mapping % alignment;
	if (huge_page && huge_bytes) {
		huge_flags = flags | MAP_FIXED | MAP_HUGETLB | (__builtin_ctzl(huge_page) << MAP_HUGE_SHIFT);
		huge_bytes = (huge_bytes + huge_page - 1) / huge_page * huge_page;
		if (mmap(memory.start, huge_bytes, PROT_READ | PROT_WRITE, huge_flags, -1, 0) == MAP_FAILED)
			fail("mmap of huge pages");
	}
	return memory;
}

/* each address depends on what was read before: nothing is read ahead of its turn */
static uint64_t read_at_random(const char *start, size_t bytes, long accesses)
{
	uint64_t state = 1, begin = now();

	for (long i = 0; i < accesses; i++) {
		size_t place = (state >> 20) % (bytes / sizeof(uint64_t));

		state = state * 6364136223846793005ULL + 1442695040888963407ULL + ((const uint64_t *)start)[place];
	}
	begin = now() - begin;
	/* the result is used, or there would be nothing to compute */
	if (!state)
		puts("");
	return begin;
}

static void repeat(size_t bytes, size_t huge_page, size_t huge_bytes, long accesses)
{
	struct memory memory = map(bytes, huge_page, huge_bytes);
	long tables = page_tables(), before = faults(), touched;
	uint64_t begin = now(), first_touch, access;

	for (size_t place = 0; place < bytes; place += STEP)
		*(volatile uint64_t *)(memory.start + place) = place;
	first_touch = now() - begin;
	touched = faults() - before;
	tables = page_tables() - tables;
	access = read_at_random(memory.start, bytes, accesses);
	printf("first-touch-ns %llu access-ns %llu faults %ld page-table-kB %ld huge-kB %ld\n",
	       (unsigned long long)first_touch, (unsigned long long)access, touched, tables, huge());
	fflush(stdout);
	munmap(memory.mapping, memory.mapped);
}

int main(int argc, char **argv)
{
	size_t bytes, huge_page;
	long accesses, repeats;

	if (argc != 6) {
		fprintf(stderr, "usage: page_access BYTES base|thp|HUGE_PAGE_BYTES ACCESSES REPEATS HUGE_BYTES\n");
		return 2;
	}
	bytes = strtoull(argv[1], NULL, 10);
	huge_page = strtoull(argv[2], NULL, 10);
	accesses = atol(argv[3]);
	repeats = atol(argv[4]);
	for (long i = 0; i < repeats; i++)
		repeat(bytes, huge_page, strtoull(argv[5], NULL, 10), accesses);
	return 0;
}
