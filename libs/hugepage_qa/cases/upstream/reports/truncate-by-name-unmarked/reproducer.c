// SPDX-License-Identifier: GPL-2.0
/*
 * truncate(2) changes the size of a file of huge pages, and not when it was modified and changed.
 *
 * cc -static -o reproducer reproducer.c; root, to mount a hugetlbfs and a tmpfs, no huge pages.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

/* Tell which of st_mtim (1) and st_ctim (2) truncate(2) of a file sets; -1 where it cannot be tried. */
static int moved_by_truncate(const char *type)
{
	char place[] = "/tmp/truncated-XXXXXX", path[64];
	struct timespec long_ago[2] = {{1000, 0}, {2000, 0}};
	struct stat before, after;
	struct statfs system;
	int file, failed;

	if (!mkdtemp(place))
		return -1;
	if (mount("none", place, type, 0, NULL))
		return rmdir(place), -1;
	snprintf(path, sizeof(path), "%s/file", place);
	file = open(path, O_RDWR | O_CREAT, 0600);
	failed = file < 0 || statfs(place, &system) || futimens(file, long_ago) || fstat(file, &before);
	usleep(100000); /* some ticks */
	failed = failed || truncate(path, system.f_bsize) || fstat(file, &after) || after.st_size != system.f_bsize;
	close(file), umount2(place, MNT_DETACH), rmdir(place);
	return failed ? -1 : (after.st_mtim.tv_sec != before.st_mtim.tv_sec) +
		2 * (after.st_ctim.tv_sec != before.st_ctim.tv_sec || after.st_ctim.tv_nsec != before.st_ctim.tv_nsec);
}

static const char *const told[] = {"neither of them", "st_mtim alone", "st_ctim alone", "st_mtim and st_ctim"};

int main(void)
{
	int base = moved_by_truncate("tmpfs"), huge = moved_by_truncate("hugetlbfs");

	if (base < 0 || huge < 0)
		return perror("cannot be tried here: a hugetlbfs and a tmpfs"), 2;
	puts("truncate(2) of an empty file to one page, of which its size is then");
	printf("expected: %s are of that moment\n", told[3]);
	printf("found: %s in a tmpfs, %s in a hugetlbfs\n", told[base], told[huge]);
	return base != 3 || huge != 3;
}
