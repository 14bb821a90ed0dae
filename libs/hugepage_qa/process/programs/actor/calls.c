/* Calls that the actor makes: of the kernel, and of the C library. */
#define _GNU_SOURCE
#include "actor.h"

#include <errno.h>
#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct {
	const char *name;
	long number;
} system_calls[] = {
#define CALL(name) {#name, SYS_##name}
	CALL(munmap), CALL(mprotect), CALL(mremap), CALL(madvise), CALL(mlock), CALL(mlock2), CALL(munlock),
	CALL(mlockall), CALL(munlockall), CALL(msync), CALL(swapon), CALL(swapoff),
	CALL(mincore), CALL(fallocate), CALL(ftruncate), CALL(truncate), CALL(openat), CALL(close), CALL(read),
	CALL(write), CALL(pread64), CALL(pwrite64), CALL(lseek), CALL(readahead), CALL(fadvise64), CALL(unlinkat), CALL(dup),
	CALL(mkdirat), CALL(linkat), CALL(renameat2), CALL(symlinkat), CALL(mknodat), CALL(umask), CALL(getdents64),
	CALL(fchmodat), CALL(fchown), CALL(fchownat), CALL(utimensat), CALL(fsetxattr), CALL(fgetxattr),
	CALL(memfd_create), CALL(shmget), CALL(shmat), CALL(shmdt), CALL(shmctl), CALL(set_mempolicy), CALL(mbind),
	CALL(get_mempolicy), CALL(move_pages), CALL(migrate_pages), CALL(sched_setaffinity), CALL(prctl),
	CALL(setresuid), CALL(setresgid), CALL(setgroups), CALL(fstatfs), CALL(vmsplice), CALL(pipe2),
	CALL(process_vm_readv), CALL(process_vm_writev), CALL(userfaultfd), CALL(ioctl), CALL(setrlimit), CALL(fcntl),
	CALL(fsync), CALL(mount), CALL(statx), CALL(copy_file_range), CALL(brk), CALL(unshare), CALL(rt_sigprocmask),
	CALL(rt_sigpending), CALL(rt_sigtimedwait), CALL(io_uring_setup), CALL(io_uring_register),
	CALL(io_uring_enter), CALL(setitimer), CALL(fchmod), CALL(ppoll), CALL(socket), CALL(chdir), CALL(kill),
	CALL(ptrace), CALL(wait4), CALL(capget), CALL(capset), CALL(splice), CALL(sendfile),
	CALL(preadv), CALL(pwritev), CALL(preadv2), CALL(pwritev2), CALL(tee), CALL(perf_event_open),
	CALL(remap_file_pages), CALL(epoll_create1), CALL(epoll_ctl), CALL(epoll_pwait),
	CALL(tgkill), CALL(setfsuid), CALL(setfsgid),
#ifdef SYS_sync_file_range
	/* on powerpc sync_file_range2 takes its place */
	CALL(sync_file_range),
#endif
#ifdef SYS_pkey_alloc
	CALL(pkey_alloc), CALL(pkey_free), CALL(pkey_mprotect),
#endif
	/* on every architecture here, and younger than the headers of many (5.3, 5.10, 5.15, 5.17, 6.5 and 6.10) */
	{"pidfd_open", 434},
	{"clone3", 435},
	{"process_madvise", 440},
	{"process_mrelease", 448},
	{"set_mempolicy_home_node", 450},
	{"cachestat", 451},
	{"mseal", 462},
};

long make_call(const char *name, const long *a)
{
	/* the system call itself takes a pointer to its arguments on s390x */
	if (!strcmp(name, "mmap"))
		return (long)mmap((void *)a[0], (size_t)a[1], (int)a[2], (int)a[3], (int)a[4], a[5]);
	for (size_t index = 0; index < sizeof(system_calls) / sizeof(*system_calls); index++)
		if (!strcmp(name, system_calls[index].name))
			return syscall(system_calls[index].number, a[0], a[1], a[2], a[3], a[4], a[5]);
	errno = ENOSYS;
	return -1;
}

void answer_discard(void)
{
	unsigned long *a = (unsigned long *)arguments;
	int advice = a[4] ? (int)a[4] : MADV_DONTNEED;

	if (!a[2])
		return answer_malformed(); /* a step of 0 has no end */
	for (unsigned long offset = 0; offset < a[1]; offset += a[2])
		if (madvise((void *)(a[0] + offset), a[3], advice))
			return answer_error(errno);
	answer_value(0);
}

long milliseconds(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void answer_compute(void)
{
	long end = milliseconds(CLOCK_PROCESS_CPUTIME_ID) + arguments[0];

	while (milliseconds(CLOCK_PROCESS_CPUTIME_ID) < end)
		;
	answer_value(0);
}

void answer_call(void)
{
	long value = make_call(call_name, arguments);

	if (value == -1)
		answer_refused_call(errno);
	else
		answer_value(value);
}

enum { LATE_STORE_ARGUMENTS = ARGUMENTS - 1 };

/* The processor knows where the page is when the call is made. */
void answer_late_store(void)
{
	volatile uint64_t *word = word_at(arguments[0] + arguments[LATE_STORE_ARGUMENTS]);

	if (store(word, 1) != DONE)
		return answer_error(EFAULT);
	if (make_call(call_name, arguments) == -1)
		return answer_refused_call(errno);
	answer_value(store(word, 2));
}

/* ---- soft-dirty ---- */

/* Bit 55 of an entry of pagemap, Documentation/admin-guide/mm/pagemap.rst; -1 where there is none to be read. */
static int is_soft_dirty(int pagemap, long address)
{
	uint64_t entry;
	off_t place = address / sysconf(_SC_PAGESIZE) * (off_t)sizeof(entry);

	return pread(pagemap, &entry, sizeof(entry), place) == sizeof(entry) ? (int)(entry >> 55 & 1) : -1;
}

/* The processor knows the page as one that was written when that is forgotten of it, and stores before anything else. */
void answer_soft_dirty(void)
{
	volatile uint64_t *word = word_at(arguments[0]);
	int clear_refs = (int)arguments[2], pagemap = (int)arguments[3];
	long lost = 0, kept = 0;

	for (long round = 0; round < arguments[1]; round++) {
		for (int stores = 1; stores >= 0; stores--) {
			int is_dirty;

			if (store(word, (uint64_t)round) != DONE)
				return answer_error(EFAULT);
			if (write(clear_refs, "4", 1) != 1)
				return answer_error(errno);
			if (stores && store(word, (uint64_t)round + 1) != DONE)
				return answer_error(EFAULT);
			is_dirty = is_soft_dirty(pagemap, arguments[0]);
			if (is_dirty < 0)
				return answer_error(errno);
			lost += stores && !is_dirty;
			kept += !stores && is_dirty;
		}
	}
	answer_text(-1, "ok %ld %ld", lost, kept);
}

/* ---- the C library ---- */

void answer_libc(void)
{
#ifdef __GLIBC__
	answer_value((long)(1000 * atof(gnu_get_libc_version()) + 0.5));
#else
	answer_value(0);
#endif
}

void answer_malloc(void)
{
	void *memory = malloc((size_t)arguments[0]);

	if (memory)
		answer_value((long)memory);
	else
		answer_error(errno);
}

void answer_free(void)
{
	free((void *)arguments[0]);
	answer_value(0);
}

/* ---- sleeping threads ---- */

static long futex(long word, int operation, long count, void *timeout_or_count, long other)
{
	return syscall(SYS_futex, word, operation, count, timeout_or_count, other, 0);
}

static void *sleep_on(void *word)
{
	struct timespec patience = {.tv_sec = 60};

	futex((long)word, FUTEX_WAIT, 0, &patience, 0);
	return NULL;
}

/* How many sleep on a word: it is what is moved from it to itself. */
static long sleepers(long word)
{
	return futex(word, FUTEX_REQUEUE, 0, (void *)2L, word);
}

void answer_wake(void)
{
	pthread_t threads[2];
	long woken[2], end = milliseconds(CLOCK_MONOTONIC) + 30000;

	for (int number = 0; number < 2; number++) {
		/* the first one sleeps there, too, if both words were one futex */
		long before = sleepers(arguments[number]);
		int error = pthread_create(&threads[number], NULL, sleep_on, (void *)arguments[number]);

		if (error)
			return answer_error(error);
		while (sleepers(arguments[number]) == before && milliseconds(CLOCK_MONOTONIC) < end)
			sched_yield();
	}
	for (int number = 1; number >= 0; number--)
		woken[number] = futex(arguments[number], FUTEX_WAKE, 2, NULL, 0);
	for (int number = 0; number < 2; number++)
		pthread_join(threads[number], NULL);
	answer_value(woken[0] << 8 | woken[1]);
}
