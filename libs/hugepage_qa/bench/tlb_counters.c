/* perf_event_open(2) for tlb_counters.h. */
#define _GNU_SOURCE
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tlb_counters.h"

enum { MISSES, ACCESSES, INSTRUCTIONS, COUNTERS };

static const char *const names[COUNTERS] = { "misses", "accesses", "instructions" };
static int counters[COUNTERS], is_known[COUNTERS];
static uint64_t kept[COUNTERS];

static int open_counter(uint32_t type, uint64_t event)
{
	struct perf_event_attr attributes;

	memset(&attributes, 0, sizeof(attributes));
	attributes.size = sizeof(attributes);
	attributes.type = type;
	attributes.config = event;
	attributes.exclude_kernel = 1;
	attributes.exclude_hv = 1;
	attributes.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
	return (int)syscall(SYS_perf_event_open, &attributes, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
}

void tlb_count(enum tlb tlb)
{
	uint64_t which = tlb == DATA_TLB ? PERF_COUNT_HW_CACHE_DTLB : PERF_COUNT_HW_CACHE_ITLB;
	uint64_t loads = which | PERF_COUNT_HW_CACHE_OP_READ << 8;

	counters[MISSES] = open_counter(PERF_TYPE_HW_CACHE, loads | PERF_COUNT_HW_CACHE_RESULT_MISS << 16);
	counters[ACCESSES] = open_counter(PERF_TYPE_HW_CACHE, loads | PERF_COUNT_HW_CACHE_RESULT_ACCESS << 16);
	counters[INSTRUCTIONS] = open_counter(PERF_TYPE_HARDWARE, PERF_COUNT_HW_INSTRUCTIONS);
}

void tlb_keep(void)
{
	for (int counter = 0; counter < COUNTERS; counter++) {
		/* value, and the nanoseconds that it was asked for and really counted */
		uint64_t found[3] = { 0, 0, 0 };
		ssize_t got = counters[counter] < 0 ? 0 : read(counters[counter], found, sizeof(found));

		/* what was counted for a part of the time would be a guess */
		is_known[counter] = got == sizeof(found) && found[2] && found[1] == found[2];
		kept[counter] = found[0];
		if (counters[counter] >= 0)
			close(counters[counter]);
	}
}

void tlb_print(void)
{
	for (int counter = 0; counter < COUNTERS; counter++)
		if (is_known[counter])
			printf(" %s %llu", names[counter], (unsigned long long)kept[counter]);
		else
			printf(" %s n/a", names[counter]);
}
