// SPDX-License-Identifier: GPL-2.0
/*
 * A PAGEMAP_SCAN that protects and has no room to tell of anything protects pages that its masks do not choose.
 *
 * cc -static -o reproducer reproducer.c; root. It takes 1 MiB of base pages.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LENGTH (1UL << 20)
#define FEATURES (1 << 15 | 1 << 13) /* WP_ASYNC, WP_UNPOPULATED */
#define WRITTEN 2 /* PAGE_IS_FILE is 4 */

/* struct pm_scan_arg and struct page_region of linux/fs.h, which is not there before Linux 6.7 */
static struct region { uint64_t start, end, categories; } regions[64];
struct scan {
	uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
	uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};

static long written(int pagemap, uintptr_t start)
{
	struct scan scan = {sizeof(scan), 0, start, start + LENGTH, 0, (uintptr_t)regions, 64, 0, 0,
		WRITTEN, 0, WRITTEN};
	long pages = 0, told = ioctl(pagemap, _IOWR('f', 16, struct scan), &scan);

	for (long number = 0; number < told; number++)
		pages += (regions[number].end - regions[number].start) / getpagesize();
	return pages;
}

int main(void)
{
	int uffd = syscall(SYS_userfaultfd, O_CLOEXEC), pagemap = open("/proc/self/pagemap", O_RDONLY);
	char *memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_api api = {.api = UFFD_API, .features = FEATURES};
	struct uffdio_register watched = {.range = {(uintptr_t)memory, LENGTH}, .mode = UFFDIO_REGISTER_MODE_WP};
	struct scan scan = {sizeof(scan), 3 /* WP_MATCHING, CHECK_WPASYNC */, (uintptr_t)memory,
		(uintptr_t)memory + LENGTH, 0, 0, 0, 0, 0, WRITTEN | 4, 0, WRITTEN};

	if (memory == MAP_FAILED || ioctl(uffd, UFFDIO_API, &api) || ioctl(uffd, UFFDIO_REGISTER, &watched) ||
	    madvise(memory, LENGTH, MADV_NOHUGEPAGE) || !memset(memory, 42, LENGTH))
		return perror("cannot be tried here"), 2;
	long before = written(pagemap, (uintptr_t)memory);
	if (before != (long)LENGTH / getpagesize() || ioctl(pagemap, _IOWR('f', 16, struct scan), &scan) < 0)
		return perror("cannot be tried here"), 2;
	long after = written(pagemap, (uintptr_t)memory);
	printf("%ld anonymous pages are written, a scan protects those that are written and of a file\n", before);
	printf("expected: %ld pages are told as written\nfound: %ld\n", before, after);
	return after != before;
}
