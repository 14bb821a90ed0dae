// SPDX-License-Identifier: GPL-2.0
/*
 * move_pages(2) leaves a private page of a hugetlbfs that has size= or min_size= where it is.
 *
 * cc -static -o reproducer reproducer.c; root, nodes 0 and 1 with room for a page of the default size each: it adds one
 * to the pool.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MPOL_MF_MOVE 2

/* Add pages to the default pool, and tell whether that was done. */
static int grow(long pages)
{
	FILE *file = fopen("/proc/sys/vm/nr_hugepages", "r+");
	long had = -1;

	return file && fscanf(file, "%ld", &had) == 1 && !fseek(file, 0, SEEK_SET) &&
	       fprintf(file, "%ld\n", had + pages) > 0 && !fclose(file);
}

int main(void)
{
	static const char *kinds[] = {"neither", "size", "min_size"};
	char options[64] = "", point[] = "/tmp/XXXXXX", name[] = "/tmp/XXXXXX/file", *page;
	int kind, file, from, to, status, moved = 0, wrong = 0;
	struct statfs found = {0};

	if (!mkdtemp(point) || !grow(1))
		return perror("cannot be tried here: a directory below /tmp, a page of the pool"), 2;
	sprintf(name, "%s/file", point);
	puts("move_pages() of a private page of a hugetlbfs to the other node\nexpected: it moves, with each mount");
	for (kind = 0; kind < 3; kind++) {
		if (kind)
			sprintf(options, "%s=%ld", kinds[kind], (long)found.f_bsize);
		if (mount("none", point, "hugetlbfs", 0, options) || statfs(point, &found))
			return perror("cannot be tried here: a hugetlbfs"), 2;
		file = open(name, O_RDWR | O_CREAT, 0600);
		page = mmap(NULL, found.f_bsize, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
		if (page == MAP_FAILED || !(*page = 1) || syscall(SYS_move_pages, 0, 1, &page, NULL, &from, 0))
			return perror("cannot be tried here: a page of a file"), 2;
		to = !from, syscall(SYS_move_pages, 0, 1, &page, &to, &status, MPOL_MF_MOVE);
		syscall(SYS_move_pages, 0, 1, &page, NULL, &status, 0);
		printf("found: it %s where the mount has %s\n", status == to ? "moves" : "stays", kinds[kind]);
		moved += status == to, wrong += status != to;
		munmap(page, found.f_bsize), close(file), umount(point);
	}
	grow(-1), rmdir(point);
	return moved ? wrong > 0 : 2;
}
