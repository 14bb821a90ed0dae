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
#include "agent.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#define KMSG_RECORD 8192 /* CONSOLE_EXT_LOG_MAX */

/* ---- the kernel log (Documentation/ABI/testing/dev-kmsg) ---- */

static int kernel_log = -1;

static void answer_log(void)
{
	char record[KMSG_RECORD];
	ssize_t size;

	begin_answer('k');
	while ((size = read(kernel_log, record, sizeof(record))) > 0)
		put_field(record, (size_t)size);
	/* EPIPE is told once: lines were overwritten before they were read */
	if (size < 0 && errno != EAGAIN) {
		drop_answer();
		return answer(-1);
	}
	end_answer();
}

static long skip_log(void)
{
	if (kernel_log < 0)
		kernel_log = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	return kernel_log < 0 ? -1 : lseek(kernel_log, 0, SEEK_END);
}

/* ---- requests ---- */

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
		return answer(store_bytes());
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
	rest = strdup(file_content);
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
	port = open(file_content, O_RDWR | O_NOCTTY | O_CLOEXEC);
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
	begin_answer('k');
	put_number(sysconf(_SC_PAGESIZE));
	end_answer();
	send_answers();
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
	/* whoever is left without a parent is ours to wait for; without an agent errno is that of fork(2) */
	do
		ended = agent < 0 ? agent : wait(&status);
	while (ended >= 0 && ended != agent);
	if (ended < 0)
		fprintf(stderr, "@hugepage-qa the agent cannot be started or waited for: %s\n", strerror(errno));
	else if (WIFSIGNALED(status))
		fprintf(stderr, "@hugepage-qa the agent was killed by signal %d\n", WTERMSIG(status));
	else
		fprintf(stderr, "@hugepage-qa the agent ended with exit code %d\n", WEXITSTATUS(status));
	sync();
	reboot(RB_POWER_OFF);
	for (;;)
		pause();
}
