// SPDX-License-Identifier: GPL-2.0
/*
 * A PAGEMAP_SCAN that protects all of three hugetlb pages must protect the two that nobody has touched: then they are
 * read alone, and not told as written. The first one is touched before, so that there is a page table.
 *
 * cc -static -o reproducer reproducer.c; root, and room for 3 pages in the default pool, whose pages are of 2 MiB.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE (2UL << 20)
#define LENGTH (3 * PAGE)
#define FEATURES (1 << 15 | 1 << 13 | 1 << 12) /* WP_ASYNC, WP_UNPOPULATED, WP_HUGETLBFS_SHMEM */
#define PROTECT 3 /* PM_SCAN_WP_MATCHING, PM_SCAN_CHECK_WPASYNC */
#define WRITTEN 2
/* struct pm_scan_arg and struct page_region of linux/fs.h, which is not there before Linux 6.7 */
struct region { uint64_t start, end, categories; } found[8];
struct scan { uint64_t size, flags, start, end, walk_end, vec, room, most, inverted, mask, any, wanted; };

/* return how many hugetlb pages that are all of mask are told, or -1 */
static int scan(char *memory, uint64_t flags, uint64_t mask)
{
	struct scan scan = {.size = sizeof(scan), .flags = flags, .start = (uintptr_t)memory, .vec = (uintptr_t)found,
			    .end = (uintptr_t)memory + LENGTH, .room = 8, .mask = mask, .wanted = WRITTEN};
	int at, pages = 0, told = ioctl(open("/proc/self/pagemap", O_RDONLY), _IOWR('f', 16, struct scan), &scan);

	for (at = 0; at < told; at++)
		pages += (found[at].end - found[at].start) / PAGE;
	return told < 0 ? -1 : pages;
}

int main(void)
{
	FILE *pool = fopen("/proc/sys/vm/nr_hugepages", "w");
	int uffd = syscall(SYS_userfaultfd, O_CLOEXEC), told;
	struct uffdio_api api = {.api = UFFD_API, .features = FEATURES};

	if (!pool || fputs("3\n", pool) < 0 || fclose(pool))
		return perror("cannot be tried here"), 2;
	char *start = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	struct uffdio_register all = {.range = {(uintptr_t)start, LENGTH}, .mode = UFFDIO_REGISTER_MODE_WP};
	volatile char *memory = start;

	if (start == MAP_FAILED || !(memory[0] = 42) || ioctl(uffd, UFFDIO_API, &api) ||
	    ioctl(uffd, UFFDIO_REGISTER, &all) || scan(start, PROTECT, 0) != 3 || memory[PAGE] || memory[2 * PAGE] ||
	    (told = scan(start, 0, WRITTEN)) < 0)
		return perror("cannot be tried here"), 2;
	printf("a page is touched, two are not, a scan protects all three, and the two are read\n");
	printf("expected: 0 of 3 pages are told as written\nfound: %d are\n", told);
	return told > 0;
}
