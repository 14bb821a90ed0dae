/*
 * The actor: makes system calls and touches memory on request, one request per packet on the socket that is
 * its standard input. A SIGBUS or SIGSEGV is an answer and not its end. It ends when the other side is gone.
 *
 * Request: a verb and its arguments, separated by spaces. An argument is a decimal number, or "x" and bytes in
 * hexadecimal (0 to 9, a to f), which are put into a buffer whose address is passed.
 *   call NAME ARGUMENT...            a system call of the table below
 *   load ADDRESS | store ADDRESS VALUE      8 bytes
 *   fill ADDRESS LENGTH STEP VALUE   store VALUE + offset at each multiple of STEP; with a STEP of 64, a cache line, at
 *                                    the word of 8 bytes in each line that has the number of the line, modulo 8
 *   check ADDRESS LENGTH STEP VALUE  how many of these are not as fill left them
 *   nonzero ADDRESS LENGTH [STEP]    how many words of 8 bytes are not zero: all, or those that fill with STEP stores
 *   tag ADDRESS LENGTH TAG           give so many bytes a tag (arm64, MTE), which pointers to them need to have
 *   text                             the address of the code that was linked to it for tests, 0 without
 *   run ADDRESS COUNT STEP           call COUNT functions, STEP bytes apart, and count those that do not return their number
 *   sum ADDRESS LENGTH               the Adler-32 checksum (RFC 1950) of these bytes
 *   discard ADDRESS LENGTH STEP BYTES  give BYTES back at each multiple of STEP
 *   compute MILLISECONDS             use that much time of a CPU, and touch no memory but the stack
 *   race PROCESSES MILLISECONDS LENGTH FLAGS FD STEP  for that time, again and again, new PROCESSES map LENGTH bytes at
 *                                    the same moment, each a multiple of STEP further into FD, store there at the same
 *                                    moment, and unmap them; then the file is emptied. Bit N: in a round N of them stored
 *   clash DEEDS MILLISECONDS LENGTH FLAGS FD  for that time, again and again, LENGTH bytes are mapped, a thread for each
 *                                    byte of DEEDS, see act(), does that to them at the same moment, and looks at them when
 *                                    all have; then they are unmapped, and the file is emptied. The value is how many
 *                                    rounds there were, the buffer what came of each deed in any of them: enum came
 *   repeat NAME ARGUMENT...          a new thread makes this system call again and again, until stop; it copies buffers
 *   use ADDRESS LENGTH STEP          a new thread stores 8 bytes at each multiple of STEP, of its own, again and again, and
 *                                    looks each time for those that it stored there before, until stop
 *   watch ADDRESS LENGTH STEP VALUE  a new thread looks for what fill has stored with a step of 8, at each multiple of STEP,
 *                                    again and again until stop; for zeroes with a VALUE of 0
 *   reread FD LENGTH STEP VALUE      as watch, by pread64()
 *   stop MILLISECONDS                after that time, and when each of these threads has done what it does at least once,
 *                                    they end. The buffer is struct repeated of each of them, in their order
 *   exec [ENVIRONMENT COUNT LENGTH]  the program begins anew, in the same process: with a variable, and COUNT arguments of
 *                                    LENGTH bytes; the value is how many of these are not as they were
 *   wake WORD OTHER                  two threads sleep in FUTEX_WAIT, one on each; the value is how many FUTEX_WAKE of the
 *                                    second word woke, and of the first one times 256
 *   malloc LENGTH | free ADDRESS     of the C library
 *   libc                             its version times 1000 if it is glibc, else 0
 *   fork                             the answer carries the socket of the child
 * Answer: "ok VALUE BUFFER..." with the buffers as the system call left them, "errno NUMBER",
 * "signal NUMBER CODE ADDRESS LSB", "malformed", or "lost" when one of those that race was.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
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

#define PACKET 65536
#define ARGUMENTS 6

static int channel = STDIN_FILENO;
static char request[PACKET + 1], answer[PACKET];

/* ---- arguments ---- */

static long arguments[ARGUMENTS];
static size_t buffer_sizes[ARGUMENTS]; /* 0: a number */
static char buffers[ARGUMENTS][PACKET / 2] __attribute__((aligned(16)));

/* scanf() and printf() would cost an emulated processor 50 ms for a buffer of 4 KiB */
static const char hexadecimal[] = "0123456789abcdef";

static int value_of(char digit)
{
	const char *found = digit ? strchr(hexadecimal, digit) : NULL;

	return found ? (int)(found - hexadecimal) : -1;
}

static int parse_buffer(int index, const char *digits)
{
	size_t length = strlen(digits);

	if (length % 2)
		return 0;
	for (size_t at = 0; at < length; at += 2) {
		int high = value_of(digits[at]), low = value_of(digits[at + 1]);

		if (high < 0 || low < 0)
			return 0;
		buffers[index][at / 2] = (char)(high << 4 | low);
	}
	buffer_sizes[index] = length / 2;
	arguments[index] = (long)buffers[index];
	return 1;
}

/* The number of arguments, -1 for what is none. */
static int parse_arguments(char **rest)
{
	int count = 0;
	char *word;

	memset(buffer_sizes, 0, sizeof(buffer_sizes));
	memset(arguments, 0, sizeof(arguments));
	while ((word = strtok_r(NULL, " ", rest))) {
		char *end;

		if (count == ARGUMENTS)
			return -1;
		if (*word == 'x') {
			if (!parse_buffer(count, word + 1))
				return -1;
		} else {
			errno = 0;
			arguments[count] = *word == '-' ? strtol(word, &end, 10) : (long)strtoul(word, &end, 10);
			if (*end || errno)
				return -1;
		}
		count++;
	}
	return count;
}

/* ---- answers ---- */

static void send_answer(int descriptor)
{
	struct iovec data = {answer, strlen(answer)};
	char control[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8))) = {0};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};

	if (descriptor >= 0) {
		struct cmsghdr *header;

		message.msg_control = control;
		message.msg_controllen = sizeof(control);
		header = CMSG_FIRSTHDR(&message);
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
	}
	if (sendmsg(channel, &message, MSG_NOSIGNAL) < 0)
		_exit(1);
}

static void answer_value(long value)
{
	int at = snprintf(answer, sizeof(answer), "ok %ld", value);

	for (int index = 0; index < ARGUMENTS; index++) {
		if (!buffer_sizes[index] || at + 2 * buffer_sizes[index] + 2 > sizeof(answer))
			continue;
		answer[at++] = ' ';
		for (size_t byte = 0; byte < buffer_sizes[index]; byte++) {
			unsigned char value = (unsigned char)buffers[index][byte];

			answer[at++] = hexadecimal[value >> 4];
			answer[at++] = hexadecimal[value & 15];
		}
	}
	answer[at] = 0;
	send_answer(-1);
}

static void answer_error(int error)
{
	snprintf(answer, sizeof(answer), "errno %d", error);
	send_answer(-1);
}

/* ---- memory ---- */

static __thread sigjmp_buf before_access;
static __thread volatile sig_atomic_t in_access;
static __thread volatile siginfo_t fault;

static void on_fault(int number, siginfo_t *info, void *context)
{
	(void)context;
	/* told that a page is broken, and not at an access: madvise(MADV_HWPOISON) itself tells its caller */
	if (number == SIGBUS && !in_access && (info->si_code == BUS_MCEERR_AO || info->si_code == BUS_MCEERR_AR))
		return;
	if (!in_access) {
		signal(number, SIG_DFL);
		return;
	}
	memcpy((void *)&fault, info, sizeof(fault));
	siglongjmp(before_access, 1);
}

static void answer_fault(void)
{
	/* elsewhere the bytes of si_addr_lsb are not set */
	int is_broken = fault.si_code == BUS_MCEERR_AO || fault.si_code == BUS_MCEERR_AR;

	snprintf(answer, sizeof(answer), "signal %d %d %lu %d", fault.si_signo, fault.si_code,
		 (unsigned long)fault.si_addr, fault.si_signo == SIGBUS && is_broken ? fault.si_addr_lsb : 0);
	send_answer(-1);
}

static volatile uint64_t *word_at(long address)
{
	return (volatile uint64_t *)address;
}

/* of a base page the first word is looked at, the last, and each other place in one of its lines */
static unsigned long place_in(unsigned long offset, unsigned long step)
{
	enum { LINE = 64, WORDS = LINE / sizeof(uint64_t) };

	return step == LINE ? offset + offset / LINE % WORDS * sizeof(uint64_t) : offset;
}

static void fill(long address, unsigned long length, unsigned long step, uint64_t value)
{
	for (unsigned long offset = 0; offset < length; offset += step) {
		unsigned long place = place_in(offset, step);

		*word_at(address + (long)place) = value + place;
	}
}

static long check(long address, unsigned long length, unsigned long step, uint64_t value)
{
	long wrong = 0;

	for (unsigned long offset = 0; offset < length; offset += step) {
		unsigned long place = place_in(offset, step);

		wrong += *word_at(address + (long)place) != value + place;
	}
	return wrong;
}

static long nonzero_at(long address, unsigned long length, unsigned long step)
{
	long found = 0;

	for (unsigned long offset = 0; offset < length; offset += step)
		found += *word_at(address + (long)place_in(offset, step)) != 0;
	return found;
}

static long nonzero(long address, unsigned long length)
{
	enum { AT_ONCE = 8 };
	volatile uint64_t *word = word_at(address), *stop = word + length / sizeof(uint64_t);
	long found = 0;

	/* gigabytes are looked through, on emulated machines, too */
	for (; stop - word >= AT_ONCE; word += AT_ONCE)
		if (word[0] | word[1] | word[2] | word[3] | word[4] | word[5] | word[6] | word[7])
			for (int index = 0; index < AT_ONCE; index++)
				found += word[index] != 0;
	for (; word < stop; word++)
		found += *word != 0;
	return found;
}

/* A program of text_program/ has pages of code, the first of which this is; the actor alone has none. */
extern uint64_t text_page_0(void) __attribute__((weak));

static long run(long address, unsigned long count, unsigned long step)
{
	long wrong = 0;

	for (unsigned long number = 0; number < count; number++)
		wrong += ((uint64_t(*)(void))(address + (long)(number * step)))() != number;
	return wrong;
}

static long sum(long address, unsigned long length)
{
	const unsigned char *bytes = (const unsigned char *)address;
	const unsigned long modulus = 65521, chunk = 4096; /* so many bytes do not overflow */
	unsigned long low = 1, high = 0;

	for (unsigned long offset = 0; offset < length; offset++) {
		low += bytes[offset];
		high += low;
		if (offset % chunk == chunk - 1) {
			low %= modulus;
			high %= modulus;
		}
	}
	return (long)((high % modulus) << 16 | low % modulus);
}

#ifdef __aarch64__
enum { GRANULE = 16, TAG_SHIFT = 56 };

static void tag(long address, unsigned long length, unsigned long value)
{
	for (unsigned long offset = 0; offset < length; offset += GRANULE) {
		register unsigned long place __asm__("x0") = ((unsigned long)address + offset) | value << TAG_SHIFT;

		/* stg x0, [x0]: assemblers know it if they are told of a processor with it */
		__asm__ volatile(".inst 0xd9200800" : : "r"(place) : "memory");
	}
}
#endif

/* 0 for a verb that is none of these */
static int access_memory(const char *verb)
{
	uint64_t *a = (uint64_t *)arguments;
	volatile long value = 0;

	if ((!strcmp(verb, "fill") || !strcmp(verb, "check")) && !a[2])
		return 0; /* a step of 0 has no end */
	if (sigsetjmp(before_access, 1)) {
		in_access = 0;
		answer_fault();
		return 1;
	}
	in_access = 1;
	if (!strcmp(verb, "load"))
		value = (long)*word_at(arguments[0]);
	else if (!strcmp(verb, "store"))
		*word_at(arguments[0]) = a[1];
	else if (!strcmp(verb, "fill"))
		fill(arguments[0], a[1], a[2], a[3]);
	else if (!strcmp(verb, "text"))
		value = (long)text_page_0;
#ifdef __aarch64__
	else if (!strcmp(verb, "tag"))
		tag(arguments[0], a[1], a[2]);
#endif
	else if (!strcmp(verb, "run"))
		value = run(arguments[0], a[1], a[2]);
	else if (!strcmp(verb, "sum"))
		value = sum(arguments[0], a[1]);
	else if (!strcmp(verb, "check"))
		value = check(arguments[0], a[1], a[2], a[3]);
	else if (!strcmp(verb, "nonzero"))
		value = a[2] ? nonzero_at(arguments[0], a[1], a[2]) : nonzero(arguments[0], a[1]);
	else
		return in_access = 0;
	in_access = 0;
	answer_value(value);
	return 1;
}

/* ---- system calls ---- */

static const struct {
	const char *name;
	long number;
} system_calls[] = {
#define CALL(name) {#name, SYS_##name}
	CALL(munmap), CALL(mprotect), CALL(mremap), CALL(madvise), CALL(mlock), CALL(mlock2), CALL(munlock), CALL(msync),
	CALL(mincore), CALL(fallocate), CALL(ftruncate), CALL(openat), CALL(close), CALL(read), CALL(write),
	CALL(pread64), CALL(pwrite64), CALL(lseek), CALL(readahead), CALL(fadvise64), CALL(unlinkat), CALL(dup),
	CALL(memfd_create), CALL(shmget), CALL(shmat), CALL(shmdt), CALL(shmctl), CALL(set_mempolicy), CALL(mbind),
	CALL(get_mempolicy), CALL(move_pages), CALL(migrate_pages), CALL(sched_setaffinity), CALL(prctl),
	CALL(getrusage), CALL(setresuid), CALL(setresgid), CALL(setgroups), CALL(fstatfs), CALL(vmsplice), CALL(pipe2),
	CALL(process_vm_readv), CALL(process_vm_writev), CALL(userfaultfd), CALL(ioctl), CALL(setrlimit), CALL(fcntl),
	CALL(fsync), CALL(mount), CALL(statx), CALL(copy_file_range), CALL(brk), CALL(unshare), CALL(rt_sigprocmask),
	CALL(rt_sigpending), CALL(io_uring_setup), CALL(io_uring_register), CALL(io_uring_enter), CALL(setitimer),
	CALL(fchmod), CALL(ppoll), CALL(socket),
#ifdef SYS_pkey_alloc
	CALL(pkey_alloc), CALL(pkey_free), CALL(pkey_mprotect),
#endif
#ifdef SYS_set_mempolicy_home_node
	CALL(set_mempolicy_home_node),
#endif
	/* on every architecture here, and younger than the headers of many (6.5 and 6.10) */
	{"cachestat", 451},
	{"mseal", 462},
};

static long make_call(const char *name, const long *a)
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

/* 0 for a step that has no end */
static int answer_discard(void)
{
	unsigned long *a = (unsigned long *)arguments;

	if (!a[2])
		return 0;
	for (unsigned long offset = 0; offset < a[1]; offset += a[2])
		if (madvise((void *)(a[0] + offset), a[3], MADV_DONTNEED)) {
			answer_error(errno);
			return 1;
		}
	answer_value(0);
	return 1;
}

static long milliseconds(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void answer_compute(void)
{
	long end = milliseconds(CLOCK_PROCESS_CPUTIME_ID) + arguments[0];

	while (milliseconds(CLOCK_PROCESS_CPUTIME_ID) < end)
		;
	answer_value(0);
}

static void answer_call(const char *name)
{
	long value = make_call(name, arguments);

	if (value == -1)
		answer_error(errno);
	else
		answer_value(value);
}

/* ---- processes ---- */

/* How many threads do something until stop. */
static int thread_count;

static void answer_fork(void)
{
	int ends[2];
	pid_t child;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0) {
		answer_error(errno);
		return;
	}
	child = fork();
	if (child == 0) {
		thread_count = 0;
		close(ends[0]);
		dup2(ends[1], channel);
		close(ends[1]);
		return;
	}
	close(ends[1]);
	if (child < 0) {
		close(ends[0]);
		answer_error(errno);
		return;
	}
	snprintf(answer, sizeof(answer), "ok %d", (int)child);
	send_answer(ends[0]);
	close(ends[0]);
}

/* What an argument of a program has at each place. */
static char letter_of(long argument, long place)
{
	return (char)('!' + (argument * 7 + place) % ('~' - '!'));
}

static long wrong_arguments(long count, char **words, long length)
{
	long wrong = 0;

	for (long number = 0; number < count; number++) {
		long place = 0;

		while (place < length && words[number][place] == letter_of(number, place))
			place++;
		wrong += place < length || words[number][place];
	}
	return wrong;
}

extern char **environ;

/* The new program answers; this one only if it could not be started. */
static void answer_exec(void)
{
	enum { FIRST = 3 };
	char parent[16], size[24], *variables[] = {buffers[0], NULL};
	long count = arguments[1], length = arguments[2];
	char **words = calloc((size_t)count + FIRST + 1, sizeof(*words)), *text = malloc((size_t)(count * (length + 1)));

	if (!words || !text) {
		answer_error(ENOMEM);
		return;
	}
	snprintf(parent, sizeof(parent), "%d", (int)getppid());
	snprintf(size, sizeof(size), "%ld", length);
	words[0] = "actor";
	words[1] = parent;
	words[2] = size;
	for (long number = 0; number < count; number++) {
		words[FIRST + number] = text + number * (length + 1);
		for (long place = 0; place < length; place++)
			words[FIRST + number][place] = letter_of(number, place);
		words[FIRST + number][length] = 0;
	}
	execve("/proc/self/exe", words, buffer_sizes[0] ? variables : environ);
	answer_error(errno);
	free(text);
	free(words);
}

/* ---- the C library ---- */

static void answer_libc(void)
{
#ifdef __GLIBC__
	answer_value((long)(1000 * atof(gnu_get_libc_version()) + 0.5));
#else
	answer_value(0);
#endif
}

static void answer_malloc(void)
{
	void *memory = malloc((size_t)arguments[0]);

	if (memory)
		answer_value((long)memory);
	else
		answer_error(errno);
}

static void answer_free(void)
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

static void answer_wake(void)
{
	pthread_t threads[2];
	long woken[2], end = milliseconds(CLOCK_MONOTONIC) + 30000;

	for (int number = 0; number < 2; number++) {
		/* the first one sleeps there, too, if both words were one futex */
		long before = sleepers(arguments[number]);
		int error = pthread_create(&threads[number], NULL, sleep_on, (void *)arguments[number]);

		if (error) {
			answer_error(error);
			return;
		}
		while (sleepers(arguments[number]) == before && milliseconds(CLOCK_MONOTONIC) < end)
			sched_yield();
	}
	for (int number = 1; number >= 0; number--)
		woken[number] = futex(arguments[number], FUTEX_WAKE, 2, NULL, 0);
	for (int number = 0; number < 2; number++)
		pthread_join(threads[number], NULL);
	answer_value(woken[0] << 8 | woken[1]);
}

/* ---- at the same moment ---- */

enum { RACERS = 32, MOST_SECONDS = 240 };

/* How many come to each meeting, and how often one has come. */
struct meetings {
	long comers, come;
};

/* Go on when all have come, as nearly at the same moment as their processors allow: nobody has to be woken. */
static void meet(struct meetings *meetings, long *mine)
{
	++*mine;
	__atomic_add_fetch(&meetings->come, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&meetings->come, __ATOMIC_SEQ_CST) <
	       *mine * __atomic_load_n(&meetings->comers, __ATOMIC_SEQ_CST))
		sched_yield();
}

/* What came of a deed. */
enum came {
	DONE = 1,     /* and what was stored, if anything, is there afterwards */
	GONE = 2,     /* it was stored, and afterwards there are zeroes */
	WRONG = 4,    /* there is something else, or beside it, or where a copy was made of it */
	BUS = 8,      /* an access ended in SIGBUS */
	SEGV = 16,    /* ... in SIGSEGV */
	REFUSED = 32, /* a system call failed */
	STUCK = 64,   /* it does not come back */
};

static int came_of_fault(void)
{
	in_access = 0;
	return fault.si_signo == SIGBUS ? BUS : SEGV;
}

static int store(volatile uint64_t *word, uint64_t value)
{
	if (sigsetjmp(before_access, 1))
		return came_of_fault();
	in_access = 1;
	*word = value;
	in_access = 0;
	return DONE;
}

static int came_of_words(const uint64_t *found, uint64_t value, uint64_t beside)
{
	if (found[0] == value && found[1] == beside)
		return DONE;
	return found[0] || found[1] ? WRONG : GONE;
}

/* Look for ``value`` in a word, and for ``beside`` in the next one. */
static int look(volatile uint64_t *word, uint64_t value, uint64_t beside)
{
	uint64_t found[2];

	if (sigsetjmp(before_access, 1))
		return came_of_fault();
	in_access = 1;
	found[0] = word[0];
	found[1] = word[1];
	in_access = 0;
	return came_of_words(found, value, beside);
}

/* Of a race on a file; 0 unless that fails. */
static int empty_file(void)
{
	return arguments[4] < 0 ? 0 : ftruncate((int)arguments[4], 0);
}

static void *map_at(void *place, int flags)
{
	return mmap(place, (size_t)arguments[2], PROT_READ | PROT_WRITE, (int)arguments[3] | flags, (int)arguments[4], 0);
}

/* ---- processes ---- */

/* What those that race share: how many stored in this round, and in all rounds. */
struct race {
	struct meetings meetings;
	long stored, is_over, ended;
	uint64_t outcomes;
};

static void run_race(struct race *race, long number)
{
	struct meetings *meetings = &race->meetings;
	size_t length = (size_t)arguments[2];
	long mine = 0, offset = number * arguments[5], end = milliseconds(CLOCK_MONOTONIC) + arguments[1];

	for (meet(meetings, &mine); !race->is_over; meet(meetings, &mine)) {
		void *memory;

		memory = mmap(NULL, length, PROT_READ | PROT_WRITE, (int)arguments[3], (int)arguments[4], offset);
		meet(meetings, &mine);
		if (memory != MAP_FAILED && store(memory, 1) == DONE)
			__atomic_add_fetch(&race->stored, 1, __ATOMIC_SEQ_CST);
		meet(meetings, &mine);
		if (memory != MAP_FAILED)
			munmap(memory, length);
		meet(meetings, &mine);
		if (number)
			continue;
		race->outcomes |= (uint64_t)1 << race->stored;
		race->stored = 0;
		race->is_over = empty_file() || milliseconds(CLOCK_MONOTONIC) >= end;
	}
	__atomic_add_fetch(&race->ended, 1, __ATOMIC_SEQ_CST);
}

static void answer_race(void)
{
	long processes = arguments[0];
	struct race *race;
	pid_t racers[RACERS], parent = getpid();

	if (processes < 1 || processes > RACERS) {
		strcpy(answer, "malformed");
		send_answer(-1);
		return;
	}
	race = mmap(NULL, sizeof(*race), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (race == MAP_FAILED || empty_file()) {
		answer_error(errno);
		return;
	}
	race->meetings.comers = processes;
	for (long number = 0; number < processes; number++) {
		racers[number] = fork();
		if (racers[number] > 0)
			continue;
		if (racers[number] < 0) {
			int error = errno;

			for (long started = 0; started < number; started++) {
				kill(racers[started], SIGKILL);
				waitpid(racers[started], NULL, 0);
			}
			munmap(race, sizeof(*race));
			answer_error(error);
			return;
		}
		prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
		/* those that wait for one that was killed do so until here */
		alarm(MOST_SECONDS);
		if (getppid() == parent)
			run_race(race, number);
		_exit(0);
	}
	/* the kernel reaps them, and tells no status: waiting ends when they have */
	for (long number = 0; number < processes; number++)
		waitpid(racers[number], NULL, 0);
	if (race->ended == processes) {
		answer_value((long)race->outcomes);
	} else {
		strcpy(answer, "lost");
		send_answer(-1);
	}
	munmap(race, sizeof(*race));
}

/* ---- threads ---- */

/* What the threads of a clash share; ``elsewhere`` is a place that is free. */
static struct {
	struct meetings meetings;
	char deeds[RACERS], came[RACERS], *place, *elsewhere;
	long rounds, end;
	int is_over, error;
} clash;

/* Each thread stores in a word of its own, far from those of others. */
static volatile uint64_t *word_of(const char *memory, long number)
{
	return word_at((long)memory + arguments[2] / RACERS * number);
}

static int came_of(int failed)
{
	return failed ? REFUSED : DONE;
}

/* What a private copy of a file is made of. */
enum { OF_THE_FILE = 7 };

static int makes_copies(void)
{
	return memchr(clash.deeds, 'c', sizeof(clash.deeds)) != NULL;
}

static int act(char deed, long number, char **memory, uint64_t value)
{
	char *place = clash.place;
	size_t length = (size_t)arguments[2];
	int fd = (int)arguments[4], child, came;
	void *more;

	switch (deed) {
	case 't': /* touch */
		return store(word_of(place, number), value);
	case 'c': /* copy: touch what it has mapped privately of the file */
		*memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
		if (*memory == MAP_FAILED)
			return REFUSED;
		came = look(word_of(*memory, number), OF_THE_FILE, OF_THE_FILE);
		return came | store(word_of(*memory, number), value);
	case 'd': /* discard */
		return came_of(madvise(place, length, MADV_DONTNEED));
	case 'r': /* replace by another mapping */
		return came_of(map_at(place, MAP_FIXED) == MAP_FAILED);
	case 'p': /* punch out of the file */
		return came_of(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)length));
	case 'v': /* move away and back */
		return came_of(mremap(place, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, clash.elsewhere) == MAP_FAILED ||
			       mremap(clash.elsewhere, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, place) == MAP_FAILED);
	case 'w': /* forbid writes, and allow them */
		return came_of(mprotect(place, length, PROT_READ) || mprotect(place, length, PROT_READ | PROT_WRITE));
	case 'm': /* map as much again */
		more = map_at(NULL, 0);
		return came_of(more == MAP_FAILED || munmap(more, length));
	case 'k': /* fork: the child ends at once */
		child = fork();
		if (!child)
			_exit(0);
		waitpid(child, NULL, 0);
		return came_of(child < 0);
	}
	return WRONG;
}

/* Of the deeds that store. */
static int look_again(char deed, long number, char *memory, uint64_t value)
{
	if (deed == 't')
		return look(word_of(memory, number), value, 0);
	if (deed != 'c' || memory == MAP_FAILED)
		return DONE;
	return look(word_of(memory, number), value, OF_THE_FILE) |
	       look(word_of(clash.place, number), OF_THE_FILE, OF_THE_FILE);
}

/* Before a round, by one of its threads. */
static void begin_round(void)
{
	if (empty_file() || map_at(clash.place, MAP_FIXED) == MAP_FAILED) {
		clash.error = errno;
		clash.is_over = 1;
		return;
	}
	for (long number = 0; makes_copies() && number < clash.meetings.comers; number++)
		for (int beside = 0; beside < 2; beside++)
			clash.came[number] |= (char)(store(word_of(clash.place, number) + beside, OF_THE_FILE) & ~DONE);
}

static void *run_clash(void *number_of)
{
	long number = (long)number_of, mine = 0;
	char deed = clash.deeds[number];

	for (uint64_t value = RACERS + (uint64_t)number;; value += RACERS) {
		char *memory = clash.place;
		int came;

		if (!number && !clash.is_over)
			begin_round();
		meet(&clash.meetings, &mine);
		if (clash.is_over)
			return NULL;
		came = act(deed, number, &memory, value);
		meet(&clash.meetings, &mine);
		if (came == DONE)
			came = look_again(deed, number, memory, value);
		clash.came[number] |= (char)came;
		if (memory != clash.place && memory != MAP_FAILED)
			munmap(memory, (size_t)arguments[2]);
		meet(&clash.meetings, &mine);
		if (!number) {
			munmap(clash.place, (size_t)arguments[2]);
			clash.rounds++;
			clash.is_over = empty_file() || milliseconds(CLOCK_MONOTONIC) >= clash.end;
		}
	}
}

/*
 * Places where nothing else is mapped, aligned as the kernel aligns such mappings; 0 unless there are none. They stay
 * mapped: a round maps over them, and the stacks of its threads would be given the same addresses.
 */
static int find_places(void)
{
	clash.place = map_at(NULL, MAP_NORESERVE);
	if (clash.place == MAP_FAILED)
		return -1;
	clash.elsewhere = map_at(NULL, MAP_NORESERVE);
	if (clash.elsewhere != MAP_FAILED)
		return 0;
	munmap(clash.place, (size_t)arguments[2]);
	return -1;
}

static void answer_clash(void)
{
	pthread_t threads[RACERS];
	size_t deeds = buffer_sizes[0];
	long started = 1;

	if (deeds < 1 || deeds > RACERS) {
		strcpy(answer, "malformed");
		send_answer(-1);
		return;
	}
	memset(&clash, 0, sizeof(clash));
	memcpy(clash.deeds, buffers[0], deeds);
	if (find_places()) {
		answer_error(errno);
		return;
	}
	clash.end = milliseconds(CLOCK_MONOTONIC) + arguments[1];
	clash.meetings.comers = (long)deeds;
	for (; started < (long)deeds && !clash.error; started++)
		clash.error = pthread_create(&threads[started], NULL, run_clash, (void *)started);
	if (clash.error) {
		clash.is_over = 1;
		__atomic_store_n(&clash.meetings.comers, --started - 1, __ATOMIC_SEQ_CST);
	} else {
		run_clash(NULL);
	}
	for (long number = 1; number < started; number++)
		pthread_join(threads[number], NULL);
	munmap(clash.place, (size_t)arguments[2]);
	munmap(clash.elsewhere, (size_t)arguments[2]);
	if (clash.error) {
		answer_error(clash.error);
		return;
	}
	memcpy(buffers[0], clash.came, deeds);
	answer_value(clash.rounds);
}

/* ---- threads that go on while other requests are answered ---- */

enum { THREADS = 16, NAME = 32, LONGEST_SECONDS = 40 };

/* What came of a thread: how often it has done what it does, enum came, and a bit for each errno. */
struct repeated {
	uint64_t times, came, errors[3];
};

static struct repeater {
	pthread_t thread;
	void (*act)(struct repeater *repeater);
	char name[NAME];
	long arguments[ARGUMENTS], number;
	uint64_t *stored; /* by use, for each step */
	int is_over;
	struct repeated repeated;
} repeaters[THREADS];

static void repeat_call(struct repeater *repeater)
{
	struct repeated *repeated = &repeater->repeated;

	if (make_call(repeater->name, repeater->arguments) != -1) {
		repeated->came |= DONE;
		__atomic_add_fetch(&repeated->times, 1, __ATOMIC_RELAXED);
	} else {
		repeated->came |= REFUSED;
		repeated->errors[errno / 64 % 3] |= (uint64_t)1 << errno % 64;
		/* those whose work it waits for */
		sched_yield();
	}
}

/* Threads have words of their own in each line of 1 KiB. */
static void use_again(struct repeater *repeater)
{
	struct repeated *repeated = &repeater->repeated;
	unsigned long *a = (unsigned long *)repeater->arguments;

	for (unsigned long step = 0; step * a[2] < a[1]; step++) {
		volatile uint64_t *word = word_at((long)(a[0] + step * a[2]) + repeater->number * 64);
		uint64_t value = (repeated->times + 1) << 32 | step << 8 | (uint64_t)repeater->number;
		int came = repeater->stored[step] ? look(word, repeater->stored[step], 0) : DONE;

		repeated->came |= (uint64_t)came;
		if (!repeater->stored[step])
			store(word + 1, 0); /* what look() expects beside it */
		came = store(word, value);
		repeated->came |= (uint64_t)came;
		if (came == DONE)
			repeater->stored[step] = value;
	}
	__atomic_add_fetch(&repeated->times, 1, __ATOMIC_RELAXED);
}

static void look_again_at(struct repeater *repeater, int is_file)
{
	struct repeated *repeated = &repeater->repeated;
	long *a = repeater->arguments;

	for (long offset = 0; offset < a[1]; offset += a[2]) {
		uint64_t value = a[3] ? (uint64_t)(a[3] + offset) : 0, beside = a[3] ? value + sizeof(value) : 0, found[2];
		int came;

		if (is_file)
			came = pread((int)a[0], found, sizeof(found), offset) == sizeof(found) ?
				       came_of_words(found, value, beside) :
				       REFUSED;
		else
			came = look(word_at(a[0] + offset), value, beside);
		repeated->came |= (uint64_t)came;
	}
	__atomic_add_fetch(&repeated->times, 1, __ATOMIC_RELAXED);
}

static void watch_again(struct repeater *repeater)
{
	look_again_at(repeater, 0);
}

static void read_again(struct repeater *repeater)
{
	look_again_at(repeater, 1);
}

static void *run_repeater(void *of)
{
	struct repeater *repeater = of;

	while (!__atomic_load_n(&repeater->is_over, __ATOMIC_RELAXED))
		repeater->act(repeater);
	return NULL;
}

/* 0 unless there is no memory. */
static int copy_arguments(struct repeater *repeater)
{
	memcpy(repeater->arguments, arguments, sizeof(arguments));
	for (int index = 0; index < ARGUMENTS; index++) {
		void *copy = buffer_sizes[index] ? malloc(buffer_sizes[index]) : NULL;

		if (buffer_sizes[index] && !copy)
			return ENOMEM;
		if (copy)
			repeater->arguments[index] = (long)memcpy(copy, buffers[index], buffer_sizes[index]);
		buffer_sizes[index] = 0; /* and none is answered */
	}
	if (repeater->act != use_again)
		return 0;
	repeater->stored = calloc((size_t)(arguments[1] / arguments[2]) + 1, sizeof(uint64_t));
	return repeater->stored ? 0 : ENOMEM;
}

/* ``name`` is that of a system call; 0 for a verb that is none of these. */
static int answer_repeater(const char *verb, const char *name)
{
	struct repeater *repeater = &repeaters[thread_count];
	int error;

	if (thread_count == THREADS || strlen(name) >= NAME)
		return 0;
	memset(repeater, 0, sizeof(*repeater));
	strcpy(repeater->name, name);
	repeater->number = thread_count;
	if (!strcmp(verb, "repeat"))
		repeater->act = repeat_call;
	else if (arguments[2] < (long)sizeof(uint64_t))
		return 0; /* a step of 0 has no end */
	else if (!strcmp(verb, "use"))
		repeater->act = use_again;
	else if (!strcmp(verb, "watch"))
		repeater->act = watch_again;
	else if (!strcmp(verb, "reread"))
		repeater->act = read_again;
	else
		return 0;
	error = copy_arguments(repeater);
	if (!error)
		error = pthread_create(&repeater->thread, NULL, run_repeater, repeater);
	if (error) {
		answer_error(error);
	} else {
		answer_value(thread_count++);
	}
	return 1;
}

/* Whether each has done what it does. */
static int all_have_acted(void)
{
	for (int number = 0; number < thread_count; number++)
		if (!__atomic_load_n(&repeaters[number].repeated.times, __ATOMIC_RELAXED))
			return 0;
	return 1;
}

static void end_repeaters(int of_calls)
{
	struct timespec latest;

	for (int number = 0; number < thread_count; number++)
		if ((repeaters[number].act == repeat_call) == of_calls)
			__atomic_store_n(&repeaters[number].is_over, 1, __ATOMIC_RELAXED);
	clock_gettime(CLOCK_REALTIME, &latest);
	latest.tv_sec += LONGEST_SECONDS;
	for (int number = 0; number < thread_count; number++)
		if ((repeaters[number].act == repeat_call) == of_calls &&
		    pthread_timedjoin_np(repeaters[number].thread, NULL, &latest))
			repeaters[number].repeated.came |= STUCK;
}

static void answer_stop(void)
{
	struct timespec moment = {0, 1000000};
	long begin = milliseconds(CLOCK_MONOTONIC), end = begin + arguments[0];

	while (milliseconds(CLOCK_MONOTONIC) < end ||
	       (!all_have_acted() && milliseconds(CLOCK_MONOTONIC) < begin + 1000 * LONGEST_SECONDS))
		nanosleep(&moment, NULL);
	/* an access may wait for what the calls of others do */
	end_repeaters(0);
	end_repeaters(1);
	for (int number = 0; number < thread_count; number++)
		memcpy(buffers[0] + number * (int)sizeof(struct repeated), &repeaters[number].repeated,
		       sizeof(struct repeated));
	buffer_sizes[0] = (size_t)thread_count * sizeof(struct repeated);
	thread_count = 0;
	answer_value(0);
}

static void serve(ssize_t length)
{
	char *rest, *verb, *name = NULL;

	request[length] = 0;
	verb = strtok_r(request, " ", &rest);
	if (verb && (!strcmp(verb, "call") || !strcmp(verb, "repeat")))
		name = strtok_r(NULL, " ", &rest);
	if (!verb || parse_arguments(&rest) < 0) {
		strcpy(answer, "malformed");
		send_answer(-1);
	} else if (name && !strcmp(verb, "call")) {
		answer_call(name);
	} else if (!strcmp(verb, "fork")) {
		answer_fork();
	} else if (!strcmp(verb, "exec")) {
		answer_exec();
	} else if (!strcmp(verb, "wake")) {
		answer_wake();
	} else if (!strcmp(verb, "malloc")) {
		answer_malloc();
	} else if (!strcmp(verb, "free")) {
		answer_free();
	} else if (!strcmp(verb, "libc")) {
		answer_libc();
	} else if (!strcmp(verb, "compute")) {
		answer_compute();
	} else if (!strcmp(verb, "race")) {
		answer_race();
	} else if (!strcmp(verb, "clash")) {
		answer_clash();
	} else if (!strcmp(verb, "stop")) {
		answer_stop();
	} else if (answer_repeater(verb, name ? name : "")) {
		return;
	} else if (!(strcmp(verb, "discard") ? access_memory(verb) : answer_discard())) {
		strcpy(answer, "malformed");
		send_answer(-1);
	}
}

int main(int count, char **words)
{
	struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
	ssize_t length;

	/* whoever started us may be gone already: then our parent is another */
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	if (count < 2 || getppid() != atoi(words[1]))
		return 1;
	signal(SIGCHLD, SIG_IGN); /* nobody waits for a forked actor */
	sigaction(SIGBUS, &action, NULL);
	sigaction(SIGSEGV, &action, NULL);
	if (count > 2)
		answer_value(wrong_arguments(count - 3, words + 3, atol(words[2])));
	while ((length = recv(channel, request, PACKET, 0)) > 0)
		serve(length);
	return 0;
}
