/* Processes that race: what many do at the same moment, again and again, to the same pages. */
#define _GNU_SOURCE
#include "actor.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_SECONDS = 240 };

/* As nearly at the same moment as their processors allow: nobody has to be woken. */
void meet(struct meetings *meetings, long *mine)
{
	++*mine;
	__atomic_add_fetch(&meetings->come, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&meetings->come, __ATOMIC_SEQ_CST) <
	       *mine * __atomic_load_n(&meetings->comers, __ATOMIC_SEQ_CST))
		sched_yield();
}

int empty_file(void)
{
	return arguments[4] < 0 ? 0 : ftruncate((int)arguments[4], 0);
}

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

/* The first of them gives the pages back that all have attached, in every other round. */
static int is_fresh(void *memory, long number, long round)
{
	return number || round % 2 || !madvise(memory, (size_t)arguments[2], MADV_REMOVE);
}

static void run_attachments(struct race *race, long number)
{
	struct meetings *meetings = &race->meetings;
	long mine = 0, round = 0, end = milliseconds(CLOCK_MONOTONIC) + arguments[1];

	for (meet(meetings, &mine); !race->is_over; meet(meetings, &mine), round++) {
		void *memory = shmat((int)arguments[3], NULL, 0);
		uint64_t words[] = {(uint64_t)memory, (uint64_t)arguments[2], (uint64_t)arguments[5], (uint64_t)round + 1};
		int is_good = memory != (void *)-1;

		meet(meetings, &mine);
		is_good = is_good && is_fresh(memory, number, round);
		meet(meetings, &mine);
		is_good = is_good && fill_words(words) == DONE;
		meet(meetings, &mine);
		is_good = is_good && check_words(words) == DONE;
		meet(meetings, &mine);
		if (memory != (void *)-1)
			is_good = !shmdt(memory) && is_good;
		__atomic_add_fetch(&race->stored, is_good, __ATOMIC_SEQ_CST);
		meet(meetings, &mine);
		if (number)
			continue;
		race->outcomes |= (uint64_t)1 << race->stored;
		race->stored = 0;
		race->is_over = milliseconds(CLOCK_MONOTONIC) >= end;
	}
	if (shmat((int)arguments[3], NULL, 0) != (void *)-1)
		__atomic_add_fetch(&race->ended, 1, __ATOMIC_SEQ_CST);
	meet(meetings, &mine);
}

/* Have new processes run, and wait until all have ended. An errno where they cannot be made: then none is left. */
static int fork_racers(struct race *race, long processes, void (*run)(struct race *race, long number))
{
	pid_t racers[RACERS], parent = getpid();

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
			return error;
		}
		prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
		/* those that wait for one that was killed do so until here */
		alarm(MOST_SECONDS);
		if (getppid() == parent)
			run(race, number);
		_exit(0);
	}
	/* the kernel reaps them, and tells no status: waiting ends when they have */
	for (long number = 0; number < processes; number++)
		waitpid(racers[number], NULL, 0);
	return 0;
}

static void answer_race_of(void (*run)(struct race *race, long number))
{
	long processes = arguments[0];
	struct race *race;
	int error;

	if (processes < 1 || processes > RACERS)
		return answer_malformed();
	race = mmap(NULL, sizeof(*race), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (race == MAP_FAILED || empty_file())
		return answer_error(errno);
	race->meetings.comers = processes;
	error = fork_racers(race, processes, run);
	if (error)
		answer_error(error);
	else if (race->ended == processes)
		answer_value((long)race->outcomes);
	else
		answer_text(-1, "lost");
	munmap(race, sizeof(*race));
}

void answer_race(void)
{
	answer_race_of(run_race);
}

void answer_attach(void)
{
	answer_race_of(run_attachments);
}

/* What a thread of a process that touches memory first knows. */
struct toucher {
	struct race *race;
	long number;
};

static volatile uint64_t *word_of(long number)
{
	return word_at(arguments[2]) + 2 * number; /* look() looks at the next one, too */
}

static void *touch_first(void *of)
{
	struct toucher *toucher = of;
	struct meetings *meetings = &toucher->race->meetings;
	uint64_t value = (uint64_t)arguments[5];
	long mine = 0;
	int came;

	meet(meetings, &mine);
	came = value ? store(word_of(toucher->number), value) : look(word_of(toucher->number), 0, 0);
	meet(meetings, &mine);
	/* what is shared has the words of all */
	for (long number = 0; value && arguments[3] && number < meetings->comers; number++)
		came |= look(word_of(number), value, 0);
	__atomic_or_fetch(&toucher->race->outcomes, (uint64_t)came, __ATOMIC_SEQ_CST);
	return NULL;
}

static void run_touchers(struct race *race, long number)
{
	struct toucher one = {race, 2 * number}, other = {race, 2 * number + 1};
	pthread_t thread;

	if (pthread_create(&thread, NULL, touch_first, &other))
		return; /* the others wait for it, and are lost */
	touch_first(&one);
	pthread_join(thread, NULL);
	__atomic_add_fetch(&race->ended, 1, __ATOMIC_SEQ_CST);
}

/* Have nobody have touched it; 0 unless that fails. */
static int make_untouched(void)
{
	if (arguments[3] && madvise((void *)arguments[2], (size_t)arguments[3], MADV_REMOVE))
		return -1;
	return arguments[4] >= 0 && pwrite((int)arguments[4], "2", 1, 0) != 1;
}

void answer_first(void)
{
	long processes = arguments[0], end = milliseconds(CLOCK_MONOTONIC) + arguments[1], rounds = 0;
	struct race *race;
	int error = 0;

	if (processes < 1 || processes > RACERS / 2)
		return answer_malformed();
	race = mmap(NULL, sizeof(*race), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (race == MAP_FAILED)
		return answer_error(errno);
	do {
		race->meetings = (struct meetings){.comers = 2 * processes};
		race->ended = 0;
		error = make_untouched() ? errno : fork_racers(race, processes, run_touchers);
		rounds++;
	} while (!error && race->ended == processes && milliseconds(CLOCK_MONOTONIC) < end);
	if (error)
		answer_error(error);
	else if (race->ended == processes)
		answer_text(-1, "ok %ld %ld", rounds, (long)race->outcomes);
	else
		answer_text(-1, "lost");
	munmap(race, sizeof(*race));
}
