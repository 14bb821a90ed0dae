// SPDX-License-Identifier: GPL-2.0
/*
 * A debugger that reads a 1G page, which its process may not use, never comes back.
 *
 * cc -static -o reproducer reproducer.c; root, with a free 1G page: boot with "hugepagesz=1G hugepages=1".
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE (1UL << 30)
#define SECONDS 20
#define PLACE ((void *)(1UL << 40))

static int child(void)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_FIXED_NOREPLACE | 30 << 26;
	long *page = mmap(PLACE, SIZE, PROT_READ | PROT_WRITE, flags, -1, 0);

	if (page != PLACE || !(*page = 42) || mprotect(page, SIZE, PROT_NONE) || ptrace(PTRACE_TRACEME, 0, 0, 0))
		return perror("cannot be tried here"), 2;
	raise(SIGSTOP);
	return 0;
}

int main(void)
{
	pid_t debugger, debugged;
	int status;

	puts("PTRACE_PEEKDATA of a 1G page that was written and is PROT_NONE");
	printf("expected: it comes back within %d seconds\n", SECONDS);
	fflush(stdout);
	debugger = fork();
	if (!debugger) {
		debugged = fork();
		if (!debugged)
			_exit(child());
		if (waitpid(debugged, &status, 0) != debugged || !WIFSTOPPED(status))
			_exit(2);
		alarm(SECONDS);
		ptrace(PTRACE_PEEKDATA, debugged, PLACE, 0);
		_exit(kill(debugged, SIGKILL));
	}
	if (waitpid(debugger, &status, 0) != debugger || (WIFEXITED(status) && WEXITSTATUS(status)))
		return puts("cannot be tried here"), 2;
	if (WIFSIGNALED(status))
		return printf("found: it is in the kernel until signal %d ends it\n", WTERMSIG(status)), 1;
	return puts("found: it comes back"), 0;
}
