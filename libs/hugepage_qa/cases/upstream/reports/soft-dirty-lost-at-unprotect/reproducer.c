// SPDX-License-Identifier: GPL-2.0
/*
 * Base pages of a memfd are protected by UFFDIO_WRITEPROTECT, and no more, and written: they must be soft-dirty.
 *
 * cc -static -o reproducer reproducer.c; root, a kernel with CONFIG_MEM_SOFT_DIRTY.
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

#define PAGES 16

/* Return how many base pages are soft-dirty: bit 55 of /proc/self/pagemap. */
static int soft_dirty(const char *pages, long size)
{
	int pagemap = open("/proc/self/pagemap", O_RDONLY), found = 0, page;
	uint64_t entries[PAGES] = {0};

	if (pread(pagemap, entries, sizeof(entries), (uintptr_t)pages / size * 8) == sizeof(entries))
		for (page = 0; page < PAGES; page++)
			found += entries[page] >> 55 & 1;
	return close(pagemap), found;
}

int main(void)
{
	long size = getpagesize(), length = PAGES * size;
	int file = memfd_create("memory", 0), uffd = syscall(SYS_userfaultfd, O_CLOEXEC), found;
	int clear_refs = open("/proc/self/clear_refs", O_WRONLY);
	char *pages = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	struct uffdio_api api = {.api = UFFD_API, .features = 1 << 12}; /* UFFD_FEATURE_WP_HUGETLBFS_SHMEM */
	struct uffdio_register all = {.range = {(uintptr_t)pages, length}, .mode = UFFDIO_REGISTER_MODE_WP};
	struct uffdio_writeprotect on = {.range = all.range, .mode = UFFDIO_WRITEPROTECT_MODE_WP};
	struct uffdio_writeprotect off = {.range = all.range};

	if (pages == MAP_FAILED || ftruncate(file, length) || !memset(pages, 42, length) ||
	    soft_dirty(pages, size) != PAGES || write(clear_refs, "4", 1) != 1 || soft_dirty(pages, size) ||
	    ioctl(uffd, UFFDIO_API, &api) || ioctl(uffd, UFFDIO_REGISTER, &all) ||
	    ioctl(uffd, UFFDIO_WRITEPROTECT, &on) || ioctl(uffd, UFFDIO_WRITEPROTECT, &off))
		return perror("cannot be tried here, or this kernel does not tell what was written"), 2;
	memset(pages, 43, length);
	found = soft_dirty(pages, size);
	printf("4 is written to clear_refs, %d pages of a memfd are protected, and no more, and written\n", PAGES);
	printf("expected: %d are soft-dirty\nfound: %d\n", PAGES, found);
	return found != PAGES;
}
