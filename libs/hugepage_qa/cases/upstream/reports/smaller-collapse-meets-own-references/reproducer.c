// SPDX-License-Identifier: GPL-2.0
/*
 * Before a page that it must leave khugepaged makes no smaller huge pages: it has references to those pages itself.
 *
 * cc -static -o reproducer reproducer.c; root, base pages of 4 kB.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define THP "/sys/kernel/mm/transparent_hugepage/"
enum { PAGE = 4096, SIZE = 2 << 20, PAGES = SIZE / PAGE, SHARED = 399, SCANS = 20 };

static long file(const char *path, const char *text)
{
	long number = 0;
	FILE *file = fopen(path, text ? "w" : "r");
	if (!file || (text ? fputs(text, file) : fscanf(file, "%ld", &number)) < 1 || fclose(file))
		perror(path), _exit(2);
	return number;
}

/* Return how many base pages of 2 MiB are left where khugepaged may make huge pages of "least" to "most" kB. */
static int left(char *memory, int least, int most)
{
	int base = 0, pagemap = open("/proc/self/pagemap", O_RDONLY), all = open("/proc/kpageflags", O_RDONLY);
	char path[99], scans[] = THP "khugepaged/full_scans";
	for (int kb = 16; kb <= 2048 && sprintf(path, THP "hugepages-%dkB/enabled", kb); kb *= 2)
		file(path, kb >= least && kb <= most ? "madvise" : "never");
	madvise(memory, SIZE, MADV_HUGEPAGE);
	for (long last = file(scans, 0) + SCANS, wait = 300; wait && file(scans, 0) < last; wait--)
		usleep(100000);
	for (uint64_t entry, flags, at = (uintptr_t)memory / PAGE, end = at + PAGES; at < end; at++)
		if (pread(pagemap, &entry, 8, at * 8) == 8 && pread(all, &flags, 8, (entry << 9 >> 9) * 8) == 8)
			base += !(flags >> 15 & 3); /* KPF_COMPOUND_HEAD, KPF_COMPOUND_TAIL */
	return base;
}

int main(void)
{
	char *memory = mmap((void *)(1UL << 40), 3 * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pid_t child = madvise(memory, 3 * SIZE, MADV_NOHUGEPAGE) || !memset(memory, 1, 3 * SIZE) ? -1 : fork();
	for (int i = -1; !child && i < 3; i++) /* it has one base page of each 2 MiB */
		munmap(memory + i * SIZE + (SHARED + 1) * PAGE, SIZE - PAGE);
	if (!child)
		prctl(PR_SET_PDEATHSIG, SIGKILL), raise(SIGSTOP);
	file(THP "khugepaged/scan_sleep_millisecs", waitpid(child, NULL, WUNTRACED) == child ? "10" : "");
	int one = left(memory, 16, 16), all = left(memory + SIZE, 16, 1024), two = left(memory + 2 * SIZE, 512, 1024);
	if (one != 4)
		return puts("cannot be tried here: khugepaged makes no pages of 16 kB, or not in 20 scans"), 2;
	puts("2 MiB of which a child has a base page; khugepaged makes pages of 16 kB to 1 MiB, or 512 kB and 1 MiB");
	printf("expected: 4 base pages are left, as with 16 kB alone, or 128\nfound: %d, or %d\n", all, two);
	return all > 4 || two > 128;
}
