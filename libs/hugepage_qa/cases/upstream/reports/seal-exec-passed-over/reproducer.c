// SPDX-License-Identifier: GPL-2.0
/*
 * chmod() changes the x bits of a hugetlb memfd that is sealed with F_SEAL_EXEC.
 *
 * cc -static -o reproducer reproducer.c; no root, no huge pages.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef F_SEAL_EXEC
#define F_SEAL_EXEC 0x0020
#endif
#define WITHOUT 0644
#define WITH 0755

/* The mode of a file after its x bits were sealed as they were not, and were to be set; -1 where it cannot be tried. */
static long mode_after_chmod(unsigned int flags)
{
	struct stat status;
	int file = memfd_create("sealed", flags | MFD_ALLOW_SEALING);

	if (file < 0 || fchmod(file, WITHOUT) || fcntl(file, F_ADD_SEALS, F_SEAL_EXEC))
		return -1;
	fchmod(file, WITH);
	return fstat(file, &status) ? -1 : (long)(status.st_mode & 07777);
}

int main(void)
{
	long base = mode_after_chmod(0), huge = mode_after_chmod(MFD_HUGETLB);

	if (base < 0 || huge < 0)
		return perror("cannot be tried here: F_SEAL_EXEC (Linux 6.3), or memfds of hugetlb"), 2;
	printf("chmod(0%o) of memfds of mode 0%o with F_SEAL_EXEC\n", WITH, WITHOUT);
	printf("expected: mode 0%o of each\n", WITHOUT);
	printf("found: mode 0%lo with base pages, 0%lo with huge pages\n", (unsigned long)base, (unsigned long)huge);
	return base != WITHOUT || huge != WITHOUT;
}
