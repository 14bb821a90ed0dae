// SPDX-License-Identifier: GPL-2.0
/*
 * A tmpfs that is remounted with mpol=default keeps the policy that it had.
 *
 * cc -static -o reproducer reproducer.c; root, to mount a tmpfs, memory on nodes 0 and 1.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

static char point[] = "/tmp/reproducer-XXXXXX";

static void undo(void) { umount2(point, MNT_DETACH), rmdir(point); }

/* Return the node that the first page of a new file is on, by the policy of the mount or of the process, or -1. */
static int node_of_a_file(void)
{
	unsigned long here = 1UL << 0;
	char path[64], *at;
	int file, node = -1;

	file = open(strcat(strcpy(path, point), "/file"), O_RDWR | O_CREAT, 0600);
	if (file < 0 || ftruncate(file, getpagesize()) ||
	    syscall(SYS_set_mempolicy, MPOL_BIND, &here, 8 * sizeof(here)))
		return -1;
	at = mmap(NULL, getpagesize(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (at == MAP_FAILED)
		return -1;
	*at = 1;
	return syscall(SYS_get_mempolicy, &node, NULL, 0UL, at, MPOL_F_NODE | MPOL_F_ADDR) ? -1 : node;
}

int main(void)
{
	char line[999], *found = NULL;
	FILE *mounts;
	int node;

	if (!mkdtemp(point) || atexit(undo) || mount("none", point, "tmpfs", 0, "mpol=bind:1") ||
	    mount("none", point, "tmpfs", MS_REMOUNT, "mpol=default") || (node = node_of_a_file()) < 0 ||
	    !(mounts = fopen("/proc/self/mounts", "r")))
		return perror("cannot be tried here: a tmpfs with mpol=, on a machine with two nodes"), 2;
	while (fgets(line, sizeof(line), mounts) && !found)
		if (strstr(line, point) && (found = strstr(line, "mpol=")))
			strtok(found, " ,");
	puts("tmpfs mounted with mpol=bind:1, remounted with mpol=default; file of a process that is bound to node 0");
	puts("expected: no mpol= in /proc/mounts, and a page from node 0");
	printf("found: %s in /proc/mounts, and a page from node %d\n", found ? found : "no mpol=", node);
	return found || node != 0;
}
