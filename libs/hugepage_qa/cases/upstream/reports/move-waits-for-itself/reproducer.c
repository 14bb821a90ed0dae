// SPDX-License-Identifier: GPL-2.0
/*
 * mremap() of shared hugetlb memory to a place where a page table could be shared never returns.
 *
 * cc -static -o reproducer reproducer.c; root, room for a page in the default pool, whose pages are of 2 MiB. On a
 * kernel that has the bug a process is left that nothing ends, and that blocks who looks at it in /proc.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define TABLE (1UL << 30)
#define SECONDS 20

static int move(void)
{
	char *room = mmap(NULL, 4 * TABLE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *from = (char *)(((size_t)room + TABLE - 1) & -TABLE), *to = from + 2 * TABLE;
	int flags = MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB | MAP_NORESERVE | MAP_FIXED;

	munmap(to, TABLE);
	if (mmap(from, TABLE, PROT_READ | PROT_WRITE, flags, -1, 0) != from)
		return perror("cannot be tried here: mmap"), 2;
	from[0] = 42;
	if (mremap(from, TABLE, TABLE, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to)
		return perror("cannot be tried here: mremap"), 2;
	return to[0] != 42;
}

int main(void)
{
	FILE *pool = fopen("/proc/sys/vm/nr_hugepages", "r+");
	int status, pages = -1, waited = 0;
	pid_t child;

	if (!pool || fscanf(pool, "%d", &pages) != 1 || (rewind(pool), fprintf(pool, "%d\n", pages + 1) < 0))
		return puts("cannot be tried here: no pool that can grow"), 2;
	fflush(pool);
	child = fork();
	if (!child)
		_exit(move());
	while (!waitpid(child, &status, WNOHANG) && waited++ < 10 * SECONDS)
		usleep(100000);
	printf("a page of 1 GiB of shared hugetlb holds 42, then mremap() to a multiple of 1 GiB\n");
	printf("expected: it returns, and 42 is there\n");
	if (waited > 10 * SECONDS)
		return printf("found: it has not returned after %d seconds\n", SECONDS), 1;
	fprintf(pool, "%d\n", pages);
	fclose(pool);
	if (!WIFEXITED(status) || WEXITSTATUS(status) == 2)
		return puts("cannot be tried here: the process was ended"), 2;
	printf("found: it returns, and 42 is there: %s\n", WEXITSTATUS(status) ? "no" : "yes");
	return WEXITSTATUS(status);
}
