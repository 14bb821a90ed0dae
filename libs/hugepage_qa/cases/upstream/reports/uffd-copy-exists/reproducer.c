// SPDX-License-Identifier: GPL-2.0
/*
 * UFFDIO_COPY to hugetlb memory that the pool has no page for fails with EEXIST instead of ENOMEM.
 *
 * cc -static -o reproducer reproducer.c; root, no pages in the default pool, room for 1.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HUGE (MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB)

/* The size of a huge page in bytes, of which the pool gets one. */
static size_t make_pool(void)
{
	unsigned long size = 0;
	char line[99];
	FILE *file = fopen("/proc/meminfo", "r"), *pool = fopen("/proc/sys/vm/nr_hugepages", "w");

	while (file && fgets(line, sizeof(line), file))
		sscanf(line, "Hugepagesize: %lu", &size);
	return pool && fputs("1\n", pool) >= 0 && !fclose(pool) ? size << 10 : 0;
}

int main(void)
{
	size_t size = make_pool();
	int descriptor = (int)syscall(SYS_userfaultfd, O_CLOEXEC), error;
	struct uffdio_api api = {.api = UFFD_API};
	struct uffdio_register range = {.mode = UFFDIO_REGISTER_MODE_MISSING};
	struct uffdio_copy copy = {0};
	char *used, *missing, *source = calloc(1, size ? size : 1);

	used = mmap(NULL, size, PROT_READ | PROT_WRITE, HUGE | MAP_POPULATE, -1, 0);
	missing = mmap(NULL, size, PROT_READ | PROT_WRITE, HUGE | MAP_NORESERVE, -1, 0);
	if (!size || used == MAP_FAILED || missing == MAP_FAILED || descriptor < 0)
		return perror("cannot be tried here: a page in use, and one that is missing"), 2;
	range.range.start = copy.dst = (unsigned long)missing;
	range.range.len = copy.len = size;
	copy.src = (unsigned long)source;
	if (ioctl(descriptor, UFFDIO_API, &api) || ioctl(descriptor, UFFDIO_REGISTER, &range))
		return perror("cannot be tried here: userfaultfd of hugetlb"), 2;
	error = ioctl(descriptor, UFFDIO_COPY, &copy) ? errno : 0;
	printf("UFFDIO_COPY to missing memory, the only huge page is in use\n");
	printf("expected: %s\nfound: %s\n", strerror(ENOMEM), strerror(error));
	return error == EEXIST ? 1 : error == ENOMEM ? 0 : 2;
}
