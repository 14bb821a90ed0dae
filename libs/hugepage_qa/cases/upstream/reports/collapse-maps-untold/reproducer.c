// SPDX-License-Identifier: GPL-2.0
/*
 * MADV_COLLAPSE of shared memory whose minor faults a program handles must map nothing that it was not told of.
 *
 * cc -static -o reproducer reproducer.c; root, a kernel with huge pages of shared memory.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SIZE (2UL << 20)
#define COLLAPSE 25 /* MADV_COLLAPSE of Linux 6.1 */
static int ends[2];

static char *map_where_it_fits(int file)
{
	char *room = mmap(NULL, 2 * SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *start = (char *)(((uintptr_t)room + SIZE - 1) & -SIZE);

	return mmap(start, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
}

/* a fault that nobody handles is an error of the system call: UFFD_FEATURE_SIGBUS */
static const char *what_becomes_of(char *page) { return write(ends[1], page, 1) == 1 ? "done" : "told"; }

int main(void)
{
	long size = getpagesize();
	int file = memfd_create("file", 0), uffd = syscall(SYS_userfaultfd, O_CLOEXEC), refused;
	char *other, *start;
	struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_SIGBUS | UFFD_FEATURE_MINOR_SHMEM};
	struct uffdio_register all = {.mode = UFFDIO_REGISTER_MODE_MINOR};
	struct uffdio_continue first = {.range.len = size};

	if (pipe(ends) || ftruncate(file, SIZE) || (other = map_where_it_fits(file)) == MAP_FAILED ||
	    (start = map_where_it_fits(file)) == MAP_FAILED || !memset(other, 42, SIZE))
		return perror("cannot be tried here: a memfd"), 2;
	all.range.start = first.range.start = (uintptr_t)start, all.range.len = SIZE;
	if (ioctl(uffd, UFFDIO_API, &api) || ioctl(uffd, UFFDIO_REGISTER, &all) || ioctl(uffd, UFFDIO_CONTINUE, &first))
		return perror("cannot be tried here: userfaultfd"), 2;
	puts("a base page was mapped by UFFDIO_CONTINUE, the next one is read before and after MADV_COLLAPSE");
	puts("expected: both reads are told");
	printf("found: before it is %s\n", what_becomes_of(start + size));
	refused = madvise(start, SIZE, COLLAPSE) ? errno : 0;
	printf("found: after it, which %s, it is %s\n", refused ? strerror(refused) : "is done",
	       what_becomes_of(start + size));
	return strcmp(what_becomes_of(start + size), "told") != 0;
}
