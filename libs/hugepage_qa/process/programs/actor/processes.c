/* New processes of the actor, and its program begun anew in the same one. */
#define _GNU_SOURCE
#include "actor.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

void answer_fork(void)
{
	int ends[2];
	pid_t child;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
		return answer_error(errno);
	child = fork();
	if (child == 0) {
		forget_repeaters();
		close(ends[0]);
		dup2(ends[1], STDIN_FILENO);
		close(ends[1]);
		return;
	}
	close(ends[1]);
	if (child < 0) {
		int error = errno;

		close(ends[0]);
		return answer_error(error);
	}
	answer_text(ends[0], "ok %d", (int)child);
	close(ends[0]);
}

/* What an argument of a program has at each place. */
static char letter_of(long argument, long place)
{
	return (char)('!' + (argument * 7 + place) % ('~' - '!'));
}

long wrong_arguments(long count, char **words, long length)
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
void answer_exec(void)
{
	enum { FIRST = 3 };
	char parent[16], size[24], *variables[] = {buffers[0], NULL};
	long count = arguments[1], length = arguments[2];
	char **words = calloc((size_t)count + FIRST + 1, sizeof(*words)), *text = malloc((size_t)(count * (length + 1)));

	if (!words || !text)
		return answer_error(ENOMEM);
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
