// SPDX-License-Identifier: GPL-2.0
/*
 * Memory whose writes are tracked by UFFD_FEATURE_WP_ASYNC is given back, and is zero: it must be told as written.
 *
 * cc -static -o reproducer reproducer.c; root, and room for 2 pages in the default pool, whose pages are of 2 MiB.
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

#define LENGTH (2UL << 20)
#define FEATURES (1 << 15 | 1 << 13 | 1 << 12) /* WP_ASYNC, WP_UNPOPULATED, WP_HUGETLBFS_SHMEM */

static int is_protected(char *page)
{
	int fd = open("/proc/self/pagemap", O_RDONLY);
	uint64_t entry = 0;

	pread(fd, &entry, sizeof(entry), (uintptr_t)page / getpagesize() * sizeof(entry));
	return entry >> 57 & 1;
}

/* return whether the memory is as if it had not been written, 2 where that cannot be tried */
static int try(const char *name, int fd, int flags, int advice)
{
	char *page = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, flags, fd, 0);
	int uffd = syscall(SYS_userfaultfd, O_CLOEXEC), found;
	struct uffdio_api api = {.api = UFFD_API, .features = FEATURES};
	struct uffdio_register watched = {.range = {(uintptr_t)page, LENGTH}, .mode = UFFDIO_REGISTER_MODE_WP};
	struct uffdio_writeprotect on = {.range = watched.range, .mode = UFFDIO_WRITEPROTECT_MODE_WP};

	if (page == MAP_FAILED || !(page[0] = 42) || ioctl(uffd, UFFDIO_API, &api) ||
	    ioctl(uffd, UFFDIO_REGISTER, &watched) || ioctl(uffd, UFFDIO_WRITEPROTECT, &on) || !is_protected(page) ||
	    madvise(page, LENGTH, advice))
		return perror("cannot be tried here"), 2;
	found = is_protected(page);
	printf("found: %s: it is %d and told as %s\n", name, page[0], found ? "not written" : "written");
	return munmap(page, LENGTH), found;
}

int main(void)
{
	int found, shm = memfd_create("memory", 0), huge = memfd_create("huge", MFD_HUGETLB);
	FILE *pool = fopen("/proc/sys/vm/nr_hugepages", "w");

	if (!pool || fputs("2\n", pool) < 0 || fclose(pool) || ftruncate(shm, LENGTH) || ftruncate(huge, LENGTH))
		return perror("cannot be tried here"), 2;
	puts("expected: each time it is 0 and told as written");
	found = try("shared memory, MADV_REMOVE", shm, MAP_SHARED, MADV_REMOVE) |
		try("hugetlb file, MADV_REMOVE", huge, MAP_SHARED, MADV_REMOVE) |
		try("hugetlb, private, MADV_DONTNEED", -1, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, MADV_DONTNEED);
	return found & 1 ? 1 : found;
}
