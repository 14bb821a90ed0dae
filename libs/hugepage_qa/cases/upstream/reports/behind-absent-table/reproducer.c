// SPDX-License-Identifier: GPL-2.0
/*
 * A mapping of 1G pages spans two page tables: the first is not there, and in the second a page is touched. mprotect()
 * of all of it must protect that page, and the end of the process must give it back.
 *
 * cc -static -o reproducer reproducer.c; root, with a free 1G page: boot with "hugepagesz=1G hugepages=1".
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE (1UL << 30)
#define TABLE (512 * PAGE)
#define PLACE ((void *)(2 * TABLE))
#define FREE "/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages"

static int free_pages(void)
{
	FILE *file = fopen(FREE, "r");
	int pages = -1;

	return file && fscanf(file, "%d", &pages) == 1 ? fclose(file), pages : -1;
}

/* exit with 3 where memory can be written that may only be read */
static void write_protected(void)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_NORESERVE | MAP_FIXED_NOREPLACE | 30 << 26;
	char *memory = mmap(PLACE, 2 * TABLE, PROT_READ | PROT_WRITE, flags, -1, 0);
	volatile char *page = memory + TABLE;

	if (memory != PLACE || !(*page = 42) || mprotect(memory, 2 * TABLE, PROT_READ))
		_exit((perror("cannot be tried here"), 2));
	*page = 43;
	_exit(3);
}

int main(void)
{
	int before = free_pages(), after, status = 0;
	pid_t child = before < 1 ? -1 : fork();

	if (!child)
		write_protected();
	if (child < 0 || waitpid(child, &status, 0) != child || (WIFEXITED(status) && WEXITSTATUS(status) != 3))
		return puts("cannot be tried here: it needs a free page of 1G"), 2;
	after = free_pages();
	puts("1G pages behind a page table that is not there: mprotect(PROT_READ) of all, a write, and exit()");
	printf("expected: the write gets SIGSEGV, and %d pages are free in the end\n", before);
	printf("found: the write %s, and %d pages are free in the end\n",
	       WIFSIGNALED(status) ? "gets SIGSEGV" : "succeeds", after);
	return !WIFSIGNALED(status) || after != before;
}
