/* Requests to the agent and its answers, in frames (agent.c says what they look like). */
#define _GNU_SOURCE
#include "agent.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int channel = -1;

static char *output; /* answers that are not sent yet, */
static size_t output_size, output_room, reply_at; /* and where the last of them begins */

void *grown(void *block, size_t size)
{
	block = realloc(block, size);
	if (!block)
		_exit(2);
	return block;
}

static void put(const void *bytes, size_t size)
{
	if (output_size + size > output_room)
		output = grown(output, output_room = 2 * (output_size + size));
	memcpy(output + output_size, bytes, size);
	output_size += size;
}

void begin_answer(char letter)
{
	static const uint32_t room_for_length;

	reply_at = output_size;
	put(&room_for_length, sizeof(room_for_length));
	put(&letter, 1);
}

void put_field(const void *bytes, size_t size)
{
	uint32_t length = htonl((uint32_t)size);

	put(&length, sizeof(length));
	put(bytes, size);
}

void put_number(long long number)
{
	char text[32];

	put_field(text, (size_t)snprintf(text, sizeof(text), "%lld", number));
}

void end_answer(void)
{
	uint32_t length = htonl((uint32_t)(output_size - reply_at - sizeof(length)));

	memcpy(output + reply_at, &length, sizeof(length));
}

void drop_answer(void)
{
	output_size = reply_at;
}

void send_answers(void)
{
	for (size_t sent = 0; sent < output_size;) {
		ssize_t now = write(channel, output + sent, output_size - sent);

		if (now < 0 && errno != EINTR && errno != EAGAIN)
			_exit(3);
		sent += now > 0 ? (size_t)now : 0;
	}
	output_size = 0;
}

static char input[PACKET];
static size_t input_at, input_size;

static int receive_bytes(void *start, size_t size)
{
	for (char *to = start, *stop = to + size; to < stop;) {
		size_t part = input_size - input_at;

		if (!part) {
			ssize_t now;

			/* the other side gets all answers at once: each write is an interrupt for an emulator */
			send_answers();
			now = read(channel, input, sizeof(input));
			if (now == 0 || (now < 0 && errno != EINTR && errno != EAGAIN))
				return 0;
			input_at = 0;
			input_size = now > 0 ? (size_t)now : 0;
			continue;
		}
		part = part < (size_t)(stop - to) ? part : (size_t)(stop - to);
		memcpy(to, input + input_at, part);
		input_at += part;
		to += part;
	}
	return 1;
}

static char *request;
char *fields[FIELDS];
size_t field_sizes[FIELDS];

char receive(void)
{
	static size_t room;
	uint32_t length, size;
	size_t at = 1;

	if (!receive_bytes(&length, sizeof(length)) || !(length = ntohl(length)) || length > LARGEST)
		return 0;
	if (room < length + 1)
		request = grown(request, room = length + 1);
	if (!receive_bytes(request, length))
		return 0;
	request[length] = 0;
	memset(fields, 0, sizeof(fields));
	for (int index = 0; index < FIELDS && at + sizeof(size) <= length; index++) {
		memcpy(&size, request + at, sizeof(size));
		request[at] = 0; /* the field before it ends here */
		at += sizeof(size);
		size = ntohl(size);
		if (size > length - at)
			return 0;
		fields[index] = request + at;
		field_sizes[index] = size;
		at += size;
	}
	return request[0];
}

void answer(long result)
{
	begin_answer(result < 0 ? 'e' : 'k');
	if (result < 0)
		put_number(errno);
	end_answer();
}
