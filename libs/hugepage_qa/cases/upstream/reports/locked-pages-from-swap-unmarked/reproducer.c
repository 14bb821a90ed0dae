// SPDX-License-Identifier: GPL-2.0
/*
 * Memory that was swapped out and is read back by mlock(2) must count as Mlocked, as it does when it was not in swap.
 *
 * cc -static -o reproducer reproducer.c; root, a free loop device, no other swap.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/loop.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/swap.h>
#include <unistd.h>

enum { LENGTH = 16 << 20, ROOM = 64 << 20 };
static char device[32];
static int loop = -1;

static void undo(void) { swapoff(device), ioctl(loop, LOOP_CLR_FD, 0); }

/* return the kB of Mlocked of all CPUs */
static long locked(void)
{
	char text[4096] = "", *line, none;
	ssize_t refreshed = read(open("/proc/sys/vm/stat_refresh", O_RDONLY), &none, 1);

	line = read(open("/proc/meminfo", O_RDONLY), text, sizeof(text) - 1) > 0 ? strstr(text, "Mlocked:") : NULL;
	return line && refreshed >= 0 ? atol(line + 8) : -1;
}

int main(void)
{
	unsigned int page = getpagesize(), header[] = {1, ROOM / page - 1, 0}, at, here = 1, tries = 100;
	volatile char *memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned char *there = malloc(LENGTH / page);
	long content = memfd_create("swap", 0), before;

	sprintf(device, "/dev/loop%d", ioctl(open("/dev/loop-control", O_RDWR), LOOP_CTL_GET_FREE));
	if (ftruncate(content, ROOM) || pwrite(content, header, sizeof(header), 1024) < 0 ||
	    pwrite(content, "SWAPSPACE2", 10, page - 10) < 0 || (loop = open(device, O_RDWR)) < 0 ||
	    ioctl(loop, LOOP_SET_FD, content) || atexit(undo) || swapon(device, 0) ||
	    madvise((void *)memory, LENGTH, MADV_NOHUGEPAGE))
		return perror("cannot be tried here: swap on a loop device"), 2;
	memset((void *)memory, 42, LENGTH);
	/* what was written is swap cache still, and leaves memory when it is paged out a second time */
	for (; here && tries; tries--) {
		madvise((void *)memory, LENGTH, MADV_PAGEOUT), usleep(10000), mincore((void *)memory, LENGTH, there);
		for (here = at = 0; at < LENGTH / page; at++)
			here += there[at] & 1 ? (void)memory[at * page], 1 : 0;
	}
	if (here || (before = locked()) < 0 || mlock((void *)memory, LENGTH))
		return perror("cannot be tried here: memory in swap"), 2;
	printf("memory of %d kB is in swap, and mlock(2) brings it back\n", LENGTH / 1024);
	printf("expected: Mlocked is %d kB more\nfound: %ld kB more\n", LENGTH / 1024, before = locked() - before);
	return before < LENGTH / 2048;
}
