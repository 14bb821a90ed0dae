// SPDX-License-Identifier: GPL-2.0
/*
 * A 1G page that UFFDIO_RWPROTECT closed is read by process_vm_readv(2), and nobody is told.
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
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define SIZE (1UL << 30)
/* of Linux 7.3 */
#define FEATURE_RWP (1 << 17)
#define MODE_RWP 8
#define RWPROTECT _IOWR(UFFDIO, 9, struct uffdio_writeprotect)

static volatile char *page;

static void told(int number)
{
	char word = 0;
	struct iovec to = {&word, 1}, from = {(void *)page, 1};
	ssize_t found;

	(void)number;
	/* of itself: as another process does that may debug it */
	found = process_vm_readv(getpid(), &to, 1, &from, 1, 0);
	printf("found: the process gets SIGBUS, and process_vm_readv() %s\n", found == 1 ? "reads it" : "fails");
	fflush(stdout);
	_exit(found == 1);
}

int main(void)
{
	int uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
	struct uffdio_api api = {.api = UFFD_API, .features = FEATURE_RWP | UFFD_FEATURE_SIGBUS};

	page = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | 30 << 26, -1, 0);
	struct uffdio_register watched = {.range = {(uintptr_t)page, SIZE}, .mode = MODE_RWP};
	struct uffdio_writeprotect closed = {.range = watched.range, .mode = 1};

	if (page == MAP_FAILED || !(*page = 42) || ioctl(uffd, UFFDIO_API, &api) ||
	    ioctl(uffd, UFFDIO_REGISTER, &watched) || ioctl(uffd, RWPROTECT, &closed))
		return perror("cannot be tried here"), 2;
	signal(SIGBUS, told);
	puts("UFFDIO_RWPROTECT of a page of 1G, and an access by the process and by process_vm_readv()");
	puts("expected: the process gets SIGBUS (UFFD_FEATURE_SIGBUS), and process_vm_readv() fails");
	fflush(stdout);
	return printf("cannot be tried here: the process reads %d\n", *page), 2;
}
