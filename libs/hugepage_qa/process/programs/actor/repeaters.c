/* Threads of the actor that go on while it answers other requests, until stop. */
#define _GNU_SOURCE
#include "actor.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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
	int may_never_be_done, is_mover, is_over;
	struct repeated repeated;
} repeaters[THREADS];
static int thread_count;

void forget_repeaters(void)
{
	thread_count = 0;
}

static void repeat_call(struct repeater *repeater)
{
	struct repeated *repeated = &repeater->repeated;
	int is_done = make_call(repeater->name, repeater->arguments) != -1;

	if (is_done) {
		repeated->came |= DONE;
	} else {
		repeated->came |= REFUSED;
		repeated->errors[errno / 64 % 3] |= (uint64_t)1 << errno % 64;
		/* those whose work it waits for */
		sched_yield();
	}
	if (is_done && repeater->is_mover) { /* and back the next time */
		long *a = repeater->arguments, from = a[0];

		a[0] = a[4];
		a[4] = from;
	}
	if (is_done || repeater->may_never_be_done)
		__atomic_add_fetch(&repeated->times, 1, __ATOMIC_RELAXED);
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

static const struct {
	const char *verb;
	void (*act)(struct repeater *repeater);
} acts[] = {{"repeat", repeat_call}, {"attempt", repeat_call}, {"shuttle", repeat_call}, {"use", use_again},
	    {"watch", watch_again}, {"reread", read_again}};

int answer_repeater(const char *verb)
{
	struct repeater *repeater = &repeaters[thread_count];
	size_t index = 0;
	int error;

	while (strcmp(verb, acts[index].verb))
		if (++index == sizeof(acts) / sizeof(*acts))
			return 0;
	if (thread_count == THREADS || strlen(call_name) >= NAME)
		return 0;
	if (acts[index].act != repeat_call && arguments[2] < (long)sizeof(uint64_t))
		return 0; /* a step of 0 has no end */
	memset(repeater, 0, sizeof(*repeater));
	repeater->act = acts[index].act;
	repeater->may_never_be_done = strcmp(verb, "repeat") != 0;
	repeater->is_mover = !strcmp(verb, "shuttle");
	strcpy(repeater->name, call_name);
	repeater->number = thread_count;
	error = copy_arguments(repeater);
	if (!error)
		error = pthread_create(&repeater->thread, NULL, run_repeater, repeater);
	if (error)
		answer_error(error);
	else
		answer_value(thread_count++);
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

void answer_stop(void)
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
