// SPDX-License-Identifier: GPL-2.0
/*
 * A base page that broke is handed out again with the huge page that it is of, which could not be split.
 *
 * cc -static -o reproducer reproducer.c; root, transparent huge pages of 2 MiB, base pages of 4 kB. On a machine of
 * your own a base page counts as broken until it boots again.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#define HUGE (2UL << 20)
#define PAGES 64
#define BROKEN (HUGE / 2)

static void go_on(int number) { (void)number; } /* it comes with the call itself, too */

/* Return huge pages that are there. */
static char *map(int pages)
{
	char *all = mmap(NULL, (pages + 1) * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *memory = all == MAP_FAILED ? NULL : (char *)(((uintptr_t)all + HUGE - 1) & -HUGE);

	return !memory || madvise(memory, pages * HUGE, MADV_HUGEPAGE) ? NULL : memset(memory, 1, pages * HUGE);
}

static uint64_t frame(char *at)
{
	uint64_t entry = 0;
	int file = open("/proc/self/pagemap", O_RDONLY), size = pread(file, &entry, 8, (uintptr_t)at / 4096 * 8);

	return close(file) || size != 8 ? 0 : entry << 9 >> 9;
}

int main(void)
{
	int ends[2], found = 0;
	char *memory = map(1), *others;
	uint64_t broken = memory ? frame(memory + BROKEN) : 0;

	signal(SIGBUS, go_on);
	if (!broken || pipe(ends) || vmsplice(ends[1], &(struct iovec){memory, 1}, 1, 0) < 1)
		return perror("cannot be tried here: a huge page, and a pipe that holds it"), 2;
	if (!madvise(memory + BROKEN, 4096, MADV_HWPOISON) || (errno != EHWPOISON && errno != EBUSY))
		return perror("cannot be tried here: CONFIG_MEMORY_FAILURE, a huge page that is held"), 2;
	close(ends[0]), close(ends[1]), munmap(memory, HUGE), others = map(PAGES);
	for (int page = 0; others && page < PAGES; page++)
		found += frame(others + page * HUGE + BROKEN) == broken;
	puts("a base page of a huge page that a pipe holds is said to be broken, and the huge page given back");
	printf("expected: it is in no new huge page\nfound: it is in %d of %d\n", found, PAGES);
	return others ? found > 0 : 2;
}
