// SPDX-License-Identifier: GPL-2.0
/*
 * Pages of a device with blocks of 16 KiB are to be taken out of use, which is refused: they must be free when the
 * device has gone.
 *
 * cc -static -o reproducer reproducer.c; root, a loop device, base pages of 4 kB, CONFIG_MEMORY_FAILURE, an idle
 * machine. What is lost is lost until it boots again.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_SOFT_OFFLINE
#define MADV_SOFT_OFFLINE 101
#endif
enum { LENGTH = 64 << 20, BLOCK = 16 << 10 };

static long free_memory(void)
{
	char line[128];
	long value = -1;
	FILE *file = fopen("/proc/sys/vm/drop_caches", "w");

	if (!file || fputs("3", file) < 0 || fclose(file) || sleep(1) || !(file = fopen("/proc/meminfo", "r")))
		return -1;
	while (value < 0 && fgets(line, sizeof(line), file))
		sscanf(line, "MemFree: %ld", &value);
	return fclose(file) ? -1 : value;
}

int main(void)
{
	int content = memfd_create("content", 0), control = open("/dev/loop-control", O_RDWR), loop, refused = 0;
	struct loop_config config = {.fd = content, .block_size = BLOCK};
	char name[32], *memory = MAP_FAILED;
	long before, lost;

	sprintf(name, "/dev/loop%d", ioctl(control, LOOP_CTL_GET_FREE)), loop = open(name, O_RDWR);
	if (ftruncate(content, LENGTH) || (before = free_memory()) < 0 || ioctl(loop, LOOP_CONFIGURE, &config))
		return perror("cannot be tried here: a loop device with blocks of 16 KiB"), 2;
	close(loop), loop = open(name, O_RDWR), memory = mmap(NULL, LENGTH, PROT_READ, MAP_SHARED, loop, 0);
	for (long at = 0; memory != MAP_FAILED && at < LENGTH; at += BLOCK)
		refused += madvise(memory + at, getpagesize(), MADV_SOFT_OFFLINE) && errno == EBUSY;
	munmap(memory, LENGTH), ioctl(loop, LOOP_CLR_FD, 0), close(loop), close(content);
	lost = before - free_memory();
	puts("a device of 64 MiB with blocks of 16 KiB, soft offline of a base page of each: EBUSY");
	printf("expected: all memory is free when the device has gone\nfound: %ld MiB are gone\n", lost >> 10);
	return !refused ? 2 : lost > refused * (BLOCK >> 11);
}
