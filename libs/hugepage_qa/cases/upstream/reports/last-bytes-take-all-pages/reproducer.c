// SPDX-License-Identifier: GPL-2.0
/*
 * fallocate(2) of the last bytes that a file can have takes all huge pages of the pool, and fails with ENOSPC.
 *
 * cc -static -o reproducer reproducer.c; root, no pages in the default pool, room for 4; a machine that is thrown away:
 * it takes 1 page, which is lost before Linux 6.7, where the file is left open. "reproducer all" takes 4, as user 1000,
 * which ends in a BUG of a kernel that has the bug.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

static int set_pool(int pages)
{
	FILE *pool = fopen("/proc/sys/vm/nr_hugepages", "r+");
	int now = -1;

	if (pool && fprintf(pool, "%d\n", pages) > 0 && !fflush(pool) && !fseek(pool, 0, SEEK_SET))
		now = fscanf(pool, "%d", &now) == 1 ? now : -1;
	return pool && !fclose(pool) ? now : -1;
}

int main(int count, char **words)
{
	int pages = count > 1 && !strcmp(words[1], "all") ? 4 : 1, file = memfd_create("file", MFD_HUGETLB), error = 0;
	long long blocks;
	struct stat found;
	struct utsname kernel;
	int major, minor;

	if (file < 0 || set_pool(pages) != pages || (pages > 1 && setuid(1000)))
		return perror("cannot be tried here: a memfd of huge pages, an empty pool that gets them"), 2;
	if (fallocate(file, 0, LLONG_MAX - 4095, 4095))
		error = errno;
	if (fstat(file, &found))
		return perror("cannot be tried here: fstat"), 2;
	blocks = found.st_blocks * 512LL / found.st_blksize;
	printf("fallocate() of the last 4095 bytes that a file can have, %d free pages\n", pages);
	printf("expected: success and 1 page, or %s and none\n", strerror(EFBIG));
	printf("found: %s, and the file has %lld\n", error ? strerror(error) : "success", blocks);
	fflush(stdout);
	if (pages > 1 && blocks > 1)
		puts("the file is closed, at which the kernel dies"), fflush(stdout);
	if (blocks == 1 && !uname(&kernel) && sscanf(kernel.release, "%d.%d", &major, &minor) == 2 &&
	    100 * major + minor < 607 && !fork())
		return puts("the file is left open, so that the kernel does not die yet"), fflush(stdout), pause();
	close(file);
	if (pages == 1)
		set_pool(0);
	return !((!error && blocks == 1) || (error == EFBIG && !blocks));
}
