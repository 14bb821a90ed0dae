// SPDX-License-Identifier: GPL-2.0
/*
 * Memory that is poisoned by UFFDIO_POISON must stay so in a child, and when MADV_COLLAPSE is asked for.
 *
 * cc -static -o reproducer reproducer.c; root, a kernel with huge pages of shared memory.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE (2UL << 20)
#define COLLAPSE 25				 /* MADV_COLLAPSE of Linux 6.1 */
#define POISON _IOWR(UFFDIO, 8, uint64_t[4])	 /* of Linux 6.6, UFFD_FEATURE_POISON is 1 << 14 */
static int ends[2];

static int is_poisoned(char *page) { return write(ends[1], page, 1) < 0; }
static int is_poisoned_in_child(char *page)
{
	int status, child = fork();

	if (!child)
		_exit(is_poisoned(page));
	return waitpid(child, &status, 0) == child && WEXITSTATUS(status);
}

int main(void)
{
	int kinds[] = {MAP_PRIVATE, MAP_SHARED}, at, kept = 0;

	puts("a base page is poisoned by UFFDIO_POISON\nexpected: it stays so in a child, and at MADV_COLLAPSE");
	for (at = 0; at < 2; at++) {
		char *room = mmap(NULL, 2 * SIZE, PROT_READ | PROT_WRITE, kinds[at] | MAP_ANONYMOUS, -1, 0);
		char *start = (char *)(((uintptr_t)room + SIZE - 1) & -SIZE), *page = start + SIZE / 2;
		long size = getpagesize(), in_child, after;
		int uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
		struct uffdio_api api = {.api = UFFD_API, .features = 1 << 14 | UFFD_FEATURE_MISSING_SHMEM};
		struct uffdio_register all = {.range = {(uintptr_t)start, SIZE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
		uint64_t poison[] = {(uintptr_t)page, size, 0, 0};

		if (pipe(ends) || room == MAP_FAILED || madvise(start, SIZE, MADV_NOHUGEPAGE) ||
		    !memset(start, 42, SIZE) || madvise(start, SIZE, MADV_HUGEPAGE) ||
		    madvise(page, size, MADV_DONTNEED) || ioctl(uffd, UFFDIO_API, &api) ||
		    ioctl(uffd, UFFDIO_REGISTER, &all) || ioctl(uffd, POISON, poison) || !is_poisoned(page))
			return perror("cannot be tried here"), 2;
		in_child = is_poisoned_in_child(page), madvise(start, SIZE, COLLAPSE), after = is_poisoned(page);
		printf("found: %s memory: in a child it %s, then it %s\n", at ? "shared" : "private",
		       in_child ? "does" : "does not", after ? "does" : "does not");
		kept = in_child && after;
	}
	return !kept;
}
