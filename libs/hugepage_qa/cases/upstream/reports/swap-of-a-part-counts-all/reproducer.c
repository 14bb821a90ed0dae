// SPDX-License-Identifier: GPL-2.0
/*
 * Swap in smaps counts all of a huge page of a tmpfs that was swapped out as a whole, where a part of it is mapped.
 *
 * cc -static -o reproducer reproducer.c; root, tmpfs with huge pages of 2 MiB, a free loop device, no other swap.
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
#include <unistd.h>

#define HUGE (2UL << 20)
#define ROOM (64UL << 20)
static char device[32], point[] = "/tmp/reproducer-XXXXXX";
static int loop = -1;

static void undo(void) { swapoff(device), umount2(point, MNT_DETACH), rmdir(point), ioctl(loop, LOOP_CLR_FD, 0); }

int main(void)
{
	char path[64], line[999], *at, *part;
	unsigned int page = getpagesize(), header[] = {1, ROOM / page - 1, 0};
	int content = memfd_create("swap", 0), file, left = 100;
	unsigned long start, end, found = 0, here = 0;
	struct sysinfo use = {0};
	FILE *smaps = fopen("/proc/self/smaps", "r");

	sprintf(device, "/dev/loop%d", ioctl(open("/dev/loop-control", O_RDWR), LOOP_CTL_GET_FREE));
	if (ftruncate(content, ROOM) || pwrite(content, header, sizeof(header), 1024) < 0 ||
	    pwrite(content, "SWAPSPACE2", 10, page - 10) < 0 || (loop = open(device, O_RDWR)) < 0 ||
	    ioctl(loop, LOOP_SET_FD, content) || atexit(undo) || /* from here on the device is our own */
	    !mkdtemp(point) || swapon(device, 0) || mount("none", point, "tmpfs", 0, "huge=always"))
		return perror("cannot be tried here: swap on a loop device, and a tmpfs"), 2;
	file = open(strcat(strcpy(path, point), "/file"), O_RDWR | O_CREAT, 0600);
	if (ftruncate(file, HUGE) ||
	    (at = mmap(NULL, HUGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)) == MAP_FAILED)
		return perror("cannot be tried here: a file"), 2;
	memset(at, 42, HUGE);
	for (; use.totalswap - use.freeswap < HUGE && left--; usleep(10000))
		madvise(at, HUGE, MADV_PAGEOUT), sysinfo(&use);
	part = mmap(NULL, 2 * page, PROT_READ, MAP_SHARED, file, 0);
	while (smaps && fgets(line, sizeof(line), smaps))
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			here = start == (unsigned long)part;
		else if (here)
			sscanf(line, "Swap: %lu kB", &found);
	printf("a huge page of a tmpfs is in swap, and two base pages of it are mapped\n");
	printf("expected: Swap of these %u kB\nfound: %lu kB\n", 2 * page / 1024, found);
	return found ? found != 2 * page / 1024 : 2;
}
