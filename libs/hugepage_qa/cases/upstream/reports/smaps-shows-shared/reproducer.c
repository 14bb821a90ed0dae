// SPDX-License-Identifier: GPL-2.0
/*
 * smaps shows 1G pages that one process alone maps as Shared_Hugetlb.
 *
 * cc -static -o reproducer reproducer.c; root, with a free 1G page: boot with "hugepagesz=1G hugepages=1".
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#define GIGANTIC (1UL << 30)
#define TRIES 100

/* Page tables are made of memory that was something else before: here page cache, as on any machine in use. */
static void use_page_cache(int file)
{
	static char pages[64 << 12];

	if (pwrite(file, pages, sizeof(pages), 0) < 0 || ftruncate(file, 0))
		perror("page cache");
}

/* Whether a page that this process alone maps is shown as shared. */
static int is_shown_as_shared(int gigantic)
{
	unsigned long size = 0, shared = 0;
	char line[999];
	FILE *smaps = fopen("/proc/self/smaps", "r");

	*(volatile char *)mmap(NULL, GIGANTIC, PROT_READ | PROT_WRITE, MAP_SHARED, gigantic, 0) = 42;
	while (fgets(line, sizeof(line), smaps))
		shared += sscanf(line, "Shared_Hugetlb: %lu", &size) == 1 && size;
	return shared != 0;
}

int main(void)
{
	char at[] = "/tmp/ramfs-XXXXXX";
	int gigantic = memfd_create("page", MFD_HUGETLB | 30U << MAP_HUGE_SHIFT), cache, status, wrong = 0;

	if (gigantic < 0 || ftruncate(gigantic, GIGANTIC) || !mkdtemp(at) ||
	    mount(at, at, "ramfs", 0, NULL) || chdir(at) || umount2(at, MNT_DETACH) || rmdir(at))
		return perror("cannot be tried here: a file of 1G pages, and ramfs"), rmdir(at), 2;
	cache = open("file", O_CREAT | O_RDWR, 0600);
	for (int i = 0; i < TRIES; i++) {
		use_page_cache(cache);
		if (!fork())
			_exit(is_shown_as_shared(gigantic));
		wrong += wait(&status) > 0 && status;
	}
	printf("%d processes, one after the other, each maps a page of 1G that no other maps\n", TRIES);
	printf("expected: smaps shows it as Private_Hugetlb\nfound: as Shared_Hugetlb %d times\n", wrong);
	return wrong != 0;
}
