// SPDX-License-Identifier: GPL-2.0
/*
 * mbind(2) of a part of shared memory gives its policy to what lies before it, too, if the mappings become one.
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

#define HALF (2UL << 20)

static long bind(void *memory, int node)
{
	unsigned long mask = 1UL << node;

	return syscall(SYS_mbind, memory, HALF, MPOL_BIND, &mask, 8 * sizeof(mask), 0);
}

int main(void)
{
	char *memory = mmap(NULL, 2 * HALF, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int nodes[] = {-1, -1}, status = -1;
	pid_t child;

	if (memory == MAP_FAILED || bind(memory, 0))
		return perror("cannot be tried here: shared memory, bound to node 0"), 2;
	child = fork();
	if (!child)
		_exit(bind(memory, 1) != 0);
	if (waitpid(child, &status, 0) != child || status || bind(memory + HALF, 0))
		return perror("cannot be tried here: shared memory, bound to node 1"), 2;
	for (int half = 0; half < 2; half++) {
		char *at = memory + half * HALF;

		*at = 1;
		if (syscall(SYS_get_mempolicy, &nodes[half], NULL, 0UL, at, MPOL_F_NODE | MPOL_F_ADDR))
			return perror("cannot be tried here: get_mempolicy(2)"), 2;
	}
	puts("the first half of shared memory was bound to node 0, then by a child to node 1,");
	puts("and then the second half to node 0");
	puts("expected: pages of the halves come from nodes 1 and 0");
	printf("found: nodes %d and %d\n", nodes[0], nodes[1]);
	return nodes[0] != 1 || nodes[1] != 0;
}
