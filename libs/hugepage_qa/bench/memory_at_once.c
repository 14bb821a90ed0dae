/*
 * What memory costs where it is scarce or many want it: each operation prints a line for each of its REPEATS.
 *
 * usage: memory_at_once OPERATION BYTES KIND BLOCK_BYTES REPEATS PROCESSES FILE
 *
 * touch: PROCESSES touch their part of BYTES at the same time, then unmap it: touch-ns N unmap-ns N huge-kB N
 * swap: PROCESSES have their part of BYTES swapped out at the same time, then touch it:
 *   out-ns N in-ns N swapped-kB N huge-kB N
 * probe: while PROCESSES touch and unmap their part of BYTES again and again, and one more writes FILE, a little memory
 *   is mapped, touched and unmapped once in a while: probe-ns N
 * limited: in the control group whose cgroup.procs is FILE and which has less memory PROCESSES fill their part, of
 *   which some is swapped out, and read all of it again, from the disk: out-ns N in-ns N swapped-kB N huge-kB N
 * share: PROCESSES touch the same BYTES: touch-ns N table-kB N huge-kB N
 *
 * KIND is base, thp, or the bytes of a static huge page; BLOCK_BYTES are those of the largest transparent page.
 */
#define _GNU_SOURCE
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
#include <unistd.h>

#include "measured_memory.h"

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21 /* since Linux 5.4 */
#endif

enum { MOST_PROCESSES = 64, FIRST = 0, SECOND = 1, STEPS = 2, PROBE = 1 << 16, PAUSE_US = 2000 };
#define WRITTEN (64UL << 20)

/* what the processes tell; all times of one clock */
static struct shared {
	pthread_barrier_t barrier;
	uint64_t began[STEPS][MOST_PROCESSES], ended[STEPS][MOST_PROCESSES];
	long huge[MOST_PROCESSES], swapped[MOST_PROCESSES], tables[MOST_PROCESSES];
} *shared;

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
	is_one_of_many = 1;
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

static void fill_and_read(size_t bytes, int repeats, int self)
{
	for (int repeat = 0; repeat < repeats; repeat++) {
		char *memory = map(bytes);

		begin(FIRST, self);
		memset(memory, repeat + 1, bytes);
		end(FIRST, self);
		shared->huge[self] = huge();
		shared->swapped[self] = swapped();
		begin(SECOND, self);
		for (size_t offset = 0; offset < bytes; offset += base_page)
			if (*(volatile char *)(memory + offset) != (char)(repeat + 1))
				fail("what was swapped is not what was written");
		end(SECOND, self);
		unmap(memory, bytes);
		wait_for_all();
		wait_for_all();
	}
}

/* what all share; mapped by the first process, touched by the others */
static char *common;

static void touch_common(size_t bytes, int repeats, int self)
{
	long before = page_tables();

	(void)repeats;
	begin(FIRST, self);
	touch(common, bytes, base_page);
	end(FIRST, self);
	shared->tables[self] = page_tables() - before;
	shared->huge[self] = huge();
	begin(SECOND, self);
	wait_for_all();
	wait_for_all();
}

static void at_once(void (*work)(size_t, int, int), size_t bytes, int processes, int repeats)
{
	int status;

	share(processes);
	fflush(NULL);
	for (int self = 0; self < processes; self++)
		start(work, work == touch_common ? bytes : bytes / (size_t)processes / block * block, repeats, self);
	for (int repeat = 0; repeat < repeats; repeat++) {
		for (int step = 0; step <= STEPS; step++)
			wait_for_all();
		if (work == touch_common)
			printf("touch-ns %llu table-kB %ld huge-kB %ld\n", took(FIRST, processes),
			       sum(shared->tables, processes), shared->huge[0]);
		else if (work != touch_and_unmap)
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

/* Each repeat has processes and memory of its own: tables are there until a process ends. */
static void share_memory(size_t bytes, int processes, int repeats)
{
	sharing = MAP_SHARED;
	for (int repeat = 0; repeat < repeats; repeat++) {
		/* page tables are to be those of this memory alone, wherever the kernel puts it */
		common = map_apart(bytes);
		at_once(touch_common, bytes, processes, 1);
		munmap(shared, sizeof(*shared));
	}
}

static void join_group(const char *procs)
{
	FILE *file = fopen(procs, "we");

	if (!file || fputs("0", file) == EOF || fclose(file))
		fail(procs);
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

int main(int argc, char **argv)
{
	size_t bytes;
	int repeats, processes;

	if (argc != 8) {
		fprintf(stderr, "usage: memory_at_once touch|swap|limited|share|probe BYTES base|thp|HUGE_PAGE_BYTES"
				" BLOCK_BYTES REPEATS PROCESSES FILE\n");
		return 2;
	}
	bytes = strtoull(argv[2], NULL, 10);
	choose_pages(argv[3], argv[4]);
	repeats = atoi(argv[5]);
	processes = atoi(argv[6]);
	written = argv[7];
	if (!strcmp(argv[1], "touch"))
		at_once(touch_and_unmap, bytes, processes, repeats);
	else if (!strcmp(argv[1], "swap"))
		at_once(swap_out_and_in, bytes, processes, repeats);
	else if (!strcmp(argv[1], "limited")) {
		join_group(written);
		at_once(fill_and_read, bytes, processes, repeats);
	} else if (!strcmp(argv[1], "share"))
		share_memory(bytes, processes, repeats);
	else
		probe(bytes, processes, repeats);
	return 0;
}
