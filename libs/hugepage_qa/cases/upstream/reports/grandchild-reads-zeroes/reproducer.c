// SPDX-License-Identifier: GPL-2.0
/*
 * A child that lost a huge page to its parent, which had no page for a copy, has a child, which must not read zeroes.
 *
 * cc -static -o reproducer reproducer.c; root, no pages in the default pool, room for 2.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int set_pool(const char *pages)
{
	FILE *pool = fopen("/proc/sys/vm/nr_hugepages", "w");

	return pool && fputs(pages, pool) >= 0 && !fclose(pool);
}

static int end_of(pid_t process)
{
	int status = -1;

	return process < 0 || waitpid(process, &status, 0) != process ? -1 : status;
}

int main(void)
{
	int go[2], back[2], status = -1, file = memfd_create("size", MFD_HUGETLB), of_child;
	volatile char *page;
	struct stat found;
	pid_t child, its_child = -1;

	if (!set_pool("1\n") || pipe(go) || pipe(back) || fstat(file, &found))
		return perror("cannot be tried here: a pool"), 2;
	page = mmap(NULL, found.st_blksize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	if (page == MAP_FAILED)
		return perror("cannot be tried here: 1 huge page"), 2;
	page[0] = 7;
	if (!(child = fork())) {
		if (read(go[0], &status, 1) == 1 && !(its_child = fork()))
			_exit(page[0]);
		status = end_of(its_child);
		_exit(write(back[1], &status, sizeof(status)) < 0 || page[0]);
	}
	page[0] = 8; /* there is no page for a copy: the child loses its own */
	if (!set_pool("2\n") || write(go[1], "", 1) != 1 || (of_child = end_of(child), !WIFSIGNALED(of_child)) ||
	    read(back[0], &status, sizeof(status)) != sizeof(status))
		return puts("cannot be tried here: a child that gets SIGBUS, since its parent has its page"), 2;
	printf("a page held 7, its owner took it from a child, which gets SIGBUS, and a child of that reads it\n");
	printf("expected: SIGBUS\n");
	WIFSIGNALED(status) ? printf("found: SIGBUS\n") : printf("found: it reads %d\n", WEXITSTATUS(status));
	return !WIFSIGNALED(status);
}
