/*
 * What memory costs where it is scarce or many want it: each operation prints a line for each of its REPEATS.
 *
 * usage: memory_at_once OPERATION BYTES KIND BLOCK_BYTES REPEATS PROCESSES|OTHER_BYTES FILE
 *
 * touch: PROCESSES touch their part of BYTES at the same time, then unmap it: touch-ns N unmap-ns N huge-kB N
 * swap: PROCESSES have their part of BYTES swapped out at the same time, then touch it:
 *   out-ns N in-ns N swapped-kB N huge-kB N
 * probe: while PROCESSES touch and unmap their part of BYTES again and again, and one more writes FILE, a little memory
 *   is mapped, touched and unmapped once in a while: probe-ns N
 * fragmented: where one base page of eight is left in BYTES, OTHER_BYTES are in use, and no block of BLOCK_BYTES is free,
 *   a page is touched in each of REPEATS such blocks of memory: fault-ns N huge-kB N
 *
 * KIND is base, thp, or the bytes of a static huge page; BLOCK_BYTES are those of the largest transparent page.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef MAP_HUGE_SHIFT
#define MAP_HUGE_SHIFT 26
#endif
#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21 /* since Linux 5.4 */
#endif

enum { MOST_PROCESSES = 64, FIRST = 0, SECOND = 1, STEPS = 2, KEPT = 8, PROBE = 1 << 16, PAUSE_US = 2000 };
#define WRITTEN (64UL << 20)

/* of THP the block is the page; of others what room the memory of each process is a multiple of */
static size_t base_page, huge_page, block;
static int is_thp;

/* what the processes tell; all times of one clock */
static struct shared {
	pthread_barrier_t barrier;
	uint64_t began[STEPS][MOST_PROCESSES], ended[STEPS][MOST_PROCESSES];
	long huge[MOST_PROCESSES], swapped[MOST_PROCESSES];
} *shared;

/* A process that fails ends all: the others would wait for it. */
static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	fflush(NULL);
	if (shared)
		kill(0, SIGKILL);
	exit(1);
}

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* the sum of the lines of a file that begin with one of the names, in kB */
static long kilobytes(const char *path, const char *const *names)
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

static long huge(void)
{
	static const char *const names[] = { "AnonHugePages", "Shared_Hugetlb", "Private_Hugetlb", NULL };

	return kilobytes("/proc/self/smaps_rollup", names);
}

static long swapped(void)
{
	static const char *const names[] = { "Swap", NULL };

	return kilobytes("/proc/self/smaps_rollup", names);
}

/* Memory that begins where a transparent page may. */
static char *map(size_t bytes)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS;
	size_t alignment = is_thp ? huge_page : base_page, before, after;
	char *start;

	if (huge_page && !is_thp) {
		flags |= MAP_HUGETLB | __builtin_ctzl(huge_page) << MAP_HUGE_SHIFT;
		alignment = 1;
	}
	start = mmap(NULL, bytes + (alignment > 1 ? alignment : 0), PROT_READ | PROT_WRITE, flags, -1, 0);
	if (start == MAP_FAILED)
		fail("mmap");
	if (alignment == 1)
		return start;
	before = (alignment - (uintptr_t)start % alignment) % alignment;
	after = alignment - before;
	if ((before && munmap(start, before)) || munmap(start + before + bytes, after))
		fail("munmap");
	return start + before;
}

static void unmap(char *start, size_t bytes)
{
	if (munmap(start, bytes))
		fail("munmap");
}

static void touch(char *start, size_t bytes, size_t step)
{
	for (size_t offset = 0; offset < bytes; offset += step)
		*(volatile char *)(start + offset) = 1;
}

static void page_out(char *start, size_t bytes)
{
	if (madvise(start, bytes, MADV_PAGEOUT))
		fail("MADV_PAGEOUT");
}

/* ---- processes that do the same at the same time ---- */

static void share(int processes)
{
	pthread_barrierattr_t attributes;

	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		fail("mmap of what is shared");
	pthread_barrierattr_init(&attributes);
	pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&shared->barrier, &attributes, (unsigned int)processes + 1);
}

static void wait_for_all(void)
{
	pthread_barrier_wait(&shared->barrier);
}

/* Whoever ends the first process ends all. */
static pid_t start(void (*work)(size_t bytes, int repeats, int self), size_t bytes, int repeats, int self)
{
	pid_t parent = getpid(), child = fork();

	if (child < 0)
		fail("fork");
	if (child)
		return child;
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	if (getppid() == parent)
		work(bytes, repeats, self);
	_exit(0);
}

static void begin(int step, int self)
{
	wait_for_all();
	shared->began[step][self] = now();
}

static void end(int step, int self)
{
	shared->ended[step][self] = now();
}

/* From when the first one began to when the last one was done. */
static unsigned long long took(int step, int processes)
{
	uint64_t first = UINT64_MAX, last = 0;

	for (int self = 0; self < processes; self++) {
		first = shared->began[step][self] < first ? shared->began[step][self] : first;
		last = shared->ended[step][self] > last ? shared->ended[step][self] : last;
	}
	return last - first;
}

static long sum(const long *of, int processes)
{
	long total = 0;

	for (int self = 0; self < processes; self++)
		total += of[self];
	return total;
}

static void touch_and_unmap(size_t bytes, int repeats, int self)
{
	for (int repeat = 0; repeat < repeats; repeat++) {
		char *memory = map(bytes);

		begin(FIRST, self);
		touch(memory, bytes, base_page);
		end(FIRST, self);
		shared->huge[self] = huge();
		begin(SECOND, self);
		unmap(memory, bytes);
		end(SECOND, self);
		wait_for_all();
		/* until the first process has told of it */
		wait_for_all();
	}
}

static void swap_out_and_in(size_t bytes, int repeats, int self)
{
	for (int repeat = 0; repeat < repeats; repeat++) {
		/* anew each time: what comes back is in small pages */
		char *memory = map(bytes);

		memset(memory, repeat + 1, bytes);
		shared->huge[self] = huge();
		begin(FIRST, self);
		page_out(memory, bytes);
		end(FIRST, self);
		shared->swapped[self] = swapped();
		begin(SECOND, self);
		touch(memory, bytes, base_page);
		end(SECOND, self);
		unmap(memory, bytes);
		wait_for_all();
		wait_for_all();
	}
}

static void at_once(void (*work)(size_t, int, int), size_t bytes, int processes, int repeats)
{
	int is_swap = work == swap_out_and_in, status;

	share(processes);
	fflush(NULL);
	for (int self = 0; self < processes; self++)
		start(work, bytes / (size_t)processes / block * block, repeats, self);
	for (int repeat = 0; repeat < repeats; repeat++) {
		for (int step = 0; step <= STEPS; step++)
			wait_for_all();
		if (is_swap)
			printf("out-ns %llu in-ns %llu swapped-kB %ld huge-kB %ld\n", took(FIRST, processes),
			       took(SECOND, processes), sum(shared->swapped, processes), sum(shared->huge, processes));
		else
			printf("touch-ns %llu unmap-ns %llu huge-kB %ld\n", took(FIRST, processes), took(SECOND, processes),
			       sum(shared->huge, processes));
		wait_for_all();
	}
	while (wait(&status) > 0)
		if (status)
			fail("a process");
}

/* ---- a little memory beside processes that take much ---- */

static const char *written;

static void churn(size_t bytes, int repeats, int self)
{
	(void)repeats, (void)self;
	for (;;) {
		char *memory = map(bytes);

		touch(memory, bytes, base_page);
		unmap(memory, bytes);
	}
}

static void write_again(size_t bytes, int repeats, int self)
{
	static char content[1 << 20];
	int file = open(written, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	(void)bytes, (void)repeats, (void)self;
	for (size_t place = 0;; place = (place + sizeof(content)) % WRITTEN) {
		if (pwrite(file, content, sizeof(content), (off_t)place) != sizeof(content))
			fail(written);
		if (!place && fdatasync(file))
			fail(written);
	}
}

static void probe(size_t bytes, int processes, int repeats)
{
	static pid_t others[MOST_PROCESSES + 1];

	others[0] = start(write_again, 0, 0, 0);
	for (int self = 1; self <= processes; self++)
		others[self] = start(churn, bytes / (size_t)processes / block * block, 0, self);
	for (int repeat = 0; repeat < repeats; repeat++) {
		uint64_t began;
		char *memory;

		usleep(PAUSE_US);
		/* not the pages under test: a probe is any small program */
		began = now();
		memory = mmap(NULL, PROBE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (memory == MAP_FAILED)
			fail("mmap");
		touch(memory, PROBE, base_page);
		unmap(memory, PROBE);
		printf("probe-ns %llu\n", (unsigned long long)(now() - began));
	}
	for (int self = 0; self <= processes; self++) {
		int status;

		/* one that has ended before made nobody wait */
		if (waitpid(others[self], &status, WNOHANG) != 0)
			fail("a process beside the probe");
		kill(others[self], SIGKILL);
		waitpid(others[self], &status, 0);
	}
}

/* ---- memory without free blocks ---- */

/* Free blocks in which a huge page has room, by /proc/buddyinfo. */
static size_t free_blocks(size_t size)
{
	size_t wanted = size / base_page, blocks = 0, count, pages;
	char line[512], *at;
	FILE *file = fopen("/proc/buddyinfo", "re");
	int used;

	if (!file)
		fail("/proc/buddyinfo");
	while (fgets(line, sizeof(line), file)) {
		used = 0;
		sscanf(line, "Node %*d, zone %*s%n", &used);
		at = line + used;
		for (pages = 1; sscanf(at, "%zu%n", &count, &used) == 1; at += used, pages *= 2)
			blocks += pages >= wanted ? count * (pages / wanted) : 0;
	}
	fclose(file);
	return blocks;
}

static void fragmented(size_t bytes, size_t other_bytes, int repeats)
{
	size_t span = base_page * KEPT, taken;
	char *others = map(other_bytes), *scattered = map(bytes), *memory;
	long had, before;

	/* in huge pages, where the kernel has them for everybody: nothing of it can be moved to make room */
	madvise(others, other_bytes, MADV_HUGEPAGE);
	touch(others, other_bytes, base_page);
	madvise(scattered, bytes, MADV_NOHUGEPAGE);
	touch(scattered, bytes, base_page);
	for (size_t offset = 0; offset + span <= bytes; offset += span)
		if (madvise(scattered + offset + base_page, span - base_page, MADV_DONTNEED))
			fail("MADV_DONTNEED");
	/* what is free in blocks is no challenge */
	taken = free_blocks(block);
	memory = map((taken + (size_t)repeats) * block);
	madvise(memory, (taken + (size_t)repeats) * block, MADV_HUGEPAGE);
	touch(memory, taken * block, block);
	memory += taken * block;
	before = huge();
	for (int repeat = 0; repeat < repeats; repeat++, memory += block) {
		uint64_t began = now();

		*(volatile char *)memory = 1;
		began = now() - began;
		had = huge();
		printf("fault-ns %llu huge-kB %ld\n", (unsigned long long)began, had - before);
		before = had;
	}
}

int main(int argc, char **argv)
{
	size_t bytes;
	int repeats;

	if (argc != 8) {
		fprintf(stderr, "usage: memory_at_once touch|swap|probe|fragmented BYTES base|thp|HUGE_PAGE_BYTES"
				" BLOCK_BYTES REPEATS PROCESSES|OTHER_BYTES FILE\n");
		return 2;
	}
	base_page = (size_t)sysconf(_SC_PAGESIZE);
	bytes = strtoull(argv[2], NULL, 10);
	block = strtoull(argv[4], NULL, 10);
	is_thp = !strcmp(argv[3], "thp");
	huge_page = is_thp ? block : strtoull(argv[3], NULL, 10);
	repeats = atoi(argv[5]);
	written = argv[7];
	if (!strcmp(argv[1], "touch"))
		at_once(touch_and_unmap, bytes, atoi(argv[6]), repeats);
	else if (!strcmp(argv[1], "swap"))
		at_once(swap_out_and_in, bytes, atoi(argv[6]), repeats);
	else if (!strcmp(argv[1], "probe"))
		probe(bytes, atoi(argv[6]), repeats);
	else
		fragmented(bytes, strtoull(argv[6], NULL, 10), repeats);
	return 0;
}
