// SPDX-License-Identifier: GPL-2.0
/*
 * A base page of a memfd broke: no buffer must be made of it by UDMABUF_CREATE, as nobody can map it or read it.
 *
 * cc -static -o reproducer reproducer.c; root, CONFIG_MEMORY_FAILURE, /dev/udmabuf. A base page is out of use until the
 * machine boots again.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

static sigjmp_buf after_read;

static void tell(int number) { siglongjmp(after_read, number); }

/* Read the byte that is there: -1 where that is SIGBUS. */
static int read_byte(const volatile char *place)
{
	return sigsetjmp(after_read, 1) ? -1 : *place;
}

int main(void)
{
	long size = getpagesize();
	int file = memfd_create("broken", MFD_ALLOW_SEALING), device = open("/dev/udmabuf", O_RDWR), buffer;
	struct udmabuf_create part = {.memfd = file, .size = size};
	char byte, *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0), *mapped;

	if (device < 0 || page == MAP_FAILED || ftruncate(file, size) || fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK))
		return perror("cannot be tried here: a memfd and /dev/udmabuf"), 2;
	signal(SIGBUS, tell);
	memset(page, 42, size);
	/* newer kernels send SIGBUS to who calls madvise(), too */
	if (!sigsetjmp(after_read, 1) && madvise(page, size, MADV_HWPOISON))
		return perror("cannot be tried here: MADV_HWPOISON"), 2;
	if (read_byte(page) != -1 || pread(file, &byte, 1, 0) != -1 || errno != EIO)
		return puts("cannot be tried here: the page is there still"), 2;
	puts("a base page of a memfd broke: its mapping gets SIGBUS, read(2) fails with EIO");
	puts("expected: UDMABUF_CREATE of it fails");
	buffer = ioctl(device, UDMABUF_CREATE, &part);
	if (buffer < 0)
		return printf("found: it fails: %s\n", strerror(errno)), 0;
	mapped = mmap(NULL, size, PROT_READ, MAP_SHARED, buffer, 0);
	printf("found: it makes a buffer, whose mapping has %d there\n", mapped == MAP_FAILED ? -1 : read_byte(mapped));
	return 1;
}
