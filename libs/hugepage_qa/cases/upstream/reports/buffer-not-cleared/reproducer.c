// SPDX-License-Identifier: GPL-2.0
/*
 * A memfd is allocated by fallocate(), and is made a buffer by UDMABUF_CREATE: that must be of zeroes, and must be
 * what the file has. Memory that another process wrote before is shown where it is not cleared (init_on_alloc=0).
 *
 * cc -static -o reproducer reproducer.c; who may open /dev/udmabuf.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE (16UL << 20)
#define OTHERS 20 /* times as much is written by another process before */
#define THEIRS 0x5a
#define OURS 3

static unsigned long count(const char *bytes, char value)
{
	unsigned long i, found = 0;

	for (i = 0; i < SIZE; i++)
		found += bytes[i] == value;
	return found;
}

int main(void)
{
	int file = memfd_create("allocated", MFD_ALLOW_SEALING), device = open("/dev/udmabuf", O_RDWR);
	struct udmabuf_create part = {.memfd = file, .size = SIZE};
	char *buffer, *mapped = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	char *others = mmap(NULL, OTHERS * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned long zeroes, theirs, ours;

	if (others != MAP_FAILED && !fork())
		memset(others, THEIRS, OTHERS * SIZE), _exit(0);
	wait(NULL);
	if (mapped == MAP_FAILED || fallocate(file, 0, 0, SIZE) || fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK))
		return perror("cannot be tried here"), 2;
	buffer = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, ioctl(device, UDMABUF_CREATE, &part), 0);
	if (buffer == MAP_FAILED)
		return perror("cannot be tried here"), 2;
	zeroes = count(buffer, 0), theirs = count(buffer, THEIRS);
	memset(buffer, OURS, SIZE);
	ours = count(mapped, OURS);
	printf("fallocate() of a memfd of %lu bytes, of which a buffer is made and written, and the file read\n", SIZE);
	printf("expected: %lu bytes of the buffer are 0, and %lu of the file are what was written\n", SIZE, SIZE);
	printf("found: %lu are, %lu are what another process wrote, and %lu of the file\n", zeroes, theirs, ours);
	return zeroes != SIZE || ours != SIZE;
}
