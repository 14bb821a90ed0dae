// SPDX-License-Identifier: GPL-2.0
/*
 * hugetlb.2MB.numa_stat of a control group falls below 0 after a group below it was removed.
 *
 * cc -static -o reproducer reproducer.c; root, no 2M pages in the pool, room for 1, hugetlb in cgroup version 2.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE (2UL << 20)

static int is_written(const char *path, const char *text)
{
	FILE *file = fopen(path, "w");

	return file && fputs(text, file) >= 0 && !fclose(file);
}

/* Bytes of node 0: what is below 0 is printed as 2^64 - n. */
static long bytes_of_node(void)
{
	unsigned long bytes = 0;
	FILE *file = fopen("above/hugetlb.2MB.numa_stat", "r");

	if (file && fscanf(file, "total=%*u N0=%lu", &bytes) == 1)
		fclose(file);
	return (long)bytes;
}

int main(void)
{
	char at[] = "/tmp/cgroup-XXXXXX";
	int status, tries = 100, file = memfd_create("page", MFD_HUGETLB | 21U << MAP_HUGE_SHIFT);

	if (!mkdtemp(at) || mount(at, at, "cgroup2", 0, NULL) || chdir(at) || umount2(at, MNT_DETACH) || rmdir(at) ||
	    !is_written("cgroup.subtree_control", "+hugetlb") || mkdir("above", 0700) ||
	    !is_written("above/cgroup.subtree_control", "+hugetlb") || mkdir("above/below", 0700) || file < 0 ||
	    !is_written("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "1") || ftruncate(file, SIZE))
		return perror("cannot be tried here: groups with the hugetlb controller, a page of 2M"), rmdir(at), 2;
	if (!fork())
		_exit(!is_written("above/below/cgroup.procs", "0") ||
		      madvise(mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0), SIZE, 23));
	if (wait(&status) < 0 || status || bytes_of_node() != (long)SIZE || rmdir("above/below"))
		return puts("cannot be tried here: a page that a process in the group below has made"), 2;
	sleep(2); /* its pages go to the group above in a while, */
	close(file);
	while (!bytes_of_node() && --tries) /* and later it is forgotten */
		usleep(50000);
	printf("a process in a group made a page of a file, ended; the group was removed, then the file\n");
	printf("expected: 0 bytes on node 0 of the group above\nfound: %ld\n", bytes_of_node());
	return bytes_of_node() != 0;
}
