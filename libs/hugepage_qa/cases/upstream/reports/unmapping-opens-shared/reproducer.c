// SPDX-License-Identifier: GPL-2.0
/*
 * Shared memory that UFFDIO_RWPROTECT closed, in base pages, is open once others have its file made huge.
 *
 * cc -static -o reproducer reproducer.c; root.
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
/* of Linux 7.3 */
#define FEATURES (1 << 17 | 1 << 12) /* RWP, WP_HUGETLBFS_SHMEM */
#define MODE_RWP 8
#define RWPROTECT _IOWR(UFFDIO, 9, struct uffdio_writeprotect)

static int marks(char *page)
{
	uint64_t entries[SIZE >> 12];
	int found = 0, count = SIZE / getpagesize(), fd = open("/proc/self/pagemap", O_RDONLY);

	pread(fd, entries, count * 8, (uintptr_t)page / getpagesize() * 8);
	while (count--)
		found += entries[count] >> 57 & 1;
	return found;
}

/* return 1 where memory that was protected by such an ioctl() is not any more, 2 where that cannot be tried */
static int try(const char *name, int mode, unsigned long protect)
{
	int uffd = syscall(SYS_userfaultfd, O_CLOEXEC), file = memfd_create("memory", 0), before, after;
	struct uffdio_api api = {.api = UFFD_API, .features = FEATURES};
	char *room = mmap(NULL, 4 * SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *page = (char *)(((uintptr_t)room + SIZE - 1) & -SIZE), *other = page + 2 * SIZE;
	struct uffdio_register watched = {.range = {(uintptr_t)page, SIZE}, .mode = mode};
	struct uffdio_writeprotect on = {.range = watched.range, .mode = 1};

	if (ftruncate(file, SIZE) || mmap(page, SIZE, 3, MAP_SHARED | MAP_FIXED, file, 0) != page ||
	    mmap(other, SIZE, 3, MAP_SHARED | MAP_FIXED, file, 0) != other || !memset(page, 42, SIZE) ||
	    ioctl(uffd, UFFDIO_API, &api) || ioctl(uffd, UFFDIO_REGISTER, &watched) || ioctl(uffd, protect, &on) ||
	    !(before = marks(page)) || !memset(other, 42, SIZE) || madvise(other, SIZE, 25 /* MADV_COLLAPSE */))
		return perror("cannot be tried here"), 2;
	after = marks(page);
	printf("found: %s: bit 57 of pagemap of %d base pages before it, of %d after it\n", name, before, after);
	return after != before;
}

int main(void)
{
	puts("MADV_COLLAPSE of another mapping of the file\nexpected: what was protected is so");
	return try("UFFDIO_WRITEPROTECT", 2, UFFDIO_WRITEPROTECT) | try("UFFDIO_RWPROTECT", MODE_RWP, RWPROTECT);
}
