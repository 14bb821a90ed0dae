// SPDX-License-Identifier: GPL-2.0
/*
 * A PAGEMAP_SCAN that protects, and has no room for a hugetlb page, says that it goes on behind it, and tells it not.
 *
 * cc -static -o reproducer reproducer.c; root, and room for 3 pages in the default pool, whose pages are of 2 MiB.
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

#define PAGE (2UL << 20)
#define LENGTH (3 * PAGE)
#define FEATURES (1 << 15 | 1 << 13 | 1 << 12) /* WP_ASYNC, WP_UNPOPULATED, WP_HUGETLBFS_SHMEM */
#define WRITTEN 2

/* struct pm_scan_arg and struct page_region of linux/fs.h, which is not there before Linux 6.7 */
struct region { uint64_t start, end, categories; } regions[8];
struct scan {
	uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
	uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};

int main(void)
{
	FILE *pool = fopen("/proc/sys/vm/nr_hugepages", "w");
	int uffd = syscall(SYS_userfaultfd, O_CLOEXEC), pagemap = open("/proc/self/pagemap", O_RDONLY), told = 0;

	if (!pool || fputs("3\n", pool) < 0 || fclose(pool))
		return perror("cannot be tried here"), 2;
	char *memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	struct uffdio_api api = {.api = UFFD_API, .features = FEATURES};
	struct uffdio_register watched = {.range = {(uintptr_t)memory, LENGTH}, .mode = UFFDIO_REGISTER_MODE_WP};
	struct scan scan = {sizeof(scan), 3 /* WP_MATCHING, CHECK_WPASYNC */, (uintptr_t)memory,
		(uintptr_t)memory + LENGTH, 0, (uintptr_t)regions, 8, 700, 0, WRITTEN, 0, WRITTEN};

	if (memory == MAP_FAILED || !memset(memory, 42, LENGTH) || ioctl(uffd, UFFDIO_API, &api) ||
	    ioctl(uffd, UFFDIO_REGISTER, &watched) || (told = ioctl(pagemap, _IOWR('f', 16, struct scan), &scan)) < 0)
		return perror("cannot be tried here"), 2;
	uint64_t behind = told ? regions[told - 1].end - scan.start : 0, next = scan.walk_end - scan.start;

	printf("three written pages of 2 MiB, a scan that may tell 700 base pages\n");
	printf("expected: it goes on where what it told ends, at %lu KiB\n", (unsigned long)(behind >> 10));
	printf("found: it goes on at %lu KiB\n", (unsigned long)(next >> 10));
	return next != behind;
}
