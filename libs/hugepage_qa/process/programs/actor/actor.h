/* What the parts of the actor know of each other. */
#ifndef ACTOR_H
#define ACTOR_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* ---- requests.c: the arguments of the request that is served, and its answer ---- */

enum { PACKET = 65536, ARGUMENTS = 6 };

extern long arguments[ARGUMENTS];
extern size_t buffer_sizes[ARGUMENTS]; /* 0: a number */
extern char buffers[ARGUMENTS][PACKET / 2];
extern const char *call_name; /* of a request that makes a system call */

/* The number of arguments, -1 for what is none. */
int parse_arguments(char **rest);
void answer_value(long value);
void answer_error(int error);
void answer_refused_call(int error);
/* ``descriptor`` goes with it, unless it is -1. */
void answer_text(int descriptor, const char *format, ...) __attribute__((format(printf, 2, 3)));
void answer_malformed(void);

/* ---- memory_access.c: accesses whose SIGBUS or SIGSEGV is an answer ---- */

/* What comes of an action. */
enum came {
	DONE = 1,     /* and what was stored, if anything, is there afterwards */
	GONE = 2,     /* it was stored, and afterwards there are zeroes */
	WRONG = 4,    /* there is something else, or beside it, or where a copy was made of it */
	BUS = 8,      /* an access ended in SIGBUS */
	SEGV = 16,    /* ... in SIGSEGV */
	REFUSED = 32, /* a system call failed */
	STUCK = 64,   /* it does not come back */
};

void catch_faults(void);
/* 0 for a verb that accesses no memory. */
int answer_access(const char *verb);
void answer_broken(void);
int store(volatile uint64_t *word, uint64_t value);
/* As the requests of these names, with their arguments; what check_words() finds may be WRONG. */
int fill_words(const uint64_t *a);
int check_words(const uint64_t *a);
/* Look for ``value`` in a word, and for ``beside`` in the next one. */
int look(volatile uint64_t *word, uint64_t value, uint64_t beside);
int came_of_words(const uint64_t *found, uint64_t value, uint64_t beside);

static inline volatile uint64_t *word_at(long address)
{
	return (volatile uint64_t *)address;
}

/* ---- calls.c: of the kernel and of the C library ---- */

long make_call(const char *name, const long *a);
long milliseconds(clockid_t clock);
void answer_call(void);
void answer_late_store(void);
void answer_soft_dirty(void);
void answer_discard(void);
void answer_compute(void);
void answer_wake(void);
void answer_malloc(void);
void answer_free(void);
void answer_libc(void);

/* ---- processes.c: new ones, and new programs ---- */

void answer_fork(void);
void answer_exec(void);
/* How many of the arguments that exec gave this program are not as they were. */
long wrong_arguments(long count, char **words, long length);

/* ---- race.c: processes that do something at the same moment, again and again ---- */

enum { RACERS = 32 };

/* How many come to each meeting, and how often one has come. */
struct meetings {
	long comers, come;
};

/* Go on when all have come. */
void meet(struct meetings *meetings, long *mine);
/* That of the request, if it has one; 0 unless that fails. */
int empty_file(void);
void answer_race(void);
void answer_attach(void);
void answer_first(void);

/* ---- same_moment.c: threads that do so ---- */

void answer_clash(void);

/* ---- repeaters.c: threads that go on while other requests are answered ---- */

/* 0 for a verb that starts no such thread. */
int answer_repeater(const char *verb);
void answer_stop(void);
/* A forked child has none of them. */
void forget_repeaters(void);

#endif
