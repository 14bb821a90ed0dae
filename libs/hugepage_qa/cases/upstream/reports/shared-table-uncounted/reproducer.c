// SPDX-License-Identifier: GPL-2.0
/*
 * HugetlbPages of /proc/PID/status, where two processes map huge pages by one page table, which they unmap then.
 *
 * cc -static -o reproducer reproducer.c; root, room for three pages in the default pool, which are of 2 MiB.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE (2UL << 20)
#define PAGES 3
#define TABLE (1UL << 30)
#define PLACE ((char *)(10UL << 40))

/* HugetlbPages in kB: one below 0 is printed as 2^64 - n */
static unsigned long hugetlb_pages(void)
{
	unsigned long found = -1;
	char line[128];
	FILE *file = fopen("/proc/self/status", "r");

	while (file && fgets(line, sizeof(line), file) && sscanf(line, "HugetlbPages: %lu", &found) != 1)
		;
	return file ? (fclose(file), found) : found;
}

int main(void)
{
	FILE *pool = fopen("/proc/sys/vm/nr_hugepages", "r+");
	int nr = -1, child, how = MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
	int file = memfd_create("pages", MFD_HUGETLB | 21 << MAP_HUGE_SHIFT);
	volatile unsigned long *seen = mmap(NULL, 64, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (!pool || fscanf(pool, "%d", &nr) != 1 || (rewind(pool), fprintf(pool, "%d\n", nr + PAGES) < 0) ||
	    fflush(pool) || ftruncate(file, TABLE) || mmap(PLACE, TABLE, PROT_READ | PROT_WRITE, how, file, 0) != PLACE)
		return perror("cannot be tried here: pages of 2 MiB"), 2;
	memset(PLACE, 42, PAGES * PAGE);
	child = fork();
	if (!child) {
		seen[0] = !memcmp(PLACE, PLACE + PAGE, (PAGES - 1) * PAGE) ? hugetlb_pages() : 0;
		raise(SIGSTOP), munmap(PLACE, TABLE);
		seen[2] = hugetlb_pages();
		_exit(0);
	}
	waitpid(child, NULL, WUNTRACED);
	munmap(PLACE, TABLE);
	seen[1] = hugetlb_pages();
	kill(child, SIGCONT), waitpid(child, NULL, 0);
	rewind(pool), fprintf(pool, "%d\n", nr), fclose(pool);
	printf("a child has read 3 pages of 2 MiB that its parent wrote, and both unmap them, the child last\n");
	printf("expected: HugetlbPages of the child is 6144 kB, and then 0 kB of both\nfound: it is %lu kB, ", seen[0]);
	printf("and then %lu kB of the parent and %lu kB of the child\n", seen[1], seen[2]);
	return seen[0] != PAGES * PAGE >> 10 || seen[1] || seen[2];
}
