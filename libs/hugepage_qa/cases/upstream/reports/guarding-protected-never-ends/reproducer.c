// SPDX-License-Identifier: GPL-2.0
/*
 * Guards for a base page of memory that is write-protected by UFFDIO_WRITEPROTECT: madvise() must return.
 *
 * cc -static -o reproducer reproducer.c; root. On a kernel that has the bug processes use a CPU for 3 seconds each.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define GUARD_INSTALL 102	     /* MADV_GUARD_INSTALL of Linux 6.13, of files since 6.15 */
#define OF_SHARED_MEMORY (1UL << 12) /* UFFD_FEATURE_WP_HUGETLBFS_SHMEM of Linux 5.19 */

static int guard(int kind)
{
	long size = getpagesize();
	char *page = mmap(NULL, size, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0);
	int uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
	struct uffdio_api api = {.api = UFFD_API, .features = OF_SHARED_MEMORY};
	struct uffdio_register watched = {.range = {(uintptr_t)page, size}, .mode = UFFDIO_REGISTER_MODE_WP};
	struct uffdio_writeprotect on = {.range = watched.range, .mode = UFFDIO_WRITEPROTECT_MODE_WP};

	if (page == MAP_FAILED || !memset(page, 42, size) || ioctl(uffd, UFFDIO_API, &api) ||
	    ioctl(uffd, UFFDIO_REGISTER, &watched) || ioctl(uffd, UFFDIO_WRITEPROTECT, &on))
		return errno;
	return madvise(page, size, GUARD_INSTALL) ? errno : 0;
}

int main(void)
{
	int kinds[] = {MAP_PRIVATE, MAP_SHARED}, at, status, waited, stuck = 0;

	puts("a write-protected base page, MADV_GUARD_INSTALL\nexpected: it returns");
	for (at = 0; at < 2; at++) {
		int child = fork();

		if (!child)
			_exit(guard(kinds[at]));
		for (waited = 0; waited < 300 && !waitpid(child, &status, WNOHANG); waited++)
			usleep(10000);
		if (waited == 300 && !kill(child, SIGKILL) && waitpid(child, &status, 0) == child)
			stuck = 1;
		else if (!WIFEXITED(status) || WEXITSTATUS(status))
			return printf("cannot be tried here: error %d\n", WEXITSTATUS(status)), 2;
		printf("found: %s memory: it %s\n", at ? "shared" : "private",
		       waited == 300 ? "has not returned after 3 seconds" : "returns");
	}
	return stuck;
}
