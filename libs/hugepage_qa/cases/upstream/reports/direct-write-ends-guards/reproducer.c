// SPDX-License-Identifier: GPL-2.0
/*
 * Guards in a mapping of a file in large folios: a write by O_DIRECT to another page of the folio must leave them.
 *
 * cc -static -o reproducer reproducer.c; root, a free loop device. The file is that device, with blocks of 16 KiB.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/loop.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define GUARD_INSTALL 102 /* MADV_GUARD_INSTALL of Linux 6.13, of files since 6.15 */
static sigjmp_buf after_read;
static int loop = -1;

static void undo(void) { ioctl(loop, LOOP_CLR_FD, 0); }
static void tell(int number) { siglongjmp(after_read, number); }
static int is_guarded(volatile char *page)
{
	if (sigsetjmp(after_read, 1))
		return 1;
	return page[0] && 0;
}

int main(void)
{
	long size = getpagesize();
	int blocks[] = {size, 4 * size}, content = memfd_create("disk", 0), at, left = 1;
	char device[32], *buffer = aligned_alloc(size, size), *pages;

	signal(SIGSEGV, tell);
	sprintf(device, "/dev/loop%d", ioctl(open("/dev/loop-control", O_RDWR), LOOP_CTL_GET_FREE));
	if (!buffer || ftruncate(content, 16 * size) || (loop = open(device, O_RDWR)) < 0 ||
	    ioctl(loop, LOOP_SET_FD, content) || atexit(undo))
		return perror("cannot be tried here: a loop device"), 2;
	puts("a guard for the first page of a file, a write by O_DIRECT to its third one\nexpected: the guard stays");
	for (at = 0; at < 2; at++) {
		int file = ioctl(loop, BLKBSZSET, &blocks[at]) ? -1 : open(device, O_RDWR | O_DIRECT);

		pages = file < 0 ? MAP_FAILED : mmap(NULL, 4 * size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
		if (pages == MAP_FAILED || madvise(pages, 4 * size, MADV_POPULATE_READ) ||
		    madvise(pages, size, GUARD_INSTALL) || !is_guarded(pages))
			return perror("cannot be tried here: large blocks, or guards in files"), 2;
		if (pwrite(file, buffer, size, 2 * size) != size)
			return perror("cannot be tried here: O_DIRECT"), 2;
		left = is_guarded(pages);
		printf("found: blocks of %d bytes: it %s\n", blocks[at], left ? "stays" : "is gone");
		munmap(pages, 4 * size), close(file);
	}
	return !left;
}
