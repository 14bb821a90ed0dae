// SPDX-License-Identifier: GPL-2.0
/*
 * UFFDIO_UNREGISTER of a range that ends within a hugetlb page fails, and the page is no longer write-protected.
 *
 * cc -static -o reproducer reproducer.c; root, and room for a page in the default pool, whose pages are of 2 MiB.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <errno.h>
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
#define WP_HUGETLBFS_SHMEM (1 << 12)

static int is_protected(char *page)
{
	int fd = open("/proc/self/pagemap", O_RDONLY);
	uint64_t entry = 0;

	pread(fd, &entry, sizeof(entry), (uintptr_t)page / getpagesize() * sizeof(entry));
	return entry >> 57 & 1;
}

int main(void)
{
	FILE *pool = fopen("/proc/sys/vm/nr_hugepages", "r+");
	int pages = -1, fd = syscall(SYS_userfaultfd, O_CLOEXEC), before, after, error;
	struct uffdio_api api = {.api = UFFD_API, .features = WP_HUGETLBFS_SHMEM};
	char *page;

	if (!pool || fscanf(pool, "%d", &pages) != 1 || (rewind(pool), fprintf(pool, "%d\n", pages + 1) < 0))
		return puts("cannot be tried here: no pool that can grow"), 2;
	fflush(pool);
	page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	struct uffdio_range all = {(uintptr_t)page, PAGE}, half = {(uintptr_t)page, PAGE / 2};
	struct uffdio_register watched = {.range = all, .mode = UFFDIO_REGISTER_MODE_WP};
	struct uffdio_writeprotect on = {.range = all, .mode = UFFDIO_WRITEPROTECT_MODE_WP};

	if (page == MAP_FAILED || ioctl(fd, UFFDIO_API, &api) || !(page[0] = 42) ||
	    ioctl(fd, UFFDIO_REGISTER, &watched) || ioctl(fd, UFFDIO_WRITEPROTECT, &on) ||
	    !(before = is_protected(page)))
		return perror("cannot be tried here"), 2;
	error = ioctl(fd, UFFDIO_UNREGISTER, &half) ? errno : 0;
	after = is_protected(page);
	munmap(page, PAGE);
	fprintf(pool, "%d\n", pages);
	fclose(pool);
	printf("UFFDIO_UNREGISTER of the first half of a protected hugetlb page\n");
	printf("expected: %s, and the page is protected\n", strerror(EINVAL));
	printf("found: %s, and the page is %sprotected\n", strerror(error), after ? "" : "no longer ");
	return error != EINVAL || after != before;
}
