/* Threads that clash: what many do at the same moment, again and again, to the same pages. */
#define _GNU_SOURCE
#include "actor.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static void *map_at(void *place, int flags)
{
	return mmap(place, (size_t)arguments[2], PROT_READ | PROT_WRITE, (int)arguments[3] | flags, (int)arguments[4], 0);
}

/* What the threads of a clash share; ``elsewhere`` is a place that is free. */
static struct {
	struct meetings meetings;
	char actions[RACERS], came[RACERS], *place, *elsewhere;
	long rounds, end;
	int is_over, error;
} clash;

/*
 * Each thread stores in a word of its own, far from those of others; in memory that is aligned to its length these are
 * in all of it, and the threads take turns.
 */
static volatile uint64_t *word_of(const char *memory, long number)
{
	long parts = arguments[5] ? clash.meetings.comers : RACERS;

	if (arguments[5])
		number = (number + clash.rounds) % parts;
	return word_at((long)memory + arguments[2] / parts * number);
}

static int came_of(int failed)
{
	return failed ? REFUSED : DONE;
}

/* What a private copy of a file is made of. */
enum { OF_THE_FILE = 7 };

static int makes_copies(void)
{
	return memchr(clash.actions, 'c', sizeof(clash.actions)) != NULL;
}

/* Read a word that nobody has stored to, and write it, by system calls. */
static int copy_to(volatile uint64_t *word, uint64_t value)
{
	uint64_t found;
	struct iovec here = {&found, sizeof(found)}, there = {(void *)word, sizeof(found)};

	if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) != sizeof(found))
		return REFUSED;
	if (found)
		return WRONG;
	found = value;
	return came_of(process_vm_writev(getpid(), &here, 1, &there, 1, 0) != sizeof(found));
}

static int act(char action, long number, char **memory, uint64_t value)
{
	char *place = clash.place;
	size_t length = (size_t)arguments[2];
	int fd = (int)arguments[4], child, came;
	void *more;

	switch (action) {
	case 't': /* touch */
		return store(word_of(place, number), value);
	case 'l': /* look at what nobody has stored to, and touch it */
		return look(word_of(place, number), 0, 0) | store(word_of(place, number), value);
	case 'o': /* the same from outside, as another process does */
		return copy_to(word_of(place, number), value);
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

/* A processor that still has a page that was replaced finds its own word there: the others tell. */
static int look_at_all(uint64_t first_value)
{
	int came = 0;

	for (long word = 0; word < clash.meetings.comers; word++)
		came |= look(word_of(clash.place, word), first_value + (uint64_t)word, 0);
	return came;
}

/* Of the actions that store. */
static int look_again(char action, long number, char *memory, uint64_t value)
{
	int came;

	if (arguments[5])
		return look_at_all(value - (uint64_t)number);
	if (memchr("tlo", action, 3))
		return look(word_of(memory, number), value, 0);
	if (action != 'c' || memory == MAP_FAILED)
		return DONE;
	came = look(word_of(clash.place, number), OF_THE_FILE, OF_THE_FILE);
	/* who got the page of another one's copy has its word, too */
	for (long word = 0; word < clash.meetings.comers; word++)
		came |= look(word_of(memory, word), word == number ? value : OF_THE_FILE, OF_THE_FILE);
	return came;
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
	char action = clash.actions[number];

	for (uint64_t value = RACERS + (uint64_t)number;; value += RACERS) {
		char *memory = clash.place;
		int came;

		if (!number && !clash.is_over)
			begin_round();
		meet(&clash.meetings, &mine);
		if (clash.is_over)
			return NULL;
		came = act(action, number, &memory, value);
		meet(&clash.meetings, &mine);
		if (came == DONE)
			came = look_again(action, number, memory, value);
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

/* A place that begins at a multiple of its length. */
static char *map_aligned(void)
{
	size_t length = (size_t)arguments[2], before;
	char *room = mmap(NULL, 2 * length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (room == MAP_FAILED)
		return room;
	before = (length - (size_t)room % length) % length;
	if (before)
		munmap(room, before);
	munmap(room + before + length, length - before);
	return room + before;
}

/*
 * Places where nothing else is mapped, aligned as the kernel aligns such mappings, or to their length; 0 unless there
 * are none. They stay mapped: a round maps over them, and the stacks of its threads would be given the same addresses.
 */
static int find_places(void)
{
	clash.place = arguments[5] ? map_aligned() : map_at(NULL, MAP_NORESERVE);
	if (clash.place == MAP_FAILED)
		return -1;
	clash.elsewhere = map_at(NULL, MAP_NORESERVE);
	if (clash.elsewhere != MAP_FAILED)
		return 0;
	munmap(clash.place, (size_t)arguments[2]);
	return -1;
}

void answer_clash(void)
{
	pthread_t threads[RACERS];
	size_t actions = buffer_sizes[0];
	long started = 1;

	if (actions < 1 || actions > RACERS)
		return answer_malformed();
	memset(&clash, 0, sizeof(clash));
	memcpy(clash.actions, buffers[0], actions);
	if (find_places())
		return answer_error(errno);
	clash.end = milliseconds(CLOCK_MONOTONIC) + arguments[1];
	clash.meetings.comers = (long)actions;
	for (; started < (long)actions && !clash.error; started++)
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
	if (clash.error)
		return answer_error(clash.error);
	memcpy(buffers[0], clash.came, actions);
	answer_value(clash.rounds);
}
