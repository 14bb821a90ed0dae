/*
 * How long the path of the kernel is through what it does with pages: each operation is done again and again, and each
 * time is told in nanoseconds. In a machine whose clock counts instructions that is their number.
 *
 * It is started and asked as an actor is (process/programs/actor), one request per packet on its standard input:
 *   OPERATION KIND SIZE COUNT POOL ROUNDS
 * does it ROUNDS times, each to COUNT pages of SIZE bytes; KIND is base, thp or hugetlb. Meanwhile the pool of such
 * pages has POOL of them. Answer: "ok TIME...", or "errno NUMBER" where the kernel does not do it.
 *   rest SECONDS
 * sleeps. Answer: "ok".
 *
 * A round is all that happens to memory, from mapping to unmapping; timed is the operation alone.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* since Linux 6.1 */
#endif
#ifndef MAP_HUGE_SHIFT
#define MAP_HUGE_SHIFT 26
#endif
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#define MPOL_MF_MOVE 2

/*
 * Always the same addresses, so that the same page tables are new to each round: multiples of what a table of the third
 * level covers, where neither programs nor their libraries are.
 */
#define PLACE ((char *)0x100000000000UL)
#define ELSEWHERE ((char *)0x108000000000UL)

#define SPLIT "/sys/kernel/debug/split_huge_pages"

enum { PACKET = 4096, MOST_ROUNDS = 200, WARM_UP = 1, REPEATS = 16, MOST_PAGES = 4096, OTHER_NODE = 1 };

/* ---- what it is done to ---- */

static struct {
	enum { BASE, THP, HUGETLB } kind;
	size_t size, count, base;
	char *start;
} pages;

static size_t length(void)
{
	return pages.size * pages.count;
}

static uint64_t now(void)
{
	struct timespec time;

	/* nobody slews it */
	clock_gettime(CLOCK_MONOTONIC_RAW, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static uint64_t since(uint64_t began)
{
	return now() - began;
}

/* ---- steps: -1 with errno where the kernel refuses ---- */

static int map(void)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, advice;
	char *place = PLACE;

	if (pages.kind == HUGETLB)
		flags |= MAP_HUGETLB | __builtin_ctzl(pages.size) << MAP_HUGE_SHIFT;
	/* where a page of a larger size has no room */
	else if (pages.kind == THP)
		place += pages.size;
	pages.start = mmap(place, length(), PROT_READ | PROT_WRITE, flags, -1, 0);
	if (pages.start == MAP_FAILED)
		return -1;
	/* a kernel without transparent pages knows neither advice, and has base pages anyway */
	advice = pages.kind == THP ? MADV_HUGEPAGE : MADV_NOHUGEPAGE;
	if (pages.kind != HUGETLB && madvise(pages.start, length(), advice) && pages.kind == THP)
		return -1;
	return 0;
}

static void touch(void)
{
	/* each base page: where a huge page was to be, its substitutes count */
	for (size_t offset = 0; offset < length(); offset += pages.base)
		*(volatile char *)(pages.start + offset) = 1;
}

static int map_and_touch(void)
{
	if (map())
		return -1;
	touch();
	return 0;
}

static int unmap(void)
{
	return munmap(pages.start, length());
}

static int write_file(const char *path, const char *text)
{
	ssize_t size = (ssize_t)strlen(text);
	int file = open(path, O_WRONLY | O_CLOEXEC), failed;

	if (file < 0)
		return -1;
	failed = write(file, text, (size_t)size) != size;
	close(file);
	return failed ? -1 : 0;
}

/* Have count pages in the pool: fewer are none. */
static int set_pool(size_t count)
{
	char path[100], text[32];
	size_t found = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/sys/kernel/mm/hugepages/hugepages-%zukB/nr_hugepages", pages.size / 1024);
	snprintf(text, sizeof(text), "%zu", count);
	if (write_file(path, text) || !(file = fopen(path, "re")))
		return -1;
	if (fscanf(file, "%zu", &found) != 1)
		found = 0;
	fclose(file);
	errno = ENOMEM;
	return found == count ? 0 : -1;
}

/* Wait for a child that ended well. */
static int wait_for(pid_t child)
{
	int status;

	if (child < 0 || waitpid(child, &status, 0) != child)
		return -1;
	errno = ECHILD;
	return status ? -1 : 0;
}

/* ---- operations: one round of each, with the time that it took ---- */

static int do_fault(uint64_t *took)
{
	uint64_t began;

	if (map())
		return -1;
	began = now();
	touch();
	*took = since(began);
	return unmap();
}

static int do_unmap(uint64_t *took)
{
	uint64_t began;
	int failed;

	if (map_and_touch())
		return -1;
	began = now();
	failed = unmap();
	*took = since(began);
	return failed;
}

/* By itself it is no longer than a timer interrupt. */
static int do_reserve(uint64_t *took)
{
	uint64_t began = now();
	int failed = 0;

	for (int time = 0; time < REPEATS && !failed; time++)
		failed = map() || unmap();
	*took = since(began) / REPEATS;
	return failed ? -1 : 0;
}

/* With the end of the child: which of them the scheduler lets run first makes no difference. */
static int do_fork(uint64_t *took)
{
	uint64_t began;
	pid_t child;
	int failed;

	if (map_and_touch())
		return -1;
	began = now();
	child = fork();
	if (!child)
		_exit(0);
	failed = wait_for(child);
	*took = since(began);
	return unmap() || failed ? -1 : 0;
}

/* The child has all pages, and sleeps, before the first one is copied. */
static int do_copy(uint64_t *took)
{
	uint64_t began;
	int ends[2], failed;
	pid_t child;
	char ready;

	if (map_and_touch())
		return -1;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) {
		unmap();
		return -1;
	}
	child = fork();
	if (!child) {
		close(ends[0]);
		/* the end of the parent's end of the line is that of the child */
		_exit(write(ends[1], "r", 1) != 1 || read(ends[1], &ready, 1) != 0);
	}
	close(ends[1]);
	if (child > 0 && read(ends[0], &ready, 1) == 1) {
		began = now();
		touch();
		*took = since(began);
	}
	close(ends[0]);
	failed = wait_for(child);
	return unmap() || failed ? -1 : 0;
}

/* There and back, as once is no longer than a timer interrupt. */
static int move_to(char *to, uint64_t *took)
{
	char *from = pages.start, *there = NULL;
	uint64_t began = now();

	for (int time = 0; time < REPEATS && there != MAP_FAILED; time++) {
		there = mremap(pages.start, length(), length(), MREMAP_MAYMOVE | MREMAP_FIXED, time % 2 ? from : to);
		if (there != MAP_FAILED)
			pages.start = there;
	}
	*took = since(began) / REPEATS;
	return unmap() || there == MAP_FAILED ? -1 : 0;
}

/* Base pages go to where they stand at another place in their table: each is moved by itself, and not all of a table. */
static int do_move(uint64_t *took)
{
	if (map_and_touch())
		return -1;
	return move_to(ELSEWHERE + (pages.start - PLACE) + (pages.kind == BASE ? pages.size : 0), took);
}

/* To the same place in another table: who has all pages of a table moves the table. */
static int do_table(uint64_t *took)
{
	return map_and_touch() ? -1 : move_to(ELSEWHERE, took);
}

static int do_collapse(uint64_t *took)
{
	uint64_t began;
	int failed;

	if (map_and_touch())
		return -1;
	/* until here it was kept from having huge pages */
	failed = madvise(pages.start, length(), MADV_HUGEPAGE);
	began = now();
	failed = failed || madvise(pages.start, length(), MADV_COLLAPSE);
	*took = since(began);
	return unmap() || failed ? -1 : 0;
}

/* One base page of each is given back: what maps the huge page as a whole is split, and the page waits to be. */
static int do_part(uint64_t *took)
{
	uint64_t began;
	int failed = 0;

	if (map_and_touch())
		return -1;
	began = now();
	for (size_t offset = 0; offset < length(); offset += pages.size)
		failed |= madvise(pages.start + offset, pages.base, MADV_DONTNEED);
	*took = since(began);
	return unmap() || failed ? -1 : 0;
}

/* The huge pages themselves. */
static int do_split(uint64_t *took)
{
	char text[100];
	uint64_t began;
	int failed;

	if (map_and_touch())
		return -1;
	snprintf(text, sizeof(text), "%d,%p,%p", (int)getpid(), (void *)pages.start, (void *)(pages.start + length()));
	began = now();
	failed = write_file(SPLIT, text);
	*took = since(began);
	return unmap() || failed ? -1 : 0;
}

static int do_migrate(uint64_t *took)
{
	static void *addresses[MOST_PAGES];
	static int nodes[MOST_PAGES], found[MOST_PAGES];
	uint64_t began;
	long failed;

	if (map_and_touch())
		return -1;
	for (size_t page = 0; page < pages.count; page++) {
		addresses[page] = pages.start + page * pages.size;
		nodes[page] = OTHER_NODE;
	}
	began = now();
	failed = syscall(SYS_move_pages, 0, pages.count, addresses, nodes, found, MPOL_MF_MOVE);
	*took = since(began);
	for (size_t page = 0; page < pages.count && !failed; page++)
		if (found[page] != OTHER_NODE)
			failed = errno = EBUSY;
	return unmap() || failed ? -1 : 0;
}

static int do_grow(uint64_t *took)
{
	uint64_t began = now();
	int failed = set_pool(pages.count);

	*took = since(began);
	return set_pool(0) || failed ? -1 : 0;
}

static int do_shrink(uint64_t *took)
{
	uint64_t began;
	int failed;

	if (set_pool(pages.count))
		return -1;
	began = now();
	failed = set_pool(0);
	*took = since(began);
	return failed;
}

/* ---- requests ---- */

static const struct {
	const char *name;
	int (*round)(uint64_t *took);
} operations[] = {
	{"fault", do_fault}, {"unmap", do_unmap}, {"reserve", do_reserve}, {"fork", do_fork}, {"copy", do_copy},
	{"move", do_move}, {"table", do_table}, {"collapse", do_collapse}, {"part", do_part}, {"split", do_split},
	{"migrate", do_migrate}, {"grow", do_grow}, {"shrink", do_shrink},
};

static int (*find(const char *name))(uint64_t *)
{
	for (size_t index = 0; index < sizeof(operations) / sizeof(*operations); index++)
		if (!strcmp(operations[index].name, name))
			return operations[index].round;
	return NULL;
}

/* Do rounds, and one before them that is not told: it fills what the kernel keeps at hand. */
static int measure(int (*round)(uint64_t *), size_t pool, int rounds, uint64_t *times)
{
	int failed = pool && set_pool(pool), error;
	uint64_t ignored;

	for (int number = -WARM_UP; number < rounds && !failed; number++)
		/* what somebody else looks at for a moment cannot be migrated */
		for (int time = 0; !time || (failed && errno == EBUSY && time < REPEATS); time++)
			failed = round(number < 0 ? &ignored : &times[number]);
	error = errno;
	if (pool)
		set_pool(0);
	errno = error;
	return failed;
}

static void send_answer(const char *answer, size_t size)
{
	if (send(STDIN_FILENO, answer, size, MSG_NOSIGNAL) < 0)
		_exit(1);
}

static void serve(const char *request)
{
	static char answer[32 * MOST_ROUNDS];
	static uint64_t times[MOST_ROUNDS];
	int (*round)(uint64_t *) = NULL, rounds, at;
	char name[16], kind[16] = "";
	size_t pool;

	if (sscanf(request, "rest %d", &rounds) == 1) {
		sleep((unsigned int)rounds);
		send_answer("ok", 2);
		return;
	}
	if (sscanf(request, "%15s %15s %zu %zu %zu %d", name, kind, &pages.size, &pages.count, &pool, &rounds) == 6)
		round = find(name);
	pages.kind = !strcmp(kind, "thp") ? THP : !strcmp(kind, "hugetlb") ? HUGETLB : BASE;
	if (!round || rounds > MOST_ROUNDS || pages.count > MOST_PAGES) {
		at = sprintf(answer, "malformed");
	} else if (measure(round, pool, rounds, times)) {
		at = sprintf(answer, "errno %d", errno);
	} else {
		at = sprintf(answer, "ok");
		for (int number = 0; number < rounds; number++)
			at += sprintf(answer + at, " %llu", (unsigned long long)times[number]);
	}
	send_answer(answer, (size_t)at);
}

int main(int count, char **words)
{
	static char request[PACKET + 1];
	ssize_t size;

	/* whoever started us may be gone already: then our parent is another */
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	if (count < 2 || getppid() != atoi(words[1]))
		return 1;
	pages.base = (size_t)sysconf(_SC_PAGESIZE);
	while ((size = recv(STDIN_FILENO, request, PACKET, 0)) > 0) {
		request[size] = 0;
		serve(request);
	}
	return 0;
}
