// SPDX-License-Identifier: GPL-2.0
/*
 * fork() loses private 1G pages: the child reads zeros, or is killed by SIGBUS.
 *
 * cc -static -o reproducer reproducer.c; root, with a free 1G page, or 2: boot with "hugepagesz=1G hugepages=2".
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#define GIGANTIC (1UL << 30)
#define FORKS 300

/* Page tables are made of memory that was something else before: here page cache, as on any machine in use. */
static void use_page_cache(int file)
{
	static char pages[64 << 12];

	if (pwrite(file, pages, sizeof(pages), 0) < 0 || ftruncate(file, 0))
		perror("page cache");
}

int main(void)
{
	char at[] = "/tmp/ramfs-XXXXXX";
	int status, zeros = 0, killed = 0, forks, file;
	volatile char *page = mmap(NULL, GIGANTIC, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | 30 << MAP_HUGE_SHIFT, -1, 0);

	if (page == MAP_FAILED)
		return perror("cannot be tried here: no free page of 1G"), 2;
	*page = 42;
	if (!mkdtemp(at) || mount(at, at, "ramfs", 0, NULL) || chdir(at) || umount2(at, MNT_DETACH) || rmdir(at))
		return perror("cannot be tried here: ramfs"), rmdir(at), 2;
	file = open("file", O_CREAT | O_RDWR, 0600);
	printf("wrote a private page of 1G, then fork(), and each child reads it\n");
	for (forks = 0; forks < FORKS && zeros + killed < 3; forks++) {
		use_page_cache(file);
		fflush(stdout);
		switch (fork()) {
		case -1:
			return perror("cannot be tried here: fork"), 2;
		case 0:
			_exit(*page == 42 ? 0 : 1);
		}
		wait(&status);
		zeros += WIFEXITED(status) && WEXITSTATUS(status);
		killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS;
	}
	printf("expected: every child reads what was written\n");
	printf("found: of %d children %d read zeros and %d got SIGBUS\n", forks, zeros, killed);
	return zeros + killed ? 1 : 0;
}
