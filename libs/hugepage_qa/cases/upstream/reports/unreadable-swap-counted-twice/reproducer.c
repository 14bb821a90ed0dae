// SPDX-License-Identifier: GPL-2.0
/*
 * A file of shared memory is in swap that cannot be read any more, and is emptied: it must be empty, and be written.
 *
 * cc -static -o reproducer reproducer.c; root, cgroup v2, a free loop device, no other swap: it is lost.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <unistd.h>

enum { LENGTH = 64 << 10, ROOM = 64 << 20 };
static char device[32], groups[] = "/tmp/reproducer-XXXXXX", there[LENGTH], *at;
static int loop = -1, failed;
static void put(const char *path, const char *text) { failed = write(open(path, O_WRONLY), text, strlen(text)) < 0; }
static void undo(void) { swapoff(device), ioctl(loop, LOOP_CLR_FD, 0), put("cgroup.procs", "0"), rmdir("reproducer"),
			 chdir("/"), umount(groups), rmdir(groups); }
static int told(void)
{
	int found = 0, page = mincore(at, LENGTH, (void *)there) ? LENGTH : LENGTH / getpagesize();

	for (; page--; found += there[page] & 1);
	return found;
}

int main(void)
{
	unsigned int size = getpagesize(), header[] = {1, ROOM / size - 1, 0};
	int content = memfd_create("swap", 0), file = memfd_create("file", 0), left = 300, lost = 0, i;

	sprintf(device, "/dev/loop%d", ioctl(open("/dev/loop-control", O_RDWR), LOOP_CTL_GET_FREE));
	if (ftruncate(content, ROOM) || pwrite(content, header, sizeof(header), 1024) < 0 || ftruncate(file, LENGTH) ||
	    pwrite(content, "SWAPSPACE2", 10, size - 10) < 0 || (loop = open(device, O_RDWR)) < 0 ||
	    ioctl(loop, LOOP_SET_FD, content) || !mkdtemp(groups) || mount("none", groups, "cgroup2", 0, NULL) ||
	    chdir(groups) || atexit(undo) || swapon(device, 0))
		return perror("cannot be tried here"), 2;
	at = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	put("cgroup.subtree_control", "+memory"), mkdir("reproducer", 0700), put("reproducer/cgroup.procs", "0");
	for (memset(at, 42, LENGTH); told() && left--; usleep(10000))
		madvise(at, LENGTH, MADV_PAGEOUT), put("reproducer/memory.reclaim", "64M");
	for (i = ftruncate(content, size); i < LENGTH; i += size)
		lost += pread(file, there, 1, i) < 0;
	if (lost != LENGTH / (int)size || ftruncate(file, 0) || ftruncate(file, LENGTH))
		return printf("cannot be tried here: %d base pages cannot be read from swap\n", lost), 2;
	errno = 0, i = pwrite(file, "x", 1, 0);
	printf("%d base pages cannot be read from swap, the file is cut to 0 bytes, extended and written\n", lost);
	return printf("expected: 1 (Success)\nfound: %d (%s)\n", i, strerror(errno)), i != 1;
}
