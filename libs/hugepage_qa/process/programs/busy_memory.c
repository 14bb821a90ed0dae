/*
 * A guest that is busy in its memory: a program that writes and checks memory of its own, round after round.
 *
 *   busy-memory start [BYTES] go on in the background, once all of the memory was written: two thirds of what is free,
 *                             or 128 MiB, of which an emulated guest writes 100 in a second
 *   busy-memory await ROUNDS  wait until so many further rounds have ended, and print "right", or what was wrong
 *
 * A round finds in the first word of each cache line what the round before it has left there, and leaves another one.
 * Whatever happens to the memory while a round runs is seen by the end of the next one: a second round is enough for
 * what has happened before. Both fail when the program has ended by itself.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LINE 64
#define MOST ((size_t)128 << 20)
#define PAUSE 10000 /* in microseconds */

/* in the directory that it is started in */
static const char state_file[] = "busy-memory.state";

static struct state {
	volatile uint64_t rounds, wrong;
	uint64_t offset, expected, found; /* of the first word that was wrong */
} *state;

static int failed(const char *what)
{
	printf("%s: %s\n", what, strerror(errno));
	return 1;
}

static int map_state(int flags)
{
	int descriptor = open(state_file, O_RDWR | O_CLOEXEC | flags, 0600);

	if (descriptor < 0 || ((flags & O_CREAT) && ftruncate(descriptor, sizeof(*state))))
		return -1;
	state = mmap(NULL, sizeof(*state), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
	return state == MAP_FAILED ? -1 : descriptor;
}

/* The program locks its state as long as it lives: a process id would outlive it where nobody waits for its end. */
static int lives(int descriptor)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

	return !fcntl(descriptor, F_GETLK, &lock) && lock.l_type != F_UNLCK;
}

static int await_rounds(int descriptor, uint64_t rounds)
{
	while (state->rounds < rounds) {
		if (!lives(descriptor)) {
			puts("ended by itself");
			return 1;
		}
		usleep(PAUSE);
	}
	return 0;
}

/* No two words of one round are alike, and none is like its neighbours in the rounds around it. */
static uint64_t word(uint64_t line, uint64_t round)
{
	return (round << 40) ^ (line * 0x9e3779b97f4a7c15u);
}

static void note_wrong(uint64_t offset, uint64_t expected, uint64_t found)
{
	if (!state->wrong) {
		state->offset = offset;
		state->expected = expected;
		state->found = found;
	}
	state->wrong++;
}

static void be_busy(volatile uint64_t *memory, size_t size)
{
	size_t lines = size / LINE;

	for (uint64_t round = 1;; round++) {
		for (size_t line = 0; line < lines; line++) {
			volatile uint64_t *at = memory + line * (LINE / sizeof(*memory));
			uint64_t found = *at, expected = round == 1 ? 0 : word(line, round - 1);

			if (found != expected)
				note_wrong(line * LINE, expected, found);
			*at = word(line, round);
		}
		state->rounds = round;
	}
}

static size_t two_thirds_of_what_is_free(void)
{
	size_t size = (size_t)sysconf(_SC_AVPHYS_PAGES) / 3 * 2 * (size_t)sysconf(_SC_PAGESIZE);

	return size < MOST ? size : MOST;
}

static int start(size_t size)
{
	int descriptor = map_state(O_CREAT | O_TRUNC), locked[2];
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	void *memory;
	char byte;
	int pid;

	if (descriptor < 0)
		return failed(state_file);
	memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED || pipe(locked))
		return failed("memory");
	/* where the guest has none its faults are just slower */
	madvise(memory, size, MADV_HUGEPAGE);
	pid = fork();
	if (!pid) {
		setsid();
		/* the shell reads on, and takes no signal for it */
		if (fcntl(descriptor, F_SETLK, &lock) || write(locked[1], "", 1) != 1)
			_exit(1);
		close(locked[0]);
		close(locked[1]);
		close(STDIN_FILENO);
		close(STDOUT_FILENO);
		close(STDERR_FILENO);
		be_busy(memory, size);
	}
	close(locked[1]);
	if (pid < 0 || read(locked[0], &byte, 1) != 1)
		return failed("start");
	return await_rounds(descriptor, 1);
}

static int await(uint64_t rounds)
{
	int descriptor = map_state(0);

	if (descriptor < 0)
		return failed(state_file);
	if (await_rounds(descriptor, state->rounds + rounds))
		return 1;
	if (!state->wrong)
		puts("right");
	else
		printf("%llu words are wrong, the first at %#llx: %#llx instead of %#llx\n",
		       (unsigned long long)state->wrong, (unsigned long long)state->offset,
		       (unsigned long long)state->found, (unsigned long long)state->expected);
	return 0;
}

int main(int count, char **words)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (count == 2 && !strcmp(words[1], "start"))
		return start(two_thirds_of_what_is_free());
	if (count == 3 && !strcmp(words[1], "start"))
		return start(strtoull(words[2], NULL, 10));
	if (count == 3 && !strcmp(words[1], "await"))
		return await(strtoull(words[2], NULL, 10));
	fputs("expected: start [BYTES], or await ROUNDS\n", stderr);
	return 2;
}
