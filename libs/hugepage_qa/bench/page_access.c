/*
 * What a page costs: the time to touch memory for the first time, to read it at random, and to give it back, on pages
 * of one kind.
 *
 * usage: page_access BYTES base|thp|HUGE_PAGE_BYTES ACCESSES REPEATS HUGE_BYTES
 *
 * Of BYTES the first HUGE_BYTES are on static huge pages, if any are; the rest is on base pages. Each repeat maps,
 * touches, reads and unmaps BYTES, and prints a line:
 * first-touch-ns N access-ns N unmap-ns N faults N page-table-kB N huge-kB N misses N accesses N instructions N
 * The last three are of the data TLB while it reads, n/a where the processor counts none.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "measured_memory.h"
#include "tlb_counters.h"

#ifndef MAP_HUGE_SHIFT
#define MAP_HUGE_SHIFT 26
#endif

/* memory starts at a multiple of this: of the largest PMD there is (arm64, 64K pages), and of usual gigantic pages */
#define ALIGNMENT (1UL << 30)

/* what a table of the third level covers (x86, arm64 with 4K pages); those of others cover a multiple of it */
#define TABLE_SPAN (1UL << 39)

/* no base page is smaller */
#define STEP 4096

static long faults(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_minflt;
}

struct memory {
	char *mapping, *start;
	/* of what is mapped, and of the part from start on whose pages count */
	size_t mapped, size;
};

static size_t round_up(size_t value, size_t multiple)
{
	return (value + multiple - 1) / multiple * multiple;
}

/*
 * Wherever the kernel puts the mapping, the same tables must be new to it: the memory shares no table of the first two
 * levels with other mappings, lies in a single one of the third, and that one is there before.
 */
static struct memory map_among_others(size_t bytes, size_t huge_page, size_t huge_bytes)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS, huge_flags;
	size_t alignment = huge_page > ALIGNMENT ? huge_page : ALIGNMENT;
	struct memory memory = { .size = round_up(bytes, alignment) };
	/* after the memory comes a neighbour, and there is room to move both */
	size_t whole = memory.size + ALIGNMENT;
	uintptr_t start;
	char *neighbour;

	memory.mapped = 2 * whole + alignment;
	memory.mapping = mmap(NULL, memory.mapped, PROT_NONE, flags | MAP_NORESERVE, -1, 0);
	if (memory.mapping == MAP_FAILED)
		fail("mmap");
	start = round_up((uintptr_t)memory.mapping, alignment);
	if (start / TABLE_SPAN != (start + whole - 1) / TABLE_SPAN)
		start = round_up(start, TABLE_SPAN);
	memory.start = memory.mapping + (start - (uintptr_t)memory.mapping);
	if (mprotect(memory.start, whole, PROT_READ | PROT_WRITE) != 0)
		fail("mprotect");
	if (huge_page && huge_bytes) {
		huge_flags = flags | MAP_FIXED | MAP_HUGETLB | (__builtin_ctzl(huge_page) << MAP_HUGE_SHIFT);
		if (mmap(memory.start, round_up(huge_bytes, huge_page), PROT_READ | PROT_WRITE, huge_flags, -1, 0) ==
		    MAP_FAILED)
			fail("mmap of huge pages");
	}
	neighbour = memory.start + memory.size;
	/* refused by a kernel without THP, where it is a small page anyway */
	madvise(neighbour, ALIGNMENT, MADV_NOHUGEPAGE);
	*(volatile char *)neighbour = 1;
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
	struct memory memory = map_among_others(bytes, huge_page, huge_bytes);
	long tables = page_tables(), before = faults(), touched;
	uint64_t begin = now(), first_touch, access, unmap;
	long had;

	for (size_t place = 0; place < bytes; place += STEP)
		*(volatile uint64_t *)(memory.start + place) = place;
	first_touch = now() - begin;
	touched = faults() - before;
	tables = page_tables() - tables;
	tlb_count(DATA_TLB);
	access = read_at_random(memory.start, bytes, accesses);
	tlb_keep();
	had = huge();
	unmap = now();
	if (munmap(memory.start, memory.size) != 0)
		fail("munmap");
	unmap = now() - unmap;
	printf("first-touch-ns %llu access-ns %llu unmap-ns %llu faults %ld page-table-kB %ld huge-kB %ld",
	       (unsigned long long)first_touch, (unsigned long long)access, (unsigned long long)unmap,
	       touched, tables, had);
	tlb_print();
	puts("");
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
