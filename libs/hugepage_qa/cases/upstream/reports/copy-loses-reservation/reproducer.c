// SPDX-License-Identifier: GPL-2.0
/*
 * UFFDIO_COPY from memory that is not there yet to a private mapping without a reservation loses a page of min_size=.
 *
 * cc -static -o reproducer reproducer.c; root, no pages in the default pool, room for 6 and one in base pages. With the
 * bug pages stay reserved for nobody until the machine is rebooted.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

static long reserved(void)
{
	FILE *meminfo = fopen("/proc/meminfo", "r");
	char line[128];
	long pages = -1;

	while (meminfo && fgets(line, sizeof(line), meminfo) && sscanf(line, "HugePages_Rsvd: %ld", &pages) != 1)
		;
	return meminfo && !fclose(meminfo) ? pages : -1;
}

int main(void)
{
	char at[] = "/tmp/hugetlbfs-XXXXXX", *page, *source;
	int uffd = syscall(SYS_userfaultfd, O_CLOEXEC), file = -1, left = 6, used = 0;
	FILE *pool = fopen("/proc/sys/vm/nr_hugepages", "w");
	struct uffdio_api api = {.api = UFFD_API};
	struct statfs of;

	if (!pool || fprintf(pool, "6\n") < 0 || fclose(pool) || reserved() || ioctl(uffd, UFFDIO_API, &api) ||
	    !mkdtemp(at) || mount(at, at, "hugetlbfs", 0, "min_size=34%") || chdir(at) || statfs(".", &of) ||
	    reserved() != 2 || (file = open("file", O_CREAT | O_RDWR, 0600)) < 0 || ftruncate(file, of.f_bsize))
		return perror("cannot be tried here: 6 pages, a mount with min_size= of 2, userfaultfd"), 2;
	page = mmap(NULL, of.f_bsize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file, 0);
	source = mmap(NULL, of.f_bsize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	struct uffdio_register watched = {.range = {(uintptr_t)page, of.f_bsize}, .mode = UFFDIO_REGISTER_MODE_MISSING};
	struct uffdio_copy copy = {(uintptr_t)page, (uintptr_t)source, of.f_bsize, 0, 0};
	for (ioctl(uffd, UFFDIO_REGISTER, &watched); left; used = reserved(), left--) {
		if ((left <= 4 && madvise(source, of.f_bsize, MADV_DONTNEED)) || ioctl(uffd, UFFDIO_COPY, &copy) ||
		    madvise(page, of.f_bsize, MADV_DONTNEED))
			return perror("cannot be tried here: UFFDIO_COPY, MADV_DONTNEED"), 2;
		if (left > 4 && reserved() != 2)
			return puts("cannot be tried here: it loses one if the source is there, too (before 6.14)"), 2;
	}
	left = munmap(page, of.f_bsize) || close(file) || chdir("/") || umount(at) || rmdir(at) ? -1 : reserved();
	printf("a mount with min_size= of 2 pages, a page filled by UFFDIO_COPY and given back 4 times\n");
	printf("expected: HugePages_Rsvd is 2, and 0 when it is unmounted\nfound: %d, and %d\n", used, left);
	return used != 2 || left;
}
