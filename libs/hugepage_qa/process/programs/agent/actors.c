/* The actors of a machine: processes of their own, which the agent starts, asks, waits for and kills. */
#define _GNU_SOURCE
#include "agent.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECOND 1000 /* in milliseconds */

static struct actor {
	int channel, pid;
} *actors;
static int actor_count;

static void answer_actor(int descriptor, int pid, const char *text, size_t size)
{
	begin_answer('k');
	if (text)
		put_field(text, size);
	if (descriptor >= 0) {
		actors = grown(actors, sizeof(*actors) * (size_t)(actor_count + 1));
		actors[actor_count] = (struct actor){descriptor, pid};
		put_number(actor_count++);
		put_number(pid);
	}
	end_answer();
}

void set_oom_score(const char *score)
{
	int file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

	if (file < 0 || write(file, score, strlen(score)) < 0)
		fprintf(stderr, "@hugepage-qa oom_score_adj: %s\n", strerror(errno));
	close(file);
}

/* In a new process; why the program cannot be started is written to the descriptor "refusal". */
static void become_actor(int parent, int channel_end, int refusal)
{
	char number[16];

	snprintf(number, sizeof(number), "%d", parent);
	setsid();
	set_oom_score("0");
	dup2(channel_end, STDIN_FILENO);
	execl(fields[0], "actor", number, NULL);
	_exit(write(refusal, &errno, sizeof(errno)) < 0 ? 126 : 127);
}

void start_actor(void)
{
	int ends[2], refusal[2], error = 0, parent = getpid(), pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
		return answer(-1);
	if (pipe2(refusal, O_CLOEXEC)) {
		close(ends[1]);
		return answer(close_with(ends[0], -1));
	}
	pid = fork();
	if (!pid)
		become_actor(parent, ends[1], refusal[1]);
	if (pid < 0)
		error = errno;
	close(ends[1]);
	close(refusal[1]);
	/* it ends when the program is started, without a byte */
	if (pid > 0 && read(refusal[0], &error, sizeof(error)) > 0)
		waitpid(pid, NULL, 0);
	close(refusal[0]);
	if (error) {
		errno = error;
		return answer(close_with(ends[0], -1));
	}
	answer_actor(ends[0], pid, NULL, 0);
}

static void put_proc_file(int pid, const char *name)
{
	char path[64];
	ssize_t size;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	size = read_file(path);
	put_field(file_content, size > 0 ? (size_t)size : 0);
}

void end_waiting(void)
{
	begin_answer('!');
	end_answer();
}

/* Wait until the descriptor of an actor can be read; 0 when the other side does not want to wait any longer. */
static int await(int descriptor, int pid)
{
	send_answers();
	for (;;) {
		struct pollfd both[] = {{.fd = descriptor, .events = POLLIN}, {.fd = channel, .events = POLLIN}};

		if (poll(both, 2, SECOND) < 0 && errno != EINTR)
			_exit(4);
		if (both[0].revents)
			return 1;
		if (both[1].revents) {
			receive(); /* nothing but "!" is sent before the answer */
			end_waiting();
			return 0;
		}
		begin_answer('p');
		put_proc_file(pid, "stat");
		put_proc_file(pid, "stack");
		end_answer();
		send_answers();
	}
}

static struct actor *actor_of(const char *number)
{
	int index = number ? atoi(number) : -1;

	return index >= 0 && index < actor_count ? &actors[index] : NULL;
}

void answer_actor_request(void)
{
	static char packet[PACKET + 1];
	char control[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8)));
	struct iovec data = {packet, PACKET};
	struct msghdr message = {
		.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	struct actor *actor = actor_of(fields[0]);
	struct cmsghdr *header;
	int descriptor = -1, pid = 0;
	ssize_t size;

	if (!actor) {
		errno = ESRCH;
		return answer(-1);
	}
	if (send(actor->channel, fields[1], field_sizes[1], MSG_NOSIGNAL) < 0)
		return answer(-1);
	if (!await(actor->channel, actor->pid))
		return;
	size = recvmsg(actor->channel, &message, MSG_CMSG_CLOEXEC);
	if (size <= 0) {
		errno = size ? errno : EPIPE;
		return answer(-1);
	}
	header = CMSG_FIRSTHDR(&message);
	if (header && header->cmsg_type == SCM_RIGHTS) {
		memcpy(&descriptor, CMSG_DATA(header), sizeof(descriptor));
		packet[size] = 0;
		sscanf(packet, "ok %d", &pid);
	}
	answer_actor(descriptor, pid, packet, (size_t)size);
}

void kill_actor(void)
{
	struct actor *actor = actor_of(fields[0]);
	int descriptor, ended = 1;

	if (actor && actor->channel >= 0) {
		close(actor->channel);
		actor->channel = -1;
		descriptor = (int)syscall(SYS_pidfd_open, actor->pid, 0);
		if (descriptor >= 0) {
			kill(actor->pid, SIGKILL);
			ended = await(descriptor, actor->pid);
			close(descriptor);
		}
		waitpid(actor->pid, NULL, WNOHANG); /* not ours if another actor forked it */
	}
	if (ended)
		answer(0);
}
