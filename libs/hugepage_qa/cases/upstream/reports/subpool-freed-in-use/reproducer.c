// SPDX-License-Identifier: GPL-2.0
/*
 * What a hugetlbfs mount with min_size= and no size= counts by is freed while a pipe holds a page of the mount.
 *
 * cc -static -o reproducer reproducer.c; root, no pages in the default pool, room for 2; CONFIG_KEYS, a 64-bit kernel.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/keyctl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define KEYS 150

int main(void)
{
	char at[] = "/tmp/hugetlbfs-XXXXXX", name[8];
	int ends[2] = {-1, -1}, mounted = -1, file, wrong = 0, keys[KEYS];
	FILE *pool = fopen("/proc/sys/vm/nr_hugepages", "w");
	struct iovec piece = {.iov_len = 8};
	cpu_set_t one = {{1}}; /* what is allocated on a CPU is mostly what was freed there last */
	struct statfs of = {.f_bsize = 0};
	/* of struct hugepage_subpool, behind the head of a key: used_hpages, hstate, min_hpages, rsv_hpages */
	long fields[] = {5, 0, -1, 0}, now[4];

	if (!pool || fprintf(pool, "2\n") < 0 || fclose(pool) || pipe(ends) || sched_setaffinity(0, sizeof(one), &one))
		return perror("cannot be tried here: a pool of 2 pages"), 2;
	if (mkdtemp(at) && !mount(at, at, "hugetlbfs", 0, "min_size=50%"))
		mounted = open(at, O_RDONLY), umount2(at, MNT_DETACH); /* it is gone when nothing of it is open */
	rmdir(at), file = openat(mounted, "file", O_CREAT | O_RDWR, 0600), fstatfs(mounted, &of);
	piece.iov_base = mmap(NULL, 2 * of.f_bsize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
	if (piece.iov_base == MAP_FAILED || vmsplice(ends[1], &piece, 1, 0) != 8)
		return perror("cannot be tried here: a file of 2 pages in a mount with min_size= of 1, vmsplice"), 2;
	munmap(piece.iov_base, 2 * of.f_bsize), unlinkat(mounted, "file", 0), close(file), close(mounted);
	for (int key = 0; key < KEYS; key++)
		sprintf(name, "%d", key), keys[key] = syscall(SYS_add_key, "user", name, fields, sizeof(fields), -2);
	if (keys[KEYS - 1] < 0)
		return perror("cannot be tried here: add_key(2)"), 2;
	close(ends[0]), close(ends[1]);
	for (int key = 0; key < KEYS; key++)
		wrong += syscall(SYS_keyctl, KEYCTL_READ, keys[key], now, sizeof(now)) != sizeof(now) || now[0] != 5;
	printf("a mount with min_size= of 1 page is gone, a pipe has a page of it; made %d keys, closed the pipe\n",
	       KEYS);
	printf("expected: no key has changed\nfound: %d have\n", wrong);
	return wrong > 0;
}
