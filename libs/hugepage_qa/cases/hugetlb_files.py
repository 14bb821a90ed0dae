"""Files that actors share huge pages by: those of a hugetlbfs, and those without a name (memfd_create(2))."""

import fcntl
import os
from typing import Any

from hugepage_qa.cases.file_status import (
    STATFS_SIZE,
    STATX_BASIC_STATS,
    STATX_SIZE,
    FileStatus,
    FileSystemStatus,
    file_status,
    file_system_status,
)
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.kernel.uapi import AT_EMPTY_PATH, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE
from hugepage_qa.process.actor import Actor

# include/uapi/linux/stat.h
_STATX_MODE, _STATX_NLINK, _STATX_GID, _STATX_BLOCKS, _STATX_DIOALIGN = 0x2, 0x4, 0x10, 0x400, 0x2000
_STATX_WANTED = _STATX_MODE | _STATX_BLOCKS | _STATX_DIOALIGN


class HugeFile:
    """An open file, or a directory; pages of it count from 0."""

    def __init__(self, live: Live, actor: Actor, descriptor: int) -> None:
        self._live = live
        self.actor = actor
        self.descriptor = descriptor

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self.actor.call("lseek", self.descriptor, 0, os.SEEK_END)

    @property
    def blocks(self) -> int:
        """What it occupies, in bytes: st_blocks of stat(2)."""
        return self.status(_STATX_WANTED).occupied

    @property
    def block_size(self) -> int:
        """The size in bytes in which it is best read and written: st_blksize of stat(2)."""
        return self.status(_STATX_WANTED).block_size

    @property
    def direct_alignment(self) -> int:
        """O_DIRECT carries multiples of so many bytes: stx_dio_offset_align of statx(2), a base page where it is 0."""
        return self.status(_STATX_WANTED).direct_alignment or self._live.base_page

    @property
    def mode(self) -> int:
        """The bits that chmod(2) sets."""
        return self.status(_STATX_WANTED).mode

    @property
    def links(self) -> int:
        """How many names it has: st_nlink of stat(2)."""
        return self.status(_STATX_NLINK).links

    @property
    def group(self) -> int:
        """The group that it belongs to: st_gid of stat(2)."""
        return self.status(_STATX_GID).group

    def status(self, wanted: int = STATX_BASIC_STATS) -> FileStatus:
        """Return what statx(2) tells of it; what is not ``wanted`` (STATX_*) need not be right. Raises OSError."""
        words = self.descriptor, "", AT_EMPTY_PATH, wanted, bytes(STATX_SIZE)
        _zero, (*_path, found) = self.actor.call_with_buffers("statx", *words)
        return file_status(self.actor.uapi, found)

    def file_system(self) -> FileSystemStatus:
        """Return what statfs(2) tells of the file system that it is on. Raises OSError."""
        _zero, (found,) = self.actor.call_with_buffers("fstatfs", self.descriptor, bytes(STATFS_SIZE))
        return file_system_status(self.actor.uapi, found)

    def map(self, pages: int, *, shared: bool = True, **named: Any) -> Memory:
        """Map pages of it, as ``Live.map`` does. Raises OSError."""
        return self._live.map(pages, self.actor, fd=self.descriptor, shared=shared, **named)

    def truncate(self, pages: int) -> None:
        """Make it ``pages`` pages long. Raises OSError."""
        self.actor.call("ftruncate", self.descriptor, pages * self._live.size)

    def allocate(self, pages: int, first: int = 0, mode: int = 0) -> None:
        """Allocate ``pages`` pages from ``first`` on (fallocate(2)). Raises OSError."""
        self.actor.call("fallocate", self.descriptor, mode, first * self._live.size, pages * self._live.size)

    def punch(self, pages: int, first: int = 0) -> None:
        """Give ``pages`` pages from ``first`` on back, and leave a hole. Raises OSError."""
        self.allocate(pages, first, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)

    def punch_bytes(self, start: int, length: int) -> None:
        """Leave a hole of ``length`` bytes from ``start`` on. Raises OSError."""
        self.actor.call("fallocate", self.descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, start, length)

    def seal(self, seals: int) -> None:
        """Add ``seals`` (F_SEAL_*). Raises Refused."""
        self.actor.call("fcntl", self.descriptor, fcntl.F_ADD_SEALS, seals)

    @property
    def seals(self) -> int:
        """The seals that it has (F_SEAL_*)."""
        return self.actor.call("fcntl", self.descriptor, fcntl.F_GET_SEALS)

    def read(self, offset: int, length: int) -> bytes:
        """Return what pread64(2) reads of ``length`` bytes at ``offset``: less behind the end. Raises OSError."""
        count, (found,) = self.actor.call_with_buffers("pread64", self.descriptor, bytes(length), length, offset)
        return found[:count]

    def close(self) -> None:
        """Close it. Raises OSError."""
        self.actor.call("close", self.descriptor)


def open_file(live: Live, path: str, actor: Actor | None = None, flags: int = os.O_RDWR | os.O_CREAT) -> HugeFile:
    """Open a file, of a hugetlbfs or another file system, in a new actor without one. Raises OSError."""
    actor = actor or live.actor()
    return HugeFile(live, actor, live.open(actor, path, flags))


def open_directory(live: Live, actor: Actor, path: str) -> HugeFile:
    """Open a directory. Raises OSError."""
    return open_file(live, path, actor, os.O_RDONLY | live.host.uapi.o_directory)


def look_at(live: Live, actor: Actor, directory: int, name: str) -> HugeFile:
    """Open a file in an open directory to be looked at alone, whatever its kind and mode (O_PATH). Raises OSError."""
    return HugeFile(live, actor, actor.call("openat", directory, name, os.O_PATH, 0))


def open_again(live: Live, file: HugeFile, actor: Actor | None = None, flags: int = os.O_RDWR) -> HugeFile:
    """Open ``file``, which needs no name, once more, in a new actor without one (proc_pid_fd(5)). Raises OSError."""
    return open_file(live, f"/proc/{file.actor.pid}/fd/{file.descriptor}", actor, flags)


def new_memfd(live: Live, actor: Actor | None = None, flags: int = 0, *, pages: int = 0) -> HugeFile:
    """Create a file without a name, ``pages`` pages long; ``flags`` are further MFD_* flags. Raises OSError."""
    actor = actor or live.actor()
    flags |= os.MFD_HUGETLB | live.size_flag
    file = HugeFile(live, actor, actor.call("memfd_create", "hugepage-qa", flags))
    if pages:
        file.truncate(pages)
    return file


def new_memfd_of_no_size(live: Live) -> HugeFile:
    """Create an empty file without a name, which names no page size: that is the default one. Raises OSError."""
    actor = live.actor()
    return HugeFile(live, actor, actor.call("memfd_create", "hugepage-qa", os.MFD_HUGETLB))


def file_of_each_kind(live: Live) -> tuple[HugeFile, HugeFile]:
    """Return a file of a hugetlbfs and one without a name."""
    return open_file(live, f"{live.mount()}/file"), new_memfd(live)
