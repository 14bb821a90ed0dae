// SPDX-License-Identifier: GPL-2.0
/*
 * Some blocks of memory in swap cannot be read any more: what the other ones hold can, after MADV_WILLNEED of all, too.
 *
 * cc -static -o reproducer reproducer.c; root, cgroup v2, a free loop device, no other swap: it is lost.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/loop.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/uio.h>
#include <unistd.h>

#define SLOT(entry) ((entry) >> 5 & ((1UL << 50) - 1)) /* what pagemap tells of what is in swap */
enum { PAGES = 64, ROOM = 64 << 20 };
static char device[32], groups[] = "/tmp/reproducer-XXXXXX", byte;
static int loop = -1;
static void put(const char *path, const char *text) { dprintf(open(path, O_WRONLY), "%s", text); }
static void undo(void) { swapoff(device), ioctl(loop, LOOP_CLR_FD, 0), put("cgroup.procs", "0"), rmdir("reproducer"),
			 chdir("/"), umount(groups), rmdir(groups); }

int main(void)
{
	unsigned int size = getpagesize(), header[] = {1, ROOM / size - 1, 0};
	int content = memfd_create("swap", 0), pagemap = open("/proc/self/pagemap", O_RDONLY);
	char *at = NULL;
	int left = 50, good = 0, found = 0, lost = 0, i;
	struct iovec local = {&byte, 1}, remote = {NULL, 1};
	uint64_t slots[PAGES], bad;

	sprintf(device, "/dev/loop%d", ioctl(open("/dev/loop-control", O_RDWR), LOOP_CTL_GET_FREE));
	if (ftruncate(content, ROOM) || pwrite(content, header, sizeof(header), 1024) < 0 ||
	    pwrite(content, "SWAPSPACE2", 10, size - 10) < 0 || (loop = open(device, O_RDWR)) < 0 ||
	    ioctl(loop, LOOP_SET_FD, content) || !mkdtemp(groups) || mount("none", groups, "cgroup2", 0, NULL) ||
	    chdir(groups) || atexit(undo) || mlockall(MCL_CURRENT) || swapon(device, 0) ||
	    (at = mmap(at, PAGES * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) == MAP_FAILED)
		return perror("cannot be tried here"), 2;
	put("cgroup.subtree_control", "+memory"), mkdir("reproducer", 0700), put("reproducer/cgroup.procs", "0");
	put("/proc/sys/vm/page-cluster", "0");
	for (memset(at, 42, PAGES * size); left--; usleep(10000))
		madvise(at, PAGES * size, MADV_PAGEOUT), put("reproducer/memory.reclaim", "64M");
	if (pread(pagemap, slots, sizeof(slots), (uintptr_t)at / size * 8) != sizeof(slots) ||
	    ftruncate(content, (bad = SLOT(slots[PAGES * 5 / 8])) * size) || madvise(at, PAGES * size, MADV_WILLNEED))
		return perror("cannot be tried here"), 2;
	for (i = 0; i < PAGES; i++) {
		remote.iov_base = at + i * size, left = process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1;
		good += SLOT(slots[i]) < bad, found += SLOT(slots[i]) < bad && left, lost += !left;
	}
	printf("of %d base pages in swap the blocks of %d can be read; MADV_WILLNEED of all\n", PAGES, good);
	return printf("expected: %d can be read\nfound: %d\n", good, found), !good || !lost ? 2 : found != good;
}
