// SPDX-License-Identifier: GPL-2.0
/*
 * A udmabuf of a hole of a hugetlb memfd takes a page beyond hugetlb.max of the group, which is not charged for it.
 *
 * cc -static -o reproducer reproducer.c; root, room for a page, hugetlb in version 2 of control groups, /dev/udmabuf.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

static int set(const char *path, const char *text)
{
	FILE *file = fopen(path, "w");

	return file && fputs(text, file) >= 0 && !fclose(file);
}

static long number(const char *path)
{
	FILE *file = fopen(path, "r");
	long value = -1;

	return file && fscanf(file, "%ld", &value) == 1 && !fclose(file) ? value : -1;
}

int main(void)
{
	int device = open("/dev/udmabuf", O_RDWR), file = memfd_create("file", MFD_HUGETLB | MFD_ALLOW_SEALING);
	struct udmabuf_create part = {.memfd = file, .size = sysconf(_SC_PAGESIZE)};
	char point[] = "/tmp/XXXXXX", limit[40], current[40];
	struct stat status;
	int buffer, had, left = 50;

	if (fstat(file, &status) || ftruncate(file, status.st_blksize) || fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK) ||
	    !set("/proc/sys/vm/nr_hugepages", "1"))
		return perror("cannot be tried here: a hugetlb memfd"), 2;
	sprintf(limit, "group/hugetlb.%ldMB.max", (long)status.st_blksize >> 20);
	sprintf(current, "group/hugetlb.%ldMB.current", (long)status.st_blksize >> 20);
	if (!mkdtemp(point) || mount("none", point, "cgroup2", 0, NULL) || chdir(point) || umount2(point, MNT_DETACH) ||
	    rmdir(point) || mkdir("group", 0700))
		return perror("cannot be tried here: control groups"), 2;
	for (; !set("cgroup.subtree_control", "+hugetlb") && left; left--, usleep(100000));
	if (!set(limit, "0") || !set("group/cgroup.procs", "0") ||
	    mmap(NULL, status.st_blksize, PROT_READ, MAP_SHARED, file, 0) == MAP_FAILED)
		return perror("cannot be tried here: a limit, memory of a page of the pool"), 2;
	had = number("/proc/sys/vm/nr_hugepages"), buffer = ioctl(device, UDMABUF_CREATE, &part);
	printf("UDMABUF_CREATE of a hole of a memfd in a group whose hugetlb.max is 0, with %d page\n", had);
	printf("expected: it fails\nfound: it %s, and the group is charged %ld\n", buffer < 0 ? "fails" : "is made",
	       number(current));
	set("cgroup.procs", "0"), rmdir("group"), set("/proc/sys/vm/nr_hugepages", "0");
	return device < 0 || had < 1 ? 2 : buffer >= 0;
}
