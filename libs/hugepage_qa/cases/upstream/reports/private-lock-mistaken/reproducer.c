// SPDX-License-Identifier: GPL-2.0
/*
 * Holes are punched in a memfd of huge pages while another process uses a private mapping of it.
 *
 * cc -static -o reproducer reproducer.c; root, no pages in the default pool, of 2 MiB, room for 6, 3 processors. A
 * kernel with the bug changes memory that is not its own, and may lock up: for a machine that is thrown away.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE (2UL << 20)
static int file;

static int has_warned(void)
{
	FILE *tainted = fopen("/proc/sys/kernel/tainted", "r");
	long bits;

	return !tainted || fscanf(tainted, "%ld", &bits) != 1 || fclose(tainted) || bits & 512;
}

/* The first processor is left to interrupts, by which the machine tells what came of it. */
static void act_on(int processor)
{
	volatile char *pages = mmap(NULL, 2 * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);

	if (pages == MAP_FAILED || sched_setaffinity(0, sizeof(cpu_set_t), &(cpu_set_t){{1 << processor}}) ||
	    setuid(1000) || alarm(300))
		_exit(2);
	for (; processor == 1; madvise((char *)pages, 2 * SIZE, MADV_DONTNEED))
		(void)pages[0], pages[SIZE] = 1;
	while (!fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, SIZE))
		fallocate(file, 0, 0, SIZE);
	_exit(2);
}

int main(void)
{
	FILE *pool = fopen("/proc/sys/vm/nr_hugepages", "w");
	int left = 3000, warned;

	if (has_warned() || !pool || fputs("6\n", pool) < 0 || fclose(pool) ||
	    (file = memfd_create("file", MFD_HUGETLB | 21 << 26)) < 0 || fallocate(file, 0, 0, 2 * SIZE))
		return perror("cannot be tried here: a kernel that has not warned, a pool of 6 pages"), 2;
	puts("user 1000 punches holes in a file for 30 s, which another process has mapped");
	puts("expected: no warning of the kernel"), fflush(stdout);
	for (int processor = 1; processor <= 2; processor++)
		if (!fork())
			act_on(processor);
	while (!(warned = has_warned()) && left && !waitpid(-1, NULL, WNOHANG))
		left--, usleep(10000);
	printf("found: %s\n", warned ? "one (bit 9 of /proc/sys/kernel/tainted)" : left ? "a process ended" : "none");
	return warned ? 1 : left ? 2 : 0;
}
