// SPDX-License-Identifier: GPL-2.0
/*
 * A page is read back while zswap takes it, zeroed, and swapped out again: when zswap makes room it must stay zero.
 *
 * cc -static -o reproducer reproducer.c; root, two CPUs, zswap that holds nothing, a free loop device, no other swap.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/loop.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/swap.h>
#include <unistd.h>

#define ZSWAP "/sys/module/zswap/parameters/"
enum { TRIES = 20000, ROOM = 16 << 20 };
static char device[32], stack[65536], *volatile page;
static int loop = -1, meminfo, most, is_over;
static void set(int file, const char *value) { is_over |= write(file, value, strlen(value)) < 0; }
static void undo(void) { set(most, "20"), swapoff(device), ioctl(loop, LOOP_CLR_FD, 0); }
static int look(void *none) { while (!*(volatile int *)&is_over) (void)*(volatile char *)page; return none != NULL; }
static long zswapped(void)
{
	char text[4096] = "", *line = pread(meminfo, text, 4095, 0) > 0 ? strstr(text, "Zswapped:") : NULL;

	return line ? atol(line + 9) : -1;
}

int main(void)
{
	unsigned int size = getpagesize(), header[] = {1, ROOM / size - 1, 0}, tries = 0, rounds = 0;
	int content = memfd_create("swap", 0);
	char *other = mmap(NULL, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	page = other + size, meminfo = open("/proc/meminfo", O_RDONLY), most = open(ZSWAP "max_pool_percent", O_WRONLY);
	sprintf(device, "/dev/loop%d", ioctl(open("/dev/loop-control", O_RDWR), LOOP_CTL_GET_FREE));
	set(open(ZSWAP "enabled", O_WRONLY), "Y");
	if (is_over || ftruncate(content, ROOM) || pwrite(content, header, sizeof(header), 1024) < 0 ||
	    pwrite(content, "SWAPSPACE2", 10, size - 10) < 0 || (loop = open(device, O_RDWR)) < 0 ||
	    ioctl(loop, LOOP_SET_FD, content) || atexit(undo) || swapon(device, 0) || zswapped() ||
	    mlock(stack, sizeof(stack)) || clone(look, stack + sizeof(stack), CLONE_VM, NULL) < 0)
		return perror("cannot be tried here"), 2;
	do
		memset(page, 42, size), madvise(page, size, MADV_PAGEOUT), *(volatile char *)page;
	while (!zswapped() && ++tries < TRIES);
	is_over = 1;
	if (usleep(10000) || !zswapped())
		return puts("cannot be tried here: the page is not read while zswap takes it"), 2;
	memset(page, 0, size), madvise(page, size, MADV_PAGEOUT), set(most, "0");
	while (zswapped() && rounds++ < 300)
		memset(other, 43, size), madvise(other, size, MADV_PAGEOUT), usleep(10000);
	printf("a page of 42 comes back while zswap takes it, is zeroed, swapped out again, and zswap makes room\n");
	printf("expected: its first byte is 0\nfound: it is %d\n", *page);
	return *page != 0;
}
