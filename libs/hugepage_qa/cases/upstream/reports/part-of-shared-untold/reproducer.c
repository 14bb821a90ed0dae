// SPDX-License-Identifier: GPL-2.0
/*
 * A PAGEMAP_SCAN that protects half of a huge page of shared memory must tell that it is present and was written.
 *
 * cc -static -o reproducer reproducer.c; root, a kernel with huge pages of shared memory.
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

#define SIZE (2UL << 20)
#define COLLAPSE 25			       /* MADV_COLLAPSE of Linux 6.1 */
#define FEATURES (1 << 15 | 1 << 13 | 1 << 12) /* WP_ASYNC, WP_UNPOPULATED, WP_HUGETLBFS_SHMEM */
#define WRITTEN 2			       /* PAGE_IS_WRITTEN of Linux 6.7 */
#define PRESENT 8			       /* PAGE_IS_PRESENT */
struct region { uint64_t start, end, categories; };
struct scan { uint64_t size, flags, start, end, walk_end, vec, room, most, inverted, mask, any, wanted; };

/* return how many base pages are told, or -1 */
static long scan_half(char *start)
{
	struct region found[8];
	struct scan scan = {.size = sizeof(scan), .flags = 1, .start = (uintptr_t)start, .vec = (uintptr_t)found,
			    .room = 8, .mask = WRITTEN | PRESENT, .wanted = WRITTEN};
	int at, told;
	long pages = 0;

	scan.end = scan.start + SIZE / 2;
	told = ioctl(open("/proc/self/pagemap", O_RDONLY), _IOWR('f', 16, struct scan), &scan);
	for (at = 0; at < told; at++)
		pages += (found[at].end - found[at].start) / getpagesize();
	return told < 0 ? -1 : pages;
}

int main(void)
{
	char *room = mmap(NULL, 2 * SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *start = (char *)(((uintptr_t)room + SIZE - 1) & -SIZE);
	int file = memfd_create("memory", 0), uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
	struct uffdio_api api = {.api = UFFD_API, .features = FEATURES};
	struct uffdio_register all = {.range = {(uintptr_t)start, SIZE}, .mode = UFFDIO_REGISTER_MODE_WP};
	long told;

	if (ftruncate(file, SIZE) ||
	    mmap(start, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != start ||
	    !memset(start, 42, SIZE) || madvise(start, SIZE, COLLAPSE) || ioctl(uffd, UFFDIO_API, &api) ||
	    ioctl(uffd, UFFDIO_REGISTER, &all) || (told = scan_half(start)) < 0)
		return perror("cannot be tried here"), 2;
	puts("half of a huge page of shared memory is scanned, and protected, that is present and was written");
	printf("expected: %ld base pages are told\nfound: %ld are\n", SIZE / 2 / getpagesize(), told);
	return told != (long)SIZE / 2 / getpagesize();
}
