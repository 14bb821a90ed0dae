// SPDX-License-Identifier: GPL-2.0
/*
 * A process is killed for want of memory when a pool that takes all of it gives struct pages back.
 *
 * cc -static -o reproducer reproducer.c; root, one node with 2 GiB of memory, no huge pages, a machine that is idle.
 * Who is killed first is a child of the program, which has 64 MiB.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/klog.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define VM "/proc/sys/vm/"
#define LISTS VM "percpu_pagelist_high_fraction"
static char reserve[32], optimise[32], lists[32], pages[32], log[1 << 20];
static int put(const char *path, const char *text)
{
	int file = open(path, O_WRONLY);
	return write(file, text, strlen(text)) < 0 || close(file);
}
static int get(const char *path, char *text)
{
	int file = open(path, O_RDONLY), length = read(file, text, 31);
	return length < 1 || close(file) || (text[length - 1] = 0);
}

/* Have the pool take all but a reserve, which is more than what is left in pieces; return whether the child lives. */
static int lives(int child, const char *optimised, const char *kept)
{
	put(VM "hugetlb_optimize_vmemmap", optimised), put(VM "min_free_kbytes", kept);
	put(VM "nr_hugepages", "1000000"), put(VM "min_free_kbytes", reserve);
	get(VM "nr_hugepages", pages), put(VM "nr_hugepages", "0");
	return !waitpid(child, NULL, WNOHANG);
}

int main(void)
{
	int ends[2], child, given_back;
	if (get(VM "min_free_kbytes", reserve) || get(VM "hugetlb_optimize_vmemmap", optimise) || get(LISTS, lists) ||
	    pipe(ends) || put(LISTS, "1000000") || (child = fork()) < 0) /* what is freed is not on lists of a CPU */
		return perror("cannot be tried here: vm.hugetlb_optimize_vmemmap"), put(LISTS, lists), 2;
	if (!child)
		return !memset(mmap(NULL, 64 << 20, PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, 64 << 20) ||
		       put("/proc/self/oom_score_adj", "1000") || write(ends[1], "", 1) < 1 || pause();
	if (close(ends[1]) || read(ends[0], pages, 1) < 1)
		return perror("cannot be tried here: a child with 64 MiB"), put(LISTS, lists), kill(child, 9), 2;
	given_back = lives(child, "0", "131072") && lives(child, "1", "131072") && /* what is left over differs */
		     lives(child, "1", "131584") && lives(child, "1", "132096");
	printf("a child has 64 MiB, nr_hugepages is set to 1000000, and the pool gets %s pages\n"
	       "expected: the child lives\nfound: it %s\n", pages, given_back ? "lives" : "was killed for memory");
	put(VM "hugetlb_optimize_vmemmap", optimise), put(LISTS, lists), kill(child, 9);
	klogctl(3, log, sizeof(log) - 1);
	return given_back ? 0 : strstr(log, "hugetlb_vmemmap_opt") ? 1 : (puts("cannot be tried here: by others"), 2);
}
