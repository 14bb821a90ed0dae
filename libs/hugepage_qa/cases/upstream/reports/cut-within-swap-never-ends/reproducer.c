// SPDX-License-Identifier: GPL-2.0
/*
 * ftruncate() to a size within a huge page of a tmpfs that was swapped out as a whole never returns.
 *
 * cc -static -o reproducer reproducer.c; root, tmpfs with huge pages of 2 MiB, a free loop device, no other swap.
 * On a kernel that has the bug a process uses a CPU for 20 seconds: no signal ends it, but swapoff().
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
#include <sys/mount.h>
#include <sys/swap.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

#define HUGE (2UL << 20)
#define ROOM (64UL << 20)
static char device[32], path[64], point[] = "/tmp/reproducer-XXXXXX", *at;
static int loop = -1;

static void undo(void) { swapoff(device), umount2(point, MNT_DETACH), rmdir(point), ioctl(loop, LOOP_CLR_FD, 0); }

int main(void)
{
	unsigned int page = getpagesize(), header[] = {1, ROOM / page - 1, 0};
	int content = memfd_create("swap", 0), file, child, waited = 0, left = 100;
	struct sysinfo use = {0};

	sprintf(device, "/dev/loop%d", ioctl(open("/dev/loop-control", O_RDWR), LOOP_CTL_GET_FREE));
	if (ftruncate(content, ROOM) || pwrite(content, header, sizeof(header), 1024) < 0 ||
	    pwrite(content, "SWAPSPACE2", 10, page - 10) < 0 || (loop = open(device, O_RDWR)) < 0 ||
	    ioctl(loop, LOOP_SET_FD, content) || atexit(undo) || /* from here on the device is our own */
	    !mkdtemp(point) || swapon(device, 0) || mount("none", point, "tmpfs", 0, "huge=always"))
		return perror("cannot be tried here: swap on a loop device, and a tmpfs"), 2;
	file = open(strcat(strcpy(path, point), "/file"), O_RDWR | O_CREAT, 0600);
	if (ftruncate(file, 2 * HUGE) ||
	    (at = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)) == MAP_FAILED)
		return perror("cannot be tried here: a file"), 2;
	memset(at, 42, 2 * HUGE);
	for (; use.totalswap - use.freeswap < 2 * HUGE && left--; usleep(10000))
		madvise(at, 2 * HUGE, MADV_PAGEOUT), sysinfo(&use);
	if (use.totalswap - use.freeswap < 2 * HUGE)
		return puts("cannot be tried here: it is not swapped out"), 2;
	if (!(child = fork()))
		_exit(ftruncate(file, HUGE + page) != 0);
	while (!waitpid(child, NULL, WNOHANG) && waited++ < 200)
		usleep(100000);
	puts("of two huge pages of a tmpfs, both in swap, the second is cut off a base page behind its start");
	printf("expected: ftruncate() returns\nfound: it %s\n",
	       waited > 200 ? "has not returned after 20 seconds" : "returns");
	return waited > 200;
}
