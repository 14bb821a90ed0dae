/* What the agent does to the files of its machine. */
#define _GNU_SOURCE
#include "agent.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

char *file_content;

ssize_t read_file(const char *path)
{
	static size_t room;
	size_t size = 0;
	int descriptor = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t now = -1;

	if (descriptor < 0)
		return -1;
	do {
		if (size + PACKET >= room)
			file_content = grown(file_content, room = 2 * (size + PACKET));
		/* no more at once: a sysctl allocates as much, and is refused beyond KMALLOC_MAX_SIZE */
		now = read(descriptor, file_content + size, PACKET);
		size += now > 0 ? (size_t)now : 0;
	} while (now > 0 && size <= LARGEST);
	if (now > 0)
		errno = EFBIG;
	close(descriptor);
	file_content[size] = 0;
	return now ? -1 : (ssize_t)size;
}

void answer_read(void)
{
	ssize_t size = read_file(fields[0]);

	if (size < 0)
		return answer(-1);
	begin_answer('k');
	put_field(file_content, (size_t)size);
	end_answer();
}

void answer_names(void)
{
	DIR *directory = opendir(fields[0]);
	struct dirent *entry;

	if (!directory)
		return answer(-1);
	begin_answer('k');
	while ((entry = readdir(directory)))
		if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
			put_field(entry->d_name, strlen(entry->d_name));
	closedir(directory);
	end_answer();
}

long close_with(int descriptor, long result)
{
	int error = errno;

	close(descriptor);
	errno = error;
	return result;
}

long write_file(void)
{
	int descriptor = open(fields[0], O_WRONLY | O_NOFOLLOW | O_CLOEXEC);

	return descriptor < 0 ? -1 : close_with(descriptor, write(descriptor, fields[1], field_sizes[1]));
}

long store_bytes(void)
{
	int descriptor = open(fields[0], O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	off_t at = (off_t)strtoll(fields[1], NULL, 10);
	size_t done = 0;

	if (descriptor < 0)
		return -1;
	while (done < field_sizes[2]) {
		ssize_t now = pwrite(descriptor, fields[2] + done, field_sizes[2] - done, at + (off_t)done);

		if (now < 0)
			return close_with(descriptor, -1);
		done += (size_t)now;
	}
	return close_with(descriptor, 0);
}

long write_zeros(void)
{
	static const char zeros[PACKET];
	int descriptor = open(fields[0], O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	off_t size = (off_t)strtoll(fields[1], NULL, 10);
	ssize_t now = 0;

	if (descriptor < 0)
		return -1;
	for (off_t at = 0; now >= 0 && at < size; at += now)
		now = pwrite(descriptor, zeros, (size_t)(size - at < PACKET ? size - at : PACKET), at);
	return close_with(descriptor, now < 0 ? -1 : fsync(descriptor));
}

long evict(void)
{
	int descriptor = open(fields[0], O_RDONLY | O_CLOEXEC);
	long result;

	if (descriptor < 0)
		return -1;
	result = fsync(descriptor);
	if (!result && (errno = posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED)))
		result = -1;
	return close_with(descriptor, result);
}

void answer_file_system(void)
{
	struct statvfs use;

	if (statvfs(fields[0], &use))
		return answer(-1);
	begin_answer('k');
	put_number((long long)use.f_bsize);
	put_number((long long)use.f_blocks);
	put_number((long long)use.f_bfree);
	put_number((long long)use.f_files);
	put_number((long long)use.f_ffree);
	end_answer();
}

long load_module(const char *path)
{
	int module = open(path, O_RDONLY | O_CLOEXEC);

	return module < 0 ? -1 : close_with(module, syscall(SYS_finit_module, module, "", 0));
}
