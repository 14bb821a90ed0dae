// SPDX-License-Identifier: GPL-2.0
/*
 * mbind(2) of shared memory does nothing where the mapping has that policy, although the memory has another one.
 *
 * cc -static -o reproducer reproducer.c; root, memory on nodes 0 and 1.
 * Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here.
 */
#define _GNU_SOURCE
#include <linux/mempolicy.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define LENGTH (2UL << 20)

/* Bind memory to a node, or have it lose its policy where that is -1. */
static long give(void *memory, int node)
{
	unsigned long mask = node < 0 ? 0 : 1UL << node;

	return syscall(SYS_mbind, memory, LENGTH, node < 0 ? MPOL_DEFAULT : MPOL_BIND, &mask, 8 * sizeof(mask), 0);
}

/* Share memory that is given a policy here, another one by a child, and a last one here, which may be the first one. */
static char *given(int first, int by_child, int last)
{
	char *memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int status = -1;
	pid_t child;

	if (memory == MAP_FAILED || give(memory, first))
		return NULL;
	child = fork();
	if (!child)
		_exit(give(memory, by_child) != 0);
	return waitpid(child, &status, 0) == child && !status && !give(memory, last) ? memory : NULL;
}

int main(void)
{
	char *bound = given(0, 1, 0), *unbound = given(-1, 1, -1);
	int node = -1, mode = -1;

	if (!bound || !unbound)
		return perror("cannot be tried here: shared memory, bound to nodes 0 and 1"), 2;
	bound[0] = 1;
	if (syscall(SYS_get_mempolicy, &node, NULL, 0UL, bound, MPOL_F_NODE | MPOL_F_ADDR) ||
	    syscall(SYS_get_mempolicy, &mode, NULL, 0UL, unbound, MPOL_F_ADDR))
		return perror("cannot be tried here: get_mempolicy(2)"), 2;
	puts("shared memory bound to node 0, by a child to node 1, and again to node 0;");
	puts("other one bound by a child to node 1, and given MPOL_DEFAULT here");
	printf("expected: a page from node 0, and policy %d\n", MPOL_DEFAULT);
	printf("found: a page from node %d, and policy %d\n", node, mode);
	return node != 0 || mode != MPOL_DEFAULT;
}
