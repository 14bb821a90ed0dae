// SPDX-License-Identifier: GPL-2.0
/*
 * UFFDIO_MOVE of memory that is write-protected takes the protection along where it is in swap, and not otherwise.
 *
 * cc -static -o reproducer reproducer.c; root, a free loop device, no other swap.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/loop.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/swap.h>
#include <sys/sysinfo.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ROOM (64UL << 20)
#define MOVE _IOWR(UFFDIO, 5, uint64_t[5]) /* of Linux 6.8, UFFD_FEATURE_MOVE is 1 << 16 */
static char device[32];
static int loop = -1;
static void undo(void) { swapoff(device), ioctl(loop, LOOP_CLR_FD, 0); }
static void tell(int number) { exit(puts("found: the write gets SIGBUS") < 0 ? number : 1); }

int main(void)
{
	unsigned int size = getpagesize(), header[] = {1, ROOM / size - 1, 0};
	int content = memfd_create("swap", 0), uffd = syscall(SYS_userfaultfd, O_CLOEXEC), left = 100;
	char *page = mmap(NULL, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t from = (uintptr_t)page, to = from + size, move[] = {to, from, size, 0, 0};
	struct uffdio_api api = {.api = UFFD_API, .features = 1 << 16 | UFFD_FEATURE_SIGBUS};
	struct uffdio_register watched = {.range = {from, size}, .mode = UFFDIO_REGISTER_MODE_WP};
	struct uffdio_register other = {.range = {to, size}, .mode = UFFDIO_REGISTER_MODE_MISSING | watched.mode};
	struct uffdio_writeprotect on = {.range = watched.range, .mode = UFFDIO_WRITEPROTECT_MODE_WP};
	struct sysinfo use = {0};

	sprintf(device, "/dev/loop%d", ioctl(open("/dev/loop-control", O_RDWR), LOOP_CTL_GET_FREE));
	if (ftruncate(content, ROOM) || pwrite(content, header, sizeof(header), 1024) < 0 ||
	    pwrite(content, "SWAPSPACE2", 10, size - 10) < 0 || (loop = open(device, O_RDWR)) < 0 ||
	    ioctl(loop, LOOP_SET_FD, content) || atexit(undo) || swapon(device, 0))
		return perror("cannot be tried here: swap on a loop device"), 2;
	if (page == MAP_FAILED || !(page[0] = 42) || ioctl(uffd, UFFDIO_API, &api) ||
	    ioctl(uffd, UFFDIO_REGISTER, &watched) || ioctl(uffd, UFFDIO_REGISTER, &other) ||
	    ioctl(uffd, UFFDIO_WRITEPROTECT, &on))
		return perror("cannot be tried here: userfaultfd"), 2;
	for (; use.totalswap == use.freeswap && left--; usleep(10000))
		madvise(page, size, MADV_PAGEOUT), sysinfo(&use);
	if (use.totalswap == use.freeswap || ioctl(uffd, MOVE, move))
		return perror("cannot be tried here: it is not swapped out, or not moved"), 2;
	signal(SIGBUS, tell);
	puts("a write-protected page in swap is moved to where nothing was write-protected, and is written there");
	puts("expected: the write is done");
	page[size] = 43;
	return puts("found: the write is done"), 0;
}
