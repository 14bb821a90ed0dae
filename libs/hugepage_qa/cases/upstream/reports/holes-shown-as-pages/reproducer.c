// SPDX-License-Identifier: GPL-2.0
/*
 * /proc/kpageflags shows frames of no memory as pages without flags, and not as none (NOPAGE).
 *
 * cc -static -o reproducer reproducer.c; root, CONFIG_MEMORY_HOTPLUG, which tells of blocks of memory, and a machine
 * whose memory has a hole: of x86_64 most with 4 GiB or more.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#define BLOCKS "/sys/devices/system/memory"
#define NOPAGE (UINT64_C(1) << 20)
enum { MOST = 1 << 16 };

static int is_memory(long block)
{
	char path[64];

	snprintf(path, sizeof(path), BLOCKS "/memory%ld", block);
	return access(path, F_OK) == 0;
}

int main(void)
{
	FILE *file = fopen(BLOCKS "/block_size_bytes", "r");
	long hole = 0, next, pages;
	unsigned long length;
	int flags = open("/proc/kpageflags", O_RDONLY);
	uint64_t found;

	if (!file || fscanf(file, "%lx", &length) != 1 || flags < 0)
		return perror("cannot be tried here: blocks of memory, and kpageflags"), 2;
	while (hole < MOST && is_memory(hole))
		hole++;
	for (next = hole; next < MOST && !is_memory(next); next++)
		;
	pages = length / getpagesize();
	if (next == MOST || pread(flags, &found, sizeof(found), hole * pages * 8) != sizeof(found))
		return puts("cannot be tried here: memory has no hole"), 2;
	puts("the entry in /proc/kpageflags of a frame of no memory, amid blocks of memory");
	printf("expected: %#llx (NOPAGE)\n", (unsigned long long)NOPAGE);
	printf("found: %#llx\n", (unsigned long long)found);
	return found != NOPAGE;
}
