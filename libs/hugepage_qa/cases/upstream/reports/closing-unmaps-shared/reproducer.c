// SPDX-License-Identifier: GPL-2.0
/*
 * UFFDIO_RWPROTECT of shared memory in a huge page takes it out of the page table: an access is not told then.
 *
 * cc -static -o reproducer reproducer.c; root.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SIZE (2UL << 20)
/* of Linux 7.3 */
#define FEATURE_RWP (1 << 17)
#define MODE_RWP 8
#define RWPROTECT _IOWR(UFFDIO, 9, struct uffdio_writeprotect)
#define SETTING "/sys/kernel/mm/transparent_hugepage/shmem_enabled"

static void told(int number)
{
	(void)number;
	_exit(write(1, "found: the access gets SIGBUS\n", 30) != 30);
}

int main(void)
{
	FILE *setting = fopen(SETTING, "w");
	int uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
	struct uffdio_api api = {.api = UFFD_API, .features = FEATURE_RWP | UFFD_FEATURE_SIGBUS};

	if (!setting || fputs("always\n", setting) < 0 || fclose(setting))
		return perror("cannot be tried here"), 2;
	char *room = mmap(NULL, 2 * SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	char *page = (char *)(((uintptr_t)room + SIZE - 1) & -SIZE);
	struct uffdio_register watched = {.range = {(uintptr_t)page, SIZE}, .mode = MODE_RWP};
	struct uffdio_writeprotect closed = {.range = watched.range, .mode = 1};

	if (room == MAP_FAILED || !memset(page, 42, SIZE) || ioctl(uffd, UFFDIO_API, &api) ||
	    ioctl(uffd, UFFDIO_REGISTER, &watched) || ioctl(uffd, RWPROTECT, &closed))
		return perror("cannot be tried here"), 2;
	signal(SIGBUS, told);
	printf("UFFDIO_RWPROTECT of 2 MiB of shared memory in a huge page, and an access\n");
	printf("expected: the access gets SIGBUS (UFFD_FEATURE_SIGBUS)\n");
	fflush(stdout);
	page[SIZE / 2] = 43;
	return puts("found: it is done, and nobody is told"), 1;
}
