/*
 * The sentinel: the same work at every start, without huge pages. Prints the nanoseconds that it took.
 *
 * If it is slower or faster than it used to be, the machine is another one than it was, or is not alone.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>

enum {
	SPINS = 60000000,
	CHASES = 10000000,
	CACHED = 256 << 10, /* bytes: the second level cache of any server holds it */
	WALKED = 64 << 20,  /* bytes: more than a TLB of base pages reaches */
	WALKS = 4,
};

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000ULL + time.tv_nsec;
}

static uint64_t chase(const uint64_t *memory, long accesses, uint64_t bytes)
{
	uint64_t state = 1;

	for (long i = 0; i < accesses; i++)
		state = state * 6364136223846793005ULL + 1442695040888963407ULL +
			memory[(state >> 20) % (bytes / sizeof(uint64_t))];
	return state;
}

int main(void)
{
	uint64_t begin, result = 1;
	char *memory;

	prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
	memory = mmap(NULL, WALKED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	/* pages that nobody has written to are all the same page of zeros */
	for (long place = 0; place < CACHED; place += 4096)
		memory[place] = 1;
	begin = now();
	for (long i = 0; i < SPINS; i++)
		result = result * 6364136223846793005ULL + 1442695040888963407ULL;
	result += chase((const uint64_t *)memory, CHASES, CACHED);
	for (int walk = 0; walk < WALKS; walk++)
		for (long place = 0; place < WALKED; place += 4096)
			*(volatile char *)(memory + place) += 1;
	begin = now() - begin;
	printf("%llu\n", (unsigned long long)begin);
	/* used, or there would be nothing to compute */
	return result == 0;
}
