/*
 * The init of a machine in which proofs of faults run, and what their programs have at hand.
 *
 * It reads /proofs: a line is the name of a fault and the faults to switch on for it, one run after the other. What a
 * run prints stands on the console between two marks. proofs.c, which is put behind this file, has the programs.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/klog.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MAP_HUGE_SHIFT
#define MAP_HUGE_SHIFT 26
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x10
#endif
#define MPOL_MF_MOVE 2
#define H2 (2L << 20)
#define HP "/sys/kernel/mm/hugepages/hugepages-2048kB/"
#define GIGANTIC "/sys/kernel/mm/hugepages/hugepages-1048576kB/"
#define NODE(node) "/sys/devices/system/node/node" #node "/hugepages/hugepages-2048kB/"
#define NODE_GIGANTIC(node) "/sys/devices/system/node/node" #node "/hugepages/hugepages-1048576kB/"
#define THP "/sys/kernel/mm/transparent_hugepage/"
#define CHOICE "/sys/module/seeded_fault/parameters/name"
#define SECONDS_OF_A_RUN 40
#define UNUSED __attribute__((unused))

/* Run BODY in a child: its exit code, or 1000 and the signal that ended it. */
#define CHILD(...) \
	({ \
		pid_t its_pid = fork(); \
		if (!its_pid) { \
			__VA_ARGS__; \
			_exit(0); \
		} \
		ended(its_pid); \
	})

UNUSED static int ended(pid_t child)
{
	int status = 0;

	waitpid(child, &status, 0);
	return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

UNUSED static void stop(int signal)
{
	dprintf(1, "signal %d\n", signal);
	_exit(0);
}

/* Write text to a file: 0, or the error. */
static int put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY), error = 0;

	if (fd < 0)
		return errno;
	if (write(fd, text, strlen(text)) < 0)
		error = errno;
	close(fd);
	return error;
}

UNUSED static int putn(const char *path, long value)
{
	char text[32];

	snprintf(text, sizeof(text), "%ld", value);
	return put(path, text);
}

/* What is in a file; the text lasts until the next call. */
static char *content(const char *path)
{
	static char text[1 << 18];
	int fd = open(path, O_RDONLY);
	long got, length = 0;

	while (fd >= 0 && (got = read(fd, text + length, sizeof(text) - 1 - length)) > 0)
		length += got;
	text[length] = 0;
	if (fd >= 0)
		close(fd);
	return text;
}

UNUSED static void show_file(const char *path)
{
	printf("%s", content(path));
}

UNUSED static void lines(const char *path, const char *with)
{
	for (char *line = strtok(content(path), "\n"); line; line = strtok(NULL, "\n"))
		if (strstr(line, with))
			printf("%s\n", line);
}

/* The lines of the kernel log that have a text, without their time. */
UNUSED static void log_lines(const char *with)
{
	static char text[1 << 18];
	int length = klogctl(3, text, sizeof(text) - 1);

	text[length < 0 ? 0 : length] = 0;
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
		if (strstr(line, with) && !strstr(line, "ommand line"))
			printf("%s\n", strstr(line, "] ") ? strstr(line, "] ") + 2 : line);
}

UNUSED static long number(const char *path)
{
	char *text = content(path);

	return *text ? atol(text) : -1;
}

/* The number behind a name in a file, -1 where there is none. */
UNUSED static long field(const char *path, const char *name)
{
	char *found = content(path);
	size_t length = strlen(name);

	while ((found = strstr(found, name)) && strchr(": \t", found[length]) == NULL && found[length - 1] != ':')
		found += length;
	return found ? atol(found + length + (found[length] == ':')) : -1;
}

UNUSED static void pool(long pages) { putn(HP "nr_hugepages", pages); }
UNUSED static void overcommit(long pages) { putn(HP "nr_overcommit_hugepages", pages); }
UNUSED static long total(void) { return number(HP "nr_hugepages"); }
UNUSED static long rsvd(void) { return number(HP "resv_hugepages"); }
UNUSED static long surplus(void) { return number(HP "surplus_hugepages"); }

UNUSED static void *map(long pages, int flags)
{
	return mmap(NULL, pages * H2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | flags, -1, 0);
}

UNUSED static void *map_file(int fd, long pages)
{
	return mmap(NULL, pages * H2, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

UNUSED static void touch(char *memory, long pages)
{
	for (long page = 0; page < pages; page++)
		*(volatile char *)(memory + page * H2) = 1;
}

UNUSED static long nonzero(const char *memory, long size)
{
	long found = 0;

	for (long index = 0; index < size; index++)
		found += memory[index] != 0;
	return found;
}

/* Leave a pattern in pages of the pool. */
UNUSED static void dirty_pool(long pages)
{
	char *memory = map(pages, 0);

	memset(memory, 0x5a, pages * H2);
	munmap(memory, pages * H2);
}

UNUSED static int memfd(unsigned int flags) { return memfd_create("proof", MFD_HUGETLB | flags); }

UNUSED static int mount_huge(const char *options)
{
	umount2("/h", MNT_DETACH);
	mkdir("/h", 0700);
	return mount("none", "/h", "hugetlbfs", 0, options) ? errno : 0;
}

UNUSED static int huge_file(const char *name)
{
	char path[64];

	snprintf(path, sizeof(path), "/h/%s", name);
	return open(path, O_CREAT | O_RDWR, 0600);
}

/* Huge pages that the mount has left. */
UNUSED static long free_of_mount(void)
{
	struct statfs mounted;

	statfs("/h", &mounted);
	return mounted.f_bfree;
}

/* A number that /proc/self/smaps has for the mapping of an address. */
UNUSED static long smaps(void *address, const char *name)
{
	unsigned long start, end;
	int inside = 0;

	for (char *line = strtok(content("/proc/self/smaps"), "\n"); line; line = strtok(NULL, "\n")) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			inside = start <= (unsigned long)address && (unsigned long)address < end;
		else if (inside && !strncmp(line, name, strlen(name)))
			return atol(line + strlen(name));
	}
	return -1;
}

UNUSED static int vm_flag(void *address, const char *flag)
{
	unsigned long start, end;
	int inside = 0;

	for (char *line = strtok(content("/proc/self/smaps"), "\n"); line; line = strtok(NULL, "\n")) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			inside = start <= (unsigned long)address && (unsigned long)address < end;
		else if (inside && !strncmp(line, "VmFlags:", 8))
			return strstr(line, flag) != NULL;
	}
	return -1;
}

/* What numa_maps says of an address, but for the address itself and the nodes. */
UNUSED static void numa_maps(void *address)
{
	for (char *line = strtok(content("/proc/self/numa_maps"), "\n"); line; line = strtok(NULL, "\n")) {
		if (strtoul(line, NULL, 16) != (unsigned long)address)
			continue;
		printf("pages %s", strstr(line, " N0=") ? strstr(line, " N0=") + 4 : strstr(line, " N1=") + 4);
		printf("\n");
	}
}

UNUSED static unsigned long pagemap(void *address)
{
	unsigned long entry = 0;
	int fd = open("/proc/self/pagemap", O_RDONLY);

	pread(fd, &entry, sizeof(entry), (unsigned long)address / 4096 * 8);
	close(fd);
	return entry;
}

UNUSED static int node_of(void *address)
{
	int status = -1;

	syscall(SYS_move_pages, 0, 1, &address, NULL, &status, 0);
	return status;
}

UNUSED static void bind_node(int node)
{
	unsigned long nodes = 1UL << node;

	syscall(SYS_set_mempolicy, 2, &nodes, 64);
}

UNUSED static void prefer_node(int node)
{
	unsigned long nodes = 1UL << node;

	syscall(SYS_set_mempolicy, 1, &nodes, 64);
}

/* Run on the CPU of a node: the machine has as many CPUs as nodes. */
UNUSED static void on_node(int node)
{
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(node, &cpus);
	sched_setaffinity(0, sizeof(cpus), &cpus);
}

/* Have faults on memory told by a userfaultfd, which nobody answers. */
UNUSED static int watch(void *memory, long size, int mode)
{
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC);
	struct uffdio_api api = { UFFD_API, 0, 0 };
	struct uffdio_register range = { { (unsigned long)memory, size }, mode, 0 };

	ioctl(fd, UFFDIO_API, &api);
	if (ioctl(fd, UFFDIO_REGISTER, &range))
		printf("cannot be watched: %s\n", strerror(errno));
	return fd;
}

UNUSED static void *aligned_of(long pages, int flags)
{
	char *room = mmap(NULL, (pages + 2) * H2, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	void *place = (void *)(((unsigned long)room + H2 - 1) & -H2);

	return mmap(place, pages * H2, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

/* Memory for huge pages of its own alignment: as it is, advised to have them, or kept small until it is collapsed. */
UNUSED static void *aligned(long pages) { return aligned_of(pages, MAP_PRIVATE); }
UNUSED static void *aligned_shared(long pages) { return aligned_of(pages, MAP_SHARED); }

UNUSED static void *transparent(long pages)
{
	void *memory = aligned(pages);

	put(THP "enabled", "madvise");
	put(THP "defrag", "always");
	madvise(memory, pages * H2, MADV_HUGEPAGE);
	return memory;
}

UNUSED static void *transparent_small(long pages)
{
	void *memory = aligned(pages);

	put(THP "enabled", "never");
	return memory;
}

/* Let khugepaged at memory of small pages; kilobytes of huge pages that it made. */
UNUSED static long collapsed_by_daemon(void *memory)
{
	put(THP "enabled", "madvise");
	put(THP "khugepaged/defrag", "1");
	put(THP "khugepaged/pages_to_scan", "100000");
	put(THP "khugepaged/scan_sleep_millisecs", "10");
	madvise(memory, H2, MADV_HUGEPAGE);
	for (int wait = 0; wait < 40 && smaps(memory, "AnonHugePages:") == 0; wait++) {
		*(volatile char *)memory;
		usleep(100000);
	}
	return smaps(memory, "AnonHugePages:");
}

/* A file on the disk with two huge pages of text, which madvise(2) alone makes huge: khugepaged would at any time. */
UNUSED static int text_file(void)
{
	static char page[4096];
	int fd;

	mkdir("/disk", 0700);
	umount2("/disk", MNT_DETACH);
	if (mount("/dev/vda", "/disk", "ext4", 0, ""))
		printf("no disk: %s\n", strerror(errno));
	put(THP "enabled", "never");
	unlink("/disk/text");
	fd = open("/disk/text", O_CREAT | O_RDWR, 0700);
	memset(page, 0x90, sizeof(page));
	for (int index = 0; index < 1024; index++)
		write(fd, page, sizeof(page));
	fsync(fd);
	close(fd);
	return open("/disk/text", O_RDONLY);
}

UNUSED static void *map_text(int fd)
{
	char *place = aligned(2), *memory;

	memory = mmap(place, 2 * H2, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, fd, 0);
	for (long offset = 0; offset < H2; offset += 4096)
		*(volatile char *)(memory + offset);
	return memory;
}

UNUSED static long file_huge(void *memory) { return smaps(memory, "FilePmdMapped:"); }

/* A new file of a new tmpfs. */
UNUSED static int tmpfs_file(const char *options)
{
	umount2("/mnt", MNT_DETACH);
	mkdir("/mnt", 0700);
	if (mount("none", "/mnt", "tmpfs", 0, options))
		printf("no tmpfs: %s\n", strerror(errno));
	return open("/mnt/f", O_RDWR | O_CREAT, 0600);
}

/* A file on the disk with 16 MiB of swap. */
static int swap_file(void)
{
	static char page[4096];
	int fd;

	close(text_file());
	fd = open("/disk/swap", O_CREAT | O_TRUNC | O_RDWR, 0600);
	memset(page, 0, sizeof(page));
	for (int index = 0; index < 4096; index++)
		write(fd, page, sizeof(page));
	((int *)page)[256] = 1;
	((int *)page)[257] = 4095;
	memcpy(page + 4086, "SWAPSPACE2", 10);
	pwrite(fd, page, sizeof(page), 0);
	fsync(fd);
	return fd;
}

/* Swap of 16 MiB in a file on the disk, until swap_off(). */
UNUSED static void swap_on(void)
{
	close(swap_file());
	if (syscall(SYS_swapon, "/disk/swap", 0))
		printf("no swap: %s\n", strerror(errno));
}

UNUSED static void swap_off(void) { syscall(SYS_swapoff, "/disk/swap"); }

/* The same on a block device, until swap_device_off(): the kernel splits huge pages that go to a file. */
UNUSED static void swap_device_on(void)
{
	int fd = swap_file(), device = open("/dev/loop0", O_RDWR);

	if (ioctl(device, LOOP_SET_FD, fd) || syscall(SYS_swapon, "/dev/loop0", 0))
		printf("no swap: %s\n", strerror(errno));
	close(device);
	close(fd);
}

UNUSED static void swap_device_off(void)
{
	int device = open("/dev/loop0", O_RDWR);

	syscall(SYS_swapoff, "/dev/loop0");
	ioctl(device, LOOP_CLR_FD, 0);
	close(device);
}

/*
 * Give a controller to version 2. Groups of version 1 go some time after they were removed, and one that is there when
 * its hierarchy is unmounted keeps that, and the controller, until it is unmounted once more.
 */
static void take_controller(const char *name)
{
	char taken[16];

	snprintf(taken, sizeof(taken), "+%s", name);
	mkdir("/cg-left", 0700);
	for (int wait = 0; put("/cg/cgroup.subtree_control", taken) && wait < 200; wait++) {
		if (!mount("none", "/cg-left", "cgroup", 0, name))
			umount2("/cg-left", 0);
		usleep(100000);
	}
}

/* A new control group of version 2. */
UNUSED static void group(const char *name)
{
	char path[64];

	mkdir("/cg", 0700);
	mount("none", "/cg", "cgroup2", 0, "");
	/* version 1 may have had one of the controllers until just now, or keep it: taken apart the other one is there */
	take_controller("memory");
	take_controller("hugetlb");
	snprintf(path, sizeof(path), "/cg/%s", name);
	rmdir(path);
	mkdir(path, 0700);
}

/* Take a controller from version 2, and mount it as that of version 1, which then has it alone. */
UNUSED static void mount_v1(const char *controller, const char *place)
{
	char taken[16];

	mkdir("/cg", 0700);
	mount("none", "/cg", "cgroup2", 0, "");
	rmdir("/cg/a");
	snprintf(taken, sizeof(taken), "-%s", controller);
	put("/cg/cgroup.subtree_control", taken);
	umount2("/cg", 0);
	mkdir(place, 0700);
	for (int wait = 0; mount("none", place, "cgroup", 0, controller) && wait < 200; wait++)
		usleep(100000);
}

/* A new group of the hugetlb controller of version 1. */
UNUSED static void group_v1(const char *name)
{
	char path[64];

	mount_v1("hugetlb", "/cg1");
	snprintf(path, sizeof(path), "/cg1/%s", name);
	rmdir(path);
	mkdir(path, 0700);
}

/* Two new groups of the memory controller of version 1, /cgm/a and /cgm/b. */
UNUSED static void memory_groups_v1(void)
{
	mount_v1("memory", "/cgm");
	mkdir("/cgm/a", 0700);
	mkdir("/cgm/b", 0700);
}

/* An io_uring of one request, which reads a file that is full of ones into buffers that it is provided with. */
static struct { int ring, file; unsigned at[30]; char *queue, *request; } uring;

struct provided { unsigned long address; unsigned entries; unsigned short group, flags; unsigned long reserved[3]; };

/* Have it take its buffers from a ring in memory; all lie one behind the other. */
UNUSED static void provide(char *memory, int entries, char *buffers, unsigned length)
{
	struct provided provided = { (unsigned long)memory, entries, 1, 0, { 0 } };
	static char ones[4096];

	uring.ring = syscall(SYS_io_uring_setup, 1, uring.at);
	uring.queue = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, uring.ring, 0);
	uring.request = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, uring.ring, 0x10000000);
	uring.file = memfd_create("ones", 0);
	memset(ones, 1, sizeof(ones));
	for (int page = 0; page < 1024; page++)
		write(uring.file, ones, sizeof(ones));
	if (syscall(SYS_io_uring_register, uring.ring, 22, &provided, 1))
		printf("no ring of buffers: %s\n", strerror(errno));
	for (int number = 0; number < entries; number++) {
		*(unsigned long *)(memory + number * 16) = (unsigned long)buffers + (unsigned long)number * length;
		*(unsigned *)(memory + number * 16 + 8) = length;
		*(unsigned short *)(memory + number * 16 + 12) = number;
	}
	__atomic_store_n((unsigned short *)(memory + 14), entries, __ATOMIC_RELEASE);
}

/* Read into one of them: its number, or the error. */
UNUSED static int take(unsigned length)
{
	unsigned *tail = (unsigned *)(uring.queue + uring.at[11]), *head = (unsigned *)(uring.queue + uring.at[20]);
	unsigned *result = (unsigned *)(uring.queue + uring.at[25] + (*head & 1) * 16);

	uring.request[0] = 22;
	uring.request[1] = 32;
	*(int *)(uring.request + 4) = uring.file;
	*(unsigned *)(uring.request + 24) = length;
	*(unsigned short *)(uring.request + 40) = 1;
	__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
	syscall(SYS_io_uring_enter, uring.ring, 1, 1, 1, NULL, 0);
	__atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
	return (int)result[2] < 0 ? (int)result[2] : (int)(result[3] >> 16);
}

/* Take the ring of buffers away: 0, or -1. */
UNUSED static int withdraw(void)
{
	struct provided provided = { 0, 0, 1, 0, { 0 } };

	return syscall(SYS_io_uring_register, uring.ring, 23, &provided, 1);
}

UNUSED static void join(const char *name)
{
	char path[64];

	snprintf(path, sizeof(path), "/cg/%s/cgroup.procs", name);
	put(path, "0");
}

struct proof {
	const char *name;
	void (*program)(void);
};

extern const struct proof proofs[];

/* Put back what programs change, as far as it does not go with them. */
static void put_back(void)
{
	umount2("/h", MNT_DETACH);
	rmdir("/cg1/a");
	umount2("/cg1", 0);
	rmdir("/cg/a");
	pool(0);
	putn(GIGANTIC "nr_hugepages", 0);
	overcommit(0);
	put(THP "enabled", "madvise");
	put(THP "defrag", "madvise");
	put(THP "shmem_enabled", "never");
}

/* What a fault has kept for ever would show in the next proof. */
static int is_clean(void)
{
	static const char *const left[] = {
		HP "nr_hugepages", HP "resv_hugepages", HP "surplus_hugepages", GIGANTIC "nr_hugepages",
		GIGANTIC "resv_hugepages", NODE(0) "surplus_hugepages", NODE(1) "surplus_hugepages",
	};

	for (size_t index = 0; index < sizeof(left) / sizeof(*left); index++) {
		/* what was killed takes a moment to go */
		for (int wait = 0; number(left[index]) && wait < 20; wait++)
			usleep(100000);
		if (number(left[index]))
			return 0;
	}
	return 1;
}

static int run(const struct proof *proof, const char *fault, int keeps)
{
	int status;
	pid_t child;

	if (!keeps && put(CHOICE, "none"))
		printf("cannot be chosen: none\n");
	if (!keeps) {
		put_back();
		if (!is_clean())
			return 0;
	}
	dprintf(1, "\n@begin %s %s\n", proof->name, fault);
	if (!keeps && put(CHOICE, fault))
		printf("cannot be chosen: %s\n", fault);
	child = fork();
	if (!child) {
		setpgid(0, 0);
		alarm(SECONDS_OF_A_RUN);
		proof->program();
		fflush(stdout);
		_exit(0);
	}
	waitpid(child, &status, 0);
	kill(-child, SIGKILL);
	if (WIFSIGNALED(status))
		printf("ended by signal %d\n", WTERMSIG(status));
	fflush(stdout);
	dprintf(1, "@end\n");
	return 1;
}

int main(void)
{
	static char list[1 << 16], *rest = list;
	char *line;
	int keeps;

	mkdir("/proc", 0755);
	mkdir("/sys", 0755);
	mkdir("/dev", 0755);
	mkdir("/tmp", 0777);
	mount("none", "/proc", "proc", 0, "");
	mount("none", "/sys", "sysfs", 0, "");
	mount("none", "/dev", "devtmpfs", 0, "");
	mount("none", "/tmp", "tmpfs", 0, "");
	put("/proc/sys/kernel/printk", "1");
	put("/proc/sys/vm/unprivileged_userfaultfd", "1");
	setvbuf(stdout, NULL, _IOLBF, 0);
	strncpy(list, content("/proofs"), sizeof(list) - 1);
	while ((line = strsep(&rest, "\n"))) {
		char *name = strsep(&line, " "), *fault;

		while (name && *name && (fault = strsep(&line, " "))) {
			keeps = !strcmp(fault, "as-booted");
			for (const struct proof *proof = proofs; proof->name; proof++)
				if (!strcmp(proof->name, name) && !run(proof, fault, keeps))
					goto over;
		}
	}
over:
	dprintf(1, "\n@over\n");
	reboot(RB_POWER_OFF);
	return 0;
}
