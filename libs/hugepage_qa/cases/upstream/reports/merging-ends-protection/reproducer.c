// SPDX-License-Identifier: GPL-2.0
/*
 * Base pages that are equal are write-protected by UFFDIO_WRITEPROTECT, and KSM merges them: writes must be told still.
 *
 * cc -static -o reproducer reproducer.c; root, a kernel with KSM that merges nothing else.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGES 16
#define KSM "/sys/kernel/mm/ksm/"
static sigjmp_buf after_write;

static void tell(int number) { siglongjmp(after_write, number); }
static long read_number(const char *path)
{
	FILE *file = fopen(path, "r");
	long number = -1;

	return file && fscanf(file, "%ld", &number) == 1 && !fclose(file) ? number : -1;
}

int main(void)
{
	long size = getpagesize(), before = read_number(KSM "full_scans");
	volatile int page, told = 0;
	char *pages = mmap(NULL, PAGES * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
	struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_SIGBUS | UFFD_FEATURE_PAGEFAULT_FLAG_WP};
	struct uffdio_register watched = {.range = {(uintptr_t)pages, PAGES * size}, .mode = UFFDIO_REGISTER_MODE_WP};
	struct uffdio_writeprotect on = {.range = watched.range, .mode = UFFDIO_WRITEPROTECT_MODE_WP};
	FILE *run = fopen(KSM "run", "w");

	if (before < 0 || pages == MAP_FAILED || !memset(pages, 42, PAGES * size) || ioctl(uffd, UFFDIO_API, &api) ||
	    ioctl(uffd, UFFDIO_REGISTER, &watched) || ioctl(uffd, UFFDIO_WRITEPROTECT, &on) ||
	    madvise(pages, PAGES * size, MADV_MERGEABLE) || !run || fputs("1\n", run) < 0 || fclose(run))
		return perror("cannot be tried here"), 2;
	while (read_number(KSM "pages_sharing") < PAGES - 1 && read_number(KSM "full_scans") < before + 8)
		usleep(10000);
	signal(SIGBUS, tell);
	for (page = 0; page < PAGES; page++)
		if (sigsetjmp(after_write, 1))
			told++;
		else
			pages[page * size] = 43;
	printf("%d equal base pages are write-protected, KSM merges them, and each is written\n", PAGES);
	printf("expected: all writes get SIGBUS (UFFD_FEATURE_SIGBUS)\nfound: %d do\n", told);
	return told != PAGES;
}
