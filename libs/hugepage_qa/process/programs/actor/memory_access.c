/* Accesses to memory. What ends one of them is an answer of the actor, and not its end. */
#define _GNU_SOURCE
#include "actor.h"

#include <setjmp.h>
#include <signal.h>
#include <string.h>

static __thread sigjmp_buf before_access;
static __thread volatile sig_atomic_t in_access;
static __thread volatile siginfo_t fault;
/* that memory is broken, told without an access */
static volatile siginfo_t broken;

static void on_fault(int number, siginfo_t *info, void *context)
{
	(void)context;
	/* told that a page is broken, and not at an access: madvise(MADV_HWPOISON) itself tells its caller */
	if (number == SIGBUS && !in_access && (info->si_code == BUS_MCEERR_AO || info->si_code == BUS_MCEERR_AR)) {
		memcpy((void *)&broken, info, sizeof(broken));
		return;
	}
	if (!in_access) {
		signal(number, SIG_DFL);
		return;
	}
	memcpy((void *)&fault, info, sizeof(fault));
	siglongjmp(before_access, 1);
}

void catch_faults(void)
{
	struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};

	sigaction(SIGBUS, &action, NULL);
	sigaction(SIGSEGV, &action, NULL);
}

static void answer_signal(const volatile siginfo_t *info)
{
	/* elsewhere the bytes of si_addr_lsb are not set */
	int is_broken = info->si_code == BUS_MCEERR_AO || info->si_code == BUS_MCEERR_AR;

	answer_text(-1, "signal %d %d %lu %d", info->si_signo, info->si_code, (unsigned long)info->si_addr,
		    info->si_signo == SIGBUS && is_broken ? info->si_addr_lsb : 0);
}

void answer_broken(void)
{
	if (broken.si_signo)
		answer_signal(&broken);
	else
		answer_value(0);
	broken.si_signo = 0;
}

/* of a base page the first word is looked at, the last, and each other place in one of its lines */
static unsigned long place_in(unsigned long offset, unsigned long step)
{
	enum { LINE = 64, WORDS = LINE / sizeof(uint64_t) };

	return step == LINE ? offset + offset / LINE % WORDS * sizeof(uint64_t) : offset;
}

/* ---- what is asked for ---- */

static long load_word(const uint64_t *a)
{
	return (long)*word_at((long)a[0]);
}

static long store_word(const uint64_t *a)
{
	*word_at((long)a[0]) = a[1];
	return 0;
}

static long fill(const uint64_t *a)
{
	uint64_t address = a[0], length = a[1], step = a[2], value = a[3];

	for (uint64_t offset = 0; offset < length; offset += step) {
		uint64_t place = place_in(offset, step);

		*word_at((long)(address + place)) = value + place;
	}
	return 0;
}

static long check(const uint64_t *a)
{
	uint64_t address = a[0], length = a[1], step = a[2], value = a[3];
	long wrong = 0;

	for (uint64_t offset = 0; offset < length; offset += step) {
		uint64_t place = place_in(offset, step);

		wrong += *word_at((long)(address + place)) != value + place;
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

static long nonzero_everywhere(long address, unsigned long length)
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

static long nonzero(const uint64_t *a)
{
	return a[2] ? nonzero_at((long)a[0], a[1], a[2]) : nonzero_everywhere((long)a[0], a[1]);
}

/* A program of text_program_build.py has pages of code, the first of which this is; the actor alone has none. */
extern uint64_t text_page_0(void) __attribute__((weak));

static long text(const uint64_t *a)
{
	(void)a;
	return (long)text_page_0;
}

static long run(const uint64_t *a)
{
	long wrong = 0;

	for (unsigned long number = 0; number < a[1]; number++)
		wrong += ((uint64_t(*)(void))(a[0] + number * a[2]))() != number;
	return wrong;
}

static long sum(const uint64_t *a)
{
	const unsigned char *bytes = (const unsigned char *)a[0];
	const unsigned long modulus = 65521, chunk = 4096; /* so many bytes do not overflow */
	unsigned long length = a[1], low = 1, high = 0;

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

static long tag(const uint64_t *a)
{
	for (uint64_t offset = 0; offset < a[1]; offset += GRANULE) {
		register uint64_t place __asm__("x0") = (a[0] + offset) | a[2] << TAG_SHIFT;

		/* stg x0, [x0]: assemblers know it if they are told of a processor with it */
		__asm__ volatile(".inst 0xd9200800" : : "r"(place) : "memory");
	}
	return 0;
}
#endif

static const struct access {
	const char *verb;
	long (*act)(const uint64_t *a);
	int has_steps;
} accesses[] = {
	{"load", load_word, 0},	 {"store", store_word, 0}, {"fill", fill, 1}, {"check", check, 1},
	{"nonzero", nonzero, 0}, {"text", text, 0},	   {"run", run, 0},   {"sum", sum, 0},
#ifdef __aarch64__
	{"tag", tag, 0},
#endif
};

static const struct access *find_access(const char *verb)
{
	for (size_t index = 0; index < sizeof(accesses) / sizeof(*accesses); index++)
		if (!strcmp(verb, accesses[index].verb))
			return &accesses[index];
	return NULL;
}

int answer_access(const char *verb)
{
	const struct access *const access = find_access(verb);
	long value;

	if (!access || (access->has_steps && !arguments[2]))
		return 0; /* a step of 0 has no end */
	if (sigsetjmp(before_access, 1)) {
		in_access = 0;
		answer_signal(&fault);
		return 1;
	}
	in_access = 1;
	value = access->act((const uint64_t *)arguments);
	in_access = 0;
	answer_value(value);
	return 1;
}

/* ---- what others of the actor do, and what came of it ---- */

static int came_of_fault(void)
{
	in_access = 0;
	return fault.si_signo == SIGBUS ? BUS : SEGV;
}

int store(volatile uint64_t *word, uint64_t value)
{
	if (sigsetjmp(before_access, 1))
		return came_of_fault();
	in_access = 1;
	*word = value;
	in_access = 0;
	return DONE;
}

int fill_words(const uint64_t *a)
{
	if (sigsetjmp(before_access, 1))
		return came_of_fault();
	in_access = 1;
	fill(a);
	in_access = 0;
	return DONE;
}

int check_words(const uint64_t *a)
{
	long wrong;

	if (sigsetjmp(before_access, 1))
		return came_of_fault();
	in_access = 1;
	wrong = check(a);
	in_access = 0;
	return wrong ? WRONG : DONE;
}

int came_of_words(const uint64_t *found, uint64_t value, uint64_t beside)
{
	if (found[0] == value && found[1] == beside)
		return DONE;
	return found[0] || found[1] ? WRONG : GONE;
}

int look(volatile uint64_t *word, uint64_t value, uint64_t beside)
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

