/* The arguments of a request to the actor, and how it is answered (actor.c says what both look like). */
#define _GNU_SOURCE
#include "actor.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

long arguments[ARGUMENTS];
size_t buffer_sizes[ARGUMENTS];
char buffers[ARGUMENTS][PACKET / 2] __attribute__((aligned(16)));
const char *call_name;

static char answer[PACKET];

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

int parse_arguments(char **rest)
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
	if (sendmsg(STDIN_FILENO, &message, MSG_NOSIGNAL) < 0)
		_exit(1);
}

/* Answers what stands in answer up to `at`, and the buffers as the call left them. */
static void answer_with_buffers(int at)
{
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

void answer_value(long value)
{
	answer_with_buffers(snprintf(answer, sizeof(answer), "ok %ld", value));
}

void answer_refused_call(int error)
{
	answer_with_buffers(snprintf(answer, sizeof(answer), "errno %d", error));
}

void answer_text(int descriptor, const char *format, ...)
{
	va_list values;

	va_start(values, format);
	vsnprintf(answer, sizeof(answer), format, values);
	va_end(values);
	send_answer(descriptor);
}

void answer_error(int error)
{
	answer_text(-1, "errno %d", error);
}

void answer_malformed(void)
{
	answer_text(-1, "malformed");
}
