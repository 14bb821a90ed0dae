// SPDX-License-Identifier: GPL-2.0
/*
 * A page of a file of a hugetlbfs breaks, and the file is removed: neither the group nor size= of the mount may go on
 * counting it.
 *
 * cc -static -o reproducer reproducer.c; root, hugetlb in version 2 of control groups, CONFIG_MEMORY_FAILURE. On a
 * machine of your own a page of the pool is out of use until it boots again.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

static void go_on(int number) { (void)number; } /* it comes with the call itself, too */

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
	char point[] = "/tmp/broken", current[40], *memory;
	struct statfs mounted;
	long charged, used;
	int file, left = 50;

	if (!set("/proc/sys/vm/nr_hugepages", "2") || mkdir(point, 0700) || mount("none", point, "cgroup2", 0, NULL) ||
	    chdir(point) || mkdir("group", 0700) || mount("none", point, "hugetlbfs", 0, "size=100%"))
		return perror("cannot be tried here: a pool, control groups and a hugetlbfs"), 2;
	for (; !set("cgroup.subtree_control", "+hugetlb") && left; left--, usleep(100000));
	file = open("/tmp/broken/file", O_CREAT | O_RDWR, 0600), statfs("/tmp/broken", &mounted);
	memory = mmap(NULL, mounted.f_bsize, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (!left || !set("group/cgroup.procs", "0") || memory == MAP_FAILED || signal(SIGBUS, go_on) == SIG_ERR ||
	    !(*memory = 1) || madvise(memory, getpagesize(), MADV_HWPOISON))
		return perror("cannot be tried here: MADV_HWPOISON of a page of a file"), 2;
	munmap(memory, mounted.f_bsize), close(file), unlink("/tmp/broken/file");
	statfs("/tmp/broken", &mounted);
	sprintf(current, "group/hugetlb.%ldMB.current", (long)mounted.f_bsize >> 20);
	charged = number(current) / mounted.f_bsize, used = mounted.f_blocks - mounted.f_bfree;
	puts("the only page of the only file of a hugetlbfs broke, and the file is removed");
	printf("expected: the group is charged 0 pages, the mount has 0 in use\nfound: %ld, %ld\n", charged, used);
	return charged || used;
}
