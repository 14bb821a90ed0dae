// SPDX-License-Identifier: GPL-2.0
/*
 * ftruncate() passes over a page that a fault takes meanwhile: the count of reserved pages falls below 0.
 *
 * cc -static -pthread -o reproducer reproducer.c; root, no pages in the default pool, room for 1.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static char *page;
static int zero;

/* The number after NAME in /proc/meminfo: one below 0 is printed as 2^64 - n. */
static long number(const char *name)
{
	char text[4096] = "", *found;
	int file = open("/proc/meminfo", O_RDONLY);

	found = read(file, text, sizeof(text) - 1) > 0 ? strstr(text, name) : NULL;
	close(file);
	return found ? (long)strtoul(found + strlen(name), NULL, 10) : -1000;
}

/* The kernel writes to the page: behind the end that is EFAULT, and no SIGBUS. */
static void *touch(void *unused)
{
	return (void *)read(zero, page, unused ? 0 : 1);
}

int main(void)
{
	size_t size = (size_t)number("Hugepagesize:") << 10;
	int file = memfd_create("file", MFD_HUGETLB), pool = open("/proc/sys/vm/nr_hugepages", O_WRONLY);
	long reserved = write(pool, "1", 1) - 1;

	zero = open("/dev/zero", O_RDONLY);
	for (int round = 0; round < 2000 && !reserved; round++) {
		pthread_t thread;

		page = ftruncate(file, (off_t)size) ? MAP_FAILED :
		       mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
		if (page == MAP_FAILED || pthread_create(&thread, NULL, touch, NULL))
			return perror("cannot be tried here: a file of one huge page, and a thread"), 2;
		usleep((unsigned int)(round % 100 * 30));
		reserved = ftruncate(file, 0);
		pthread_join(thread, NULL);
		reserved = number("HugePages_Rsvd:");
		munmap(page, size);
	}
	printf("emptied a file of one page while a thread touches it\n");
	printf("expected: 0 pages are reserved\nfound: %ld\n", reserved);
	return reserved ? 1 : 0;
}
