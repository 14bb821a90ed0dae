// SPDX-License-Identifier: GPL-2.0
/*
 * A debugger writes a 1G page that may only be read and that UFFDIO_WRITEPROTECT protects, and nobody is told.
 *
 * cc -static -o reproducer reproducer.c; root, with a free 1G page: boot with "hugepagesz=1G hugepages=1".
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE (1UL << 30)
#define PLACE ((void *)(1UL << 40))

static int child(void)
{
	int uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_FIXED_NOREPLACE | 30 << 26;
	struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_SIGBUS | UFFD_FEATURE_PAGEFAULT_FLAG_WP};
	struct uffdio_register watched = {.range = {(uintptr_t)PLACE, SIZE}, .mode = UFFDIO_REGISTER_MODE_WP};
	struct uffdio_writeprotect protect = {.range = watched.range, .mode = UFFDIO_WRITEPROTECT_MODE_WP};
	long *page = mmap(PLACE, SIZE, PROT_READ | PROT_WRITE, flags, -1, 0);

	if (page != PLACE || !(*page = 42) || ioctl(uffd, UFFDIO_API, &api) ||
	    ioctl(uffd, UFFDIO_REGISTER, &watched) || ioctl(uffd, UFFDIO_WRITEPROTECT, &protect) ||
	    mprotect(page, SIZE, PROT_READ) || ptrace(PTRACE_TRACEME, 0, 0, 0))
		return perror("cannot be tried here"), 2;
	raise(SIGSTOP);
	return 0;
}

int main(void)
{
	pid_t debugged = fork();
	int status, is_written;

	if (!debugged)
		_exit(child());
	if (waitpid(debugged, &status, 0) != debugged || !WIFSTOPPED(status))
		return puts("cannot be tried here"), 2;
	puts("UFFDIO_WRITEPROTECT of a 1G page that is PROT_READ, and PTRACE_POKEDATA of 7");
	puts("expected: it fails, and the page holds 42");
	is_written = ptrace(PTRACE_POKEDATA, debugged, PLACE, 7) == 0;
	printf("found: it %s, and the page holds %ld\n", is_written ? "succeeds" : "fails",
	       ptrace(PTRACE_PEEKDATA, debugged, PLACE, 0));
	kill(debugged, SIGKILL);
	return is_written;
}
