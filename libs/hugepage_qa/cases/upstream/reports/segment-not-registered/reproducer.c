// SPDX-License-Identifier: GPL-2.0
/*
 * UFFDIO_REGISTER of a segment of huge pages (shmget(2), SHM_HUGETLB) fails with EINVAL, that of a memfd of them not.
 *
 * cc -static -o reproducer reproducer.c; root, userfaultfd(2), no huge pages: none is touched.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LENGTH (1UL << 30) /* a multiple of all huge pages but those of 2G and 16G */

/* Return the errno of UFFDIO_REGISTER, or -1 where there is no userfaultfd. */
static int errno_of_registering(void *at, uint64_t mode)
{
	int uffd = syscall(SYS_userfaultfd, O_CLOEXEC), found;
	struct uffdio_api api = {.api = UFFD_API};
	struct uffdio_register watched = {.range = {(uintptr_t)at, LENGTH}, .mode = mode};

	if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api))
		return -1;
	found = ioctl(uffd, UFFDIO_REGISTER, &watched) ? errno : 0;
	close(uffd);
	return found;
}

int main(void)
{
	static const char *names[] = {"MISSING", "WP", "MINOR"};
	int file = memfd_create("file", MFD_HUGETLB), bit, of_file, of_segment, tried = 0, wrong = 0;
	int segment = shmget(IPC_PRIVATE, LENGTH, IPC_CREAT | SHM_HUGETLB | SHM_NORESERVE | 0600);
	void *attached = segment < 0 ? (void *)-1 : shmat(segment, NULL, 0);
	void *mapped = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);

	if (segment >= 0)
		shmctl(segment, IPC_RMID, NULL);
	if (attached == (void *)-1 || mapped == MAP_FAILED)
		return perror("cannot be tried here: a segment and a memfd of huge pages"), 2;
	puts("UFFDIO_REGISTER of a memfd of huge pages, and of a segment of them");
	puts("expected: success for both, for each kind of faults that the kernel has for the memfd");
	for (bit = 0; bit < 3; bit++) {
		of_file = errno_of_registering(mapped, 1 << bit), of_segment = errno_of_registering(attached, 1 << bit);
		printf("found: UFFDIO_REGISTER_MODE_%s: %s, %s\n", names[bit], strerror(of_file), strerror(of_segment));
		tried += !of_file, wrong += !of_file && of_segment;
	}
	return tried ? wrong > 0 : 2;
}
