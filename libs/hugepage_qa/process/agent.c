/*
 * The agent: the init of a throwaway machine. It carries out what a case asks of the machine, one request after the
 * other, on the first channel that is there: a virtio serial port, else the serial port that /channel names. Started by
 * anybody but the kernel it leaves the machine as it is, and the channel is its standard input.
 *
 * Both directions carry frames: four bytes of length, most significant first, then a letter, then fields, each with
 * four bytes of length before it. Requests may be sent before the answer to the one before has come.
 *
 *   r PATH                 the bytes of a file, EFBIG for more than 64 MiB
 *   n PATH                 the names in a directory, one field each
 *   w PATH TEXT            open, one write, close        f PATH OFFSET BYTES   store, in a file that is made
 *   M SOURCE POINT TYPE OPTIONS   mount                  U POINT    unmount
 *   d PATH | D PATH        make | remove a directory     x PATH     unlink a file
 *   s PATH                 statvfs                       o PATH     write back, and evict from the page cache
 *   + PATH | - PATH        swap on | off                 c PATH MODE   chmod
 *   z PATH SIZE            make a file of zeros, all of it written
 *   i PATH                 load a module, EEXIST where it is
 *   a PROGRAM              start an actor                q NUMBER REQUEST   ask it (actor.c)
 *   k NUMBER               kill it, and wait for its end
 *   L                      go to the end of the kernel log
 *   l                      the records that are new, one field each
 *
 * Answer: "k" and fields, "e" and the errno, or while an actor has not answered or ended every second "p" with its
 * /proc/PID/stat and /proc/PID/stack. Then "!" ends the waiting; its answer is "!", also where the actor's answer came
 * first. An actor is started when its program is: "a" is refused with what execve(2) says.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#define FIELDS 8
#define LARGEST (64 << 20) /* of a request and of a file; smaps of 100,000 mappings are as large */
#define PACKET 65536       /* actor.c */
#define KMSG_RECORD 8192   /* CONSOLE_EXT_LOG_MAX */
#define SECOND 1000        /* in milliseconds */

static int channel = -1, kernel_log = -1;

/* ---- frames ---- */

static char *output; /* answers that are not sent yet, */
static size_t output_size, output_room, reply_at; /* and where the last of them begins */

static void *grown(void *block, size_t size)
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

static void begin(char letter)
{
	static const uint32_t room_for_length;

	reply_at = output_size;
	put(&room_for_length, sizeof(room_for_length));
	put(&letter, 1);
}

static void put_field(const void *bytes, size_t size)
{
	uint32_t length = htonl((uint32_t)size);

	put(&length, sizeof(length));
	put(bytes, size);
}

static void put_number(long long number)
{
	char text[32];

	put_field(text, (size_t)snprintf(text, sizeof(text), "%lld", number));
}

static void end(void)
{
	uint32_t length = htonl((uint32_t)(output_size - reply_at - sizeof(length)));

	memcpy(output + reply_at, &length, sizeof(length));
}

static void send_output(void)
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
			send_output();
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
static char *fields[FIELDS]; /* each ends with a NUL, too */
static size_t field_sizes[FIELDS];

/* The letter of the next request, 0 when the other side is gone or talks nonsense. */
static char receive(void)
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

static void answer(long result)
{
	begin(result < 0 ? 'e' : 'k');
	if (result < 0)
		put_number(errno);
	end();
}

/* ---- files ---- */

/* The bytes of a file and a NUL, in a block that the next call takes; -1 with errno, EFBIG and no part of it. */
static char *content;
static ssize_t read_file(const char *path)
{
	static size_t room;
	size_t size = 0;
	int descriptor = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t now = -1;

	if (descriptor < 0)
		return -1;
	do {
		if (size + PACKET >= room)
			content = grown(content, room = 2 * (size + PACKET));
		/* no more at once: a sysctl allocates as much, and is refused beyond KMALLOC_MAX_SIZE */
		now = read(descriptor, content + size, PACKET);
		size += now > 0 ? (size_t)now : 0;
	} while (now > 0 && size <= LARGEST);
	if (now > 0)
		errno = EFBIG;
	close(descriptor);
	content[size] = 0;
	return now ? -1 : (ssize_t)size;
}

static void answer_read(void)
{
	ssize_t size = read_file(fields[0]);

	if (size < 0)
		return answer(-1);
	begin('k');
	put_field(content, (size_t)size);
	end();
}

static void answer_names(void)
{
	DIR *directory = opendir(fields[0]);
	struct dirent *entry;

	if (!directory)
		return answer(-1);
	begin('k');
	while ((entry = readdir(directory)))
		if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
			put_field(entry->d_name, strlen(entry->d_name));
	closedir(directory);
	end();
}

static long close_with(int descriptor, long result)
{
	int error = errno;

	close(descriptor);
	errno = error;
	return result;
}

static long write_file(void)
{
	int descriptor = open(fields[0], O_WRONLY | O_NOFOLLOW | O_CLOEXEC);

	return descriptor < 0 ? -1 : close_with(descriptor, write(descriptor, fields[1], field_sizes[1]));
}

static long store(void)
{
	int descriptor = open(fields[0], O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	off_t at = (off_t)strtoll(fields[1], NULL, 10);
	size_t done = 0;

	if (descriptor < 0)
		return -1;
	while (done < field_sizes[2]) {
		ssize_t now = pwrite(descriptor, fields[2] + done, field_sizes[2] - done, at + (off_t)done);

		if (now < 0)
			return close_with(descriptor, -1);
		done += (size_t)now;
	}
	return close_with(descriptor, 0);
}

static long write_zeros(void)
{
	static const char zeros[PACKET];
	int descriptor = open(fields[0], O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	off_t size = (off_t)strtoll(fields[1], NULL, 10);
	ssize_t now = 0;

	if (descriptor < 0)
		return -1;
	for (off_t at = 0; now >= 0 && at < size; at += now)
		now = pwrite(descriptor, zeros, (size_t)(size - at < PACKET ? size - at : PACKET), at);
	return close_with(descriptor, now < 0 ? -1 : fsync(descriptor));
}

static long evict(void)
{
	int descriptor = open(fields[0], O_RDONLY | O_CLOEXEC);
	long result;

	if (descriptor < 0)
		return -1;
	result = fsync(descriptor);
	if (!result && (errno = posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED)))
		result = -1;
	return close_with(descriptor, result);
}

static void answer_file_system(void)
{
	struct statvfs use;

	if (statvfs(fields[0], &use))
		return answer(-1);
	begin('k');
	put_number((long long)use.f_bsize);
	put_number((long long)use.f_blocks);
	put_number((long long)use.f_bfree);
	put_number((long long)use.f_files);
	put_number((long long)use.f_ffree);
	end();
}

/* ---- the kernel log (Documentation/ABI/testing/dev-kmsg) ---- */

static void answer_log(void)
{
	char record[KMSG_RECORD];
	ssize_t size;

	begin('k');
	while ((size = read(kernel_log, record, sizeof(record))) > 0)
		put_field(record, (size_t)size);
	/* EPIPE is told once: lines were overwritten before they were read */
	if (size < 0 && errno != EAGAIN) {
		output_size = reply_at;
		return answer(-1);
	}
	end();
}

static long skip_log(void)
{
	if (kernel_log < 0)
		kernel_log = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	return kernel_log < 0 ? -1 : lseek(kernel_log, 0, SEEK_END);
}

/* ---- actors ---- */

static struct actor {
	int channel, pid;
} *actors;
static int actor_count;

static void answer_actor(int descriptor, int pid, const char *text, size_t size)
{
	begin('k');
	if (text)
		put_field(text, size);
	if (descriptor >= 0) {
		actors = grown(actors, sizeof(*actors) * (size_t)(actor_count + 1));
		actors[actor_count] = (struct actor){descriptor, pid};
		put_number(actor_count++);
		put_number(pid);
	}
	end();
}

/* The OOM killer spares the agent, and no actor. */
static void set_oom_score(const char *score)
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

static void start_actor(void)
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
	put_field(content, size > 0 ? (size_t)size : 0);
}

static void end_waiting(void)
{
	begin('!');
	end();
}

/* Wait until the descriptor of an actor can be read; 0 when the other side does not want to wait any longer. */
static int await(int descriptor, int pid)
{
	send_output();
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
		begin('p');
		put_proc_file(pid, "stat");
		put_proc_file(pid, "stack");
		end();
		send_output();
	}
}

static struct actor *actor_of(const char *number)
{
	int index = number ? atoi(number) : -1;

	return index >= 0 && index < actor_count ? &actors[index] : NULL;
}

static void answer_actor_request(void)
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

static void kill_actor(void)
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

/* ---- requests ---- */

static long load_module(const char *path)
{
	int module = open(path, O_RDONLY | O_CLOEXEC);

	return module < 0 ? -1 : close_with(module, syscall(SYS_finit_module, module, "", 0));
}

static void serve(char letter)
{
	switch (letter) {
	case 'r':
		return answer_read();
	case 'n':
		return answer_names();
	case 'w':
		return answer(write_file());
	case 'f':
		return answer(store());
	case 'M':
		return answer(mount(fields[0], fields[1], fields[2], 0, fields[3]));
	case 'U':
		return answer(umount2(fields[0], UMOUNT_NOFOLLOW));
	case 'd':
		return answer(mkdir(fields[0], 0777));
	case 'D':
		return answer(rmdir(fields[0]));
	case 'x':
		return answer(unlink(fields[0]));
	case 's':
		return answer_file_system();
	case 'o':
		return answer(evict());
	case 'z':
		return answer(write_zeros());
	case 'c':
		return answer(chmod(fields[0], (mode_t)strtol(fields[1], NULL, 8)));
	case '+':
		return answer(swapon(fields[0], 0));
	case '-':
		return answer(swapoff(fields[0]));
	case 'i':
		return answer(load_module(fields[0]));
	case 'a':
		return start_actor();
	case 'q':
		return answer_actor_request();
	case 'k':
		return kill_actor();
	case 'L':
		return answer(skip_log());
	case 'l':
		return answer_log();
	case '!':
		return end_waiting();
	default:
		errno = ENOSYS;
		answer(-1);
	}
}

/* ---- the machine ---- */

static void prepare(void)
{
	static const char *const mounts[][2] = {
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"debugfs", "/sys/kernel/debug"},
		{"tmpfs", "/tmp"}, {"cgroup2", "/sys/fs/cgroup"},
	};
	char *line, *rest;

	for (size_t index = 0; index < sizeof(mounts) / sizeof(*mounts); index++)
		mount(mounts[index][0], mounts[index][1], mounts[index][0], 0, NULL);
	if (read_file("/modules/order") <= 0)
		return;
	rest = strdup(content);
	while ((line = strsep(&rest, "\n")) && *line) {
		if (load_module(line))
			fprintf(stderr, "@hugepage-qa module %s: %s\n", line, strerror(errno));
	}
}

/* The first virtio serial port; it takes a moment to appear. */
static int open_virtio_port(void)
{
	for (int tries = 0; tries < 100; tries++) {
		DIR *ports = opendir("/sys/class/virtio-ports");
		struct dirent *entry;
		char path[300];

		if (!ports)
			return -1; /* no such driver */
		while ((entry = readdir(ports)))
			if (entry->d_name[0] != '.') {
				snprintf(path, sizeof(path), "/dev/%s", entry->d_name);
				closedir(ports);
				return open(path, O_RDWR | O_CLOEXEC);
			}
		closedir(ports);
		usleep(50000);
	}
	return -1;
}

static int open_serial_port(void)
{
	struct termios settings;
	ssize_t size = read_file("/channel");
	int port;

	if (size <= 0)
		return -1;
	port = open(content, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (port >= 0 && !tcgetattr(port, &settings)) {
		cfmakeraw(&settings);
		cfsetspeed(&settings, B115200);
		settings.c_cc[VMIN] = 1;
		tcsetattr(port, TCSANOW, &settings);
	}
	return port;
}

static int serve_all(void)
{
	char letter;

	signal(SIGPIPE, SIG_IGN);
	if (channel < 0)
		channel = open_virtio_port();
	if (channel < 0)
		channel = open_serial_port();
	if (channel < 0)
		return 6;
	begin('k');
	put_number(sysconf(_SC_PAGESIZE));
	end();
	send_output();
	while ((letter = receive()))
		serve(letter);
	return 0;
}

int main(void)
{
	int agent, ended, status;

	if (getpid() != 1) {
		channel = STDIN_FILENO;
		return serve_all();
	}
	prepare();
	agent = fork();
	if (!agent) {
		set_oom_score("-1000");
		_exit(serve_all());
	}
	/* whoever is left without a parent is ours to wait for */
	while ((ended = wait(&status)) != agent)
		if (ended < 0 && errno == ECHILD)
			break;
	if (WIFSIGNALED(status))
		fprintf(stderr, "@hugepage-qa the agent was killed by signal %d\n", WTERMSIG(status));
	else
		fprintf(stderr, "@hugepage-qa the agent ended with exit code %d\n", WEXITSTATUS(status));
	sync();
	reboot(RB_POWER_OFF);
	for (;;)
		pause();
}
