// SPDX-License-Identifier: GPL-2.0
/*
 * MADV_WILLNEED of a base page of shared memory in swap, then of all: what comes, and what does mincore() tell of it?
 *
 * cc -static -o reproducer reproducer.c; root, huge pages of 2 MiB, cgroup v2, a free loop device, no other swap.
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
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <unistd.h>

enum { HUGE = 2 << 20, ROOM = 64 << 20 };
static char device[32], groups[] = "/tmp/reproducer-XXXXXX", there[HUGE], *at;
static int loop = -1, failed;
static void put(const char *path, const char *text) { failed = write(open(path, O_WRONLY), text, strlen(text)) < 0; }
static void undo(void) { swapoff(device), ioctl(loop, LOOP_CLR_FD, 0), put("cgroup.procs", "0"), rmdir("reproducer"),
			 chdir("/"), umount(groups), rmdir(groups); }
static int told(void)
{
	int found = 0, page = mincore(at, HUGE, (void *)there) ? HUGE : HUGE / getpagesize();

	for (; page--; found += there[page] & 1);
	return found;
}

int main(void)
{
	unsigned int size = getpagesize(), header[] = {1, ROOM / size - 1, 0};
	int content = memfd_create("swap", 0), left = 300, found, i = HUGE;
	struct rusage was, now;

	put("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "advise");
	at = mmap(NULL, HUGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	sprintf(device, "/dev/loop%d", ioctl(open("/dev/loop-control", O_RDWR), LOOP_CTL_GET_FREE));
	if (failed || ftruncate(content, ROOM) || pwrite(content, header, sizeof(header), 1024) < 0 ||
	    pwrite(content, "SWAPSPACE2", 10, size - 10) < 0 || (loop = open(device, O_RDWR)) < 0 ||
	    ioctl(loop, LOOP_SET_FD, content) || !mkdtemp(groups) || mount("none", groups, "cgroup2", 0, NULL) ||
	    chdir(groups) || atexit(undo) || swapon(device, 0) || madvise(at, HUGE, MADV_HUGEPAGE))
		return perror("cannot be tried here"), 2;
	put("cgroup.subtree_control", "+memory"), mkdir("reproducer", 0700), put("reproducer/cgroup.procs", "0");
	for (memset(at, 42, HUGE); told() && left--; usleep(10000))
		madvise(at, HUGE, MADV_PAGEOUT), put("reproducer/memory.reclaim", "64M");
	madvise(at + HUGE / 2, size, MADV_WILLNEED), usleep(200000), found = told();
	madvise(at, HUGE, MADV_WILLNEED), usleep(500000), getrusage(RUSAGE_SELF, &was);
	for (; i; (void)*(volatile char *)(at + (i -= size)));
	getrusage(RUSAGE_SELF, &now), now.ru_majflt -= was.ru_majflt;
	printf("a huge page of shared memory is in swap; MADV_WILLNEED of a base page, then of all\n");
	printf("expected: mincore() tells of 1 or 2, 0 major faults\nfound: %d, %ld\n", found, now.ru_majflt);
	return left < 0 ? 2 : found > 2 || now.ru_majflt;
}
