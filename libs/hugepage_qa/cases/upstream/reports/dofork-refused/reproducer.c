// SPDX-License-Identifier: GPL-2.0
/*
 * MADV_DOFORK is refused for memory of hugetlb, and MADV_DONTFORK of it cannot be undone.
 *
 * cc -static -o reproducer reproducer.c; no root, no huge pages.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define LENGTH (1UL << 30) /* a multiple of all huge pages but those of 16G; none of it is touched */

/* Tell whether a child of this process has a mapping at an address, or -1. */
static int child_has(void *at)
{
	int status;
	pid_t child = fork();

	if (!child)
		_exit(madvise(at, LENGTH, MADV_NORMAL) != 0);
	return child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) ? -1 : !WEXITSTATUS(status);
}

int main(void)
{
	static const struct { const char *name; int flags; } kinds[] = {
		{ "base pages, private", MAP_PRIVATE },
		{ "base pages, shared", MAP_SHARED },
		{ "hugetlb, private", MAP_PRIVATE | MAP_HUGETLB },
		{ "hugetlb, shared", MAP_SHARED | MAP_HUGETLB },
	};
	int kind, refused, has, wrong = 0;
	void *at;

	puts("MADV_DONTFORK, then MADV_DOFORK, then fork()");
	puts("expected: success, and the child has the mapping, of each kind of memory");
	for (kind = 0; kind < 4; kind++) {
		at = mmap(NULL, LENGTH, PROT_READ, kinds[kind].flags | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (at == MAP_FAILED || madvise(at, LENGTH, MADV_DONTFORK) || child_has(at))
			return perror("cannot be tried here: memory of hugetlb with MADV_DONTFORK"), 2;
		refused = madvise(at, LENGTH, MADV_DOFORK) ? errno : 0;
		if ((has = child_has(at)) < 0)
			return perror("cannot be tried here: fork()"), 2;
		printf("found: %s: %s, and the child %s it\n", kinds[kind].name, strerror(refused),
		       has ? "has" : "lacks");
		wrong |= refused || !has;
	}
	return wrong;
}
