/*
 * What it costs to call code that is spread over many pages, on base pages and on huge ones.
 *
 * usage: text_access PAGES CALLS REPEATS HUGE_PAGE_BYTES collapse|HUGE_BYTES
 *
 * Linked with PAGES functions, one for each page. Executes each once, has all whole huge pages of its text collapsed,
 * or waits until HUGE_BYTES of it are huge, and then calls functions at random. Each repeat prints a line:
 * call-ns N huge-kB N misses N accesses N instructions N
 * The last three are of the instruction TLB, n/a where the processor counts none.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "measured_memory.h"
#include "tlb_counters.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* since Linux 6.1 */
#endif

/* no base page is smaller */
enum { STEP = 4096, PATIENCE_SECONDS = 30, PAUSE_US = 20000 };

typedef unsigned long function(void);

extern function text_page_0;

static unsigned long call(unsigned long page)
{
	function *one = (function *)((uintptr_t)&text_page_0 + page * STEP);

	return one();
}

/* huge pages of files, those of tmpfs included, that are mapped as such, in kB */
static long huge_text(void)
{
	static const char *const names[] = { "FilePmdMapped", "ShmemPmdMapped", NULL };

	return kilobytes("/proc/self/smaps_rollup", names);
}

static void collapse(size_t bytes, size_t huge_page)
{
	uintptr_t first = (uintptr_t)&text_page_0, start = (first + huge_page - 1) / huge_page * huge_page;
	uintptr_t end = (first + bytes) / huge_page * huge_page;

	if (madvise((void *)start, end - start, MADV_COLLAPSE))
		fail("MADV_COLLAPSE of text");
}

int main(int argc, char **argv)
{
	unsigned long pages, calls, repeats, wrong = 0;
	size_t huge_page;

	if (argc != 6) {
		fprintf(stderr, "usage: text_access PAGES CALLS REPEATS HUGE_PAGE_BYTES collapse|HUGE_BYTES\n");
		return 2;
	}
	pages = strtoul(argv[1], NULL, 10);
	calls = strtoul(argv[2], NULL, 10);
	repeats = strtoul(argv[3], NULL, 10);
	huge_page = strtoull(argv[4], NULL, 10);
	for (unsigned long page = 0; page < pages; page++)
		wrong += call(page) != page;
	if (!strcmp(argv[5], "collapse"))
		collapse(pages * STEP, huge_page);
	else
		for (int pause = 0; pause < PATIENCE_SECONDS * (1000000 / PAUSE_US) && huge_text() < atol(argv[5]) / 1024; pause++)
			usleep(PAUSE_US);
	for (unsigned long repeat = 0; repeat < repeats; repeat++) {
		uint64_t state = 1, began;

		tlb_count(INSTRUCTION_TLB);
		began = now();
		/* which function is next depends on what the last one returned */
		for (unsigned long i = 0; i < calls; i++)
			state = state * 6364136223846793005ULL + 1442695040888963407ULL + call((state >> 20) % pages);
		began = now() - began;
		tlb_keep();
		/* the result is used, or there would be nothing to compute */
		wrong += !state;
		printf("call-ns %llu huge-kB %ld", (unsigned long long)began, huge_text());
		tlb_print();
		puts("");
	}
	/* all pages still hold the code that they were linked with */
	for (unsigned long page = 0; page < pages; page++)
		wrong += call(page) != page;
	if (wrong) {
		fprintf(stderr, "%lu functions returned what they should not\n", wrong);
		return 1;
	}
	return 0;
}
