// SPDX-License-Identifier: GPL-2.0
/*
 * A page of the pool breaks while a pipe holds it. When it is let go nobody must be promised it, nor get what broke.
 *
 * cc -static -o reproducer reproducer.c; root, room for 2 pages of 2 MiB, CONFIG_MEMORY_FAILURE. On a machine of your
 * own a base page counts as broken until it boots again.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 2 << 20, PAGES = 2, OTHERS = 64 };
static void go_on(int number) { (void)number; } /* it comes with the call itself, too */
static int pool(int pages)
{
	FILE *file = fopen("/proc/sys/vm/nr_hugepages", "w");

	return file && fprintf(file, "%d", pages) > 0 && !fclose(file);
}

#define MAP(pages, flags) mmap(NULL, (size_t)(pages) * SIZE, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | (flags), -1, 0)

static uint64_t frame(char *at)
{
	uint64_t entry = 0;
	int map = open("/proc/self/pagemap", O_RDONLY), size = pread(map, &entry, 8, (uintptr_t)at / getpagesize() * 8);
	return close(map) || size != 8 ? 0 : entry << 9 >> 9;
}

int main(void)
{
	int ends[2], page = 0, status, lost = 0, found = 0, base = getpagesize();
	char *others = MAP(OTHERS, MAP_PRIVATE), *memory = pool(PAGES) ? MAP(1, MAP_PRIVATE | MAP_HUGETLB) : MAP_FAILED;
	uint64_t broken = memory == MAP_FAILED || !(*memory = 1) ? 0 : frame(memory + SIZE / 2);

	signal(SIGBUS, go_on), madvise(others, (size_t)OTHERS * SIZE, MADV_HUGEPAGE);
	if (!broken || pipe(ends) || vmsplice(ends[1], &(struct iovec){memory, 1}, 1, 0) < 1 ||
	    !madvise(memory + SIZE / 2, base, MADV_HWPOISON) || (errno != EBUSY && errno != EHWPOISON))
		return perror("cannot be tried here: a huge page that a pipe holds when it breaks"), pool(0), 2;
	close(ends[0]), close(ends[1]), munmap(memory, SIZE), memory = MAP(PAGES, MAP_SHARED | MAP_HUGETLB);
	for (signal(SIGBUS, SIG_DFL); memory != MAP_FAILED && page < PAGES; page++, wait(&status), lost += status != 0)
		if (!fork())
			memory[(size_t)page * SIZE] = 1, _exit(0);
	munmap(memory, (size_t)PAGES * SIZE), page = pool(0) * OTHERS * (SIZE / base);
	for (; page--; found += frame(others + (size_t)page * base) == broken)
		others[(size_t)page * base] = 1;
	puts("of 2 pages of the pool one broke, which a pipe held; it is let go, and 2 are mapped and so reserved");
	printf("expected: mmap(2) fails, or both can be touched\n"
	       "found: it %s, %d cannot; what broke is in %d new pages\n", memory == MAP_FAILED ? "fails" : "does not",
	       lost, found);
	return lost || found;
}
