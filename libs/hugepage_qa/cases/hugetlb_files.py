"""What actors share huge pages by: files of a hugetlbfs or without a name (memfd_create(2)), segments (shmget(2))."""

import errno
import fcntl
import os
from dataclasses import dataclass
from typing import Any, Final

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
from hugepage_qa.kernel.process_status import ProcessStatus, read_process_status
from hugepage_qa.kernel.uapi import AT_EMPTY_PATH, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE
from hugepage_qa.machine.host import Host, ObservedTree
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.process.actor import Actor
from hugepage_qa.version import KernelVersion

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
    """Open a file of a hugetlbfs, in a new actor without one. Raises OSError."""
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


# include/uapi/linux/shm.h, ipc.h: the same on all architectures
IPC_PRIVATE: Final = 0
IPC_CREAT: Final = 0o1000
IPC_EXCL: Final = 0o2000
IPC_RMID: Final = 0
IPC_SET: Final = 1
IPC_STAT: Final = 2
SHM_LOCK: Final = 11
SHM_UNLOCK: Final = 12
SHM_HUGETLB: Final = 0o4000
SHM_NORESERVE: Final = 0o10000
SHM_RDONLY: Final = 0o10000
SHM_RND: Final = 0o20000
SHM_REMAP: Final = 0o40000
SHM_EXEC: Final = 0o100000
#: struct shmid64_ds: 48 bytes of shm_perm, of which the first six words are read, then what architectures order
#: differently
_SHMID_SIZE: Final = 112


@dataclass(frozen=True)
class SegmentStatus:
    """What IPC_STAT tells of a segment: bytes as asked for, processes, seconds since 1970, and how often attached."""

    owner: int
    creator: int
    mode: int
    size: int
    attached_at: int
    detached_at: int
    changed_at: int
    creator_pid: int
    last_pid: int
    attachments: int


class Segment:
    """A segment of ``pages`` pages; ``identifier`` is what shmat(2) takes."""

    def __init__(self, live: Live, actor: Actor, identifier: int, pages: int) -> None:
        self._live = live
        self.actor = actor
        self.identifier = identifier
        self.pages = pages

    def attach(self, actor: Actor | None = None, flags: int = 0, address: int = 0) -> Memory:
        """Attach it in ``actor`` (by default the one that created it). Raises OSError."""
        actor = actor or self.actor
        where = actor.call("shmat", self.identifier, address, flags) % (1 << 64)
        return Memory(self._live, actor, where, self.pages, self._live.size)

    def attach_for_good(self) -> Memory:
        """Attach and remove it: it goes with the last process that has it attached. Raises OSError."""
        memory = self.attach()
        self.remove()
        return memory

    def detach(self, memory: Memory) -> None:
        """Detach it where ``attach`` put it. Raises OSError."""
        memory.actor.call("shmdt", memory.address)

    def remove(self, actor: Actor | None = None) -> None:
        """Remove it: it goes when nobody has it attached any more. Raises OSError."""
        (actor or self.actor).call("shmctl", self.identifier, IPC_RMID, 0)

    def status(self, actor: Actor | None = None) -> SegmentStatus:
        """Return what IPC_STAT tells ``actor`` of it. Raises OSError."""
        uapi = self._live.host.uapi
        words = self.identifier, IPC_STAT, bytes(_SHMID_SIZE)
        _zero, (status,) = (actor or self.actor).call_with_buffers("shmctl", *words)
        _key, owner, _group, creator, _its_group, mode = uapi.unpack("6I", status[:24])
        longs = dict(zip(uapi.shmid_longs, uapi.unpack("4q", status[48:80]), strict=True))
        size, *times = (longs[name] for name in ("shm_segsz", "shm_atime", "shm_dtime", "shm_ctime"))
        return SegmentStatus(owner, creator, mode, size, *times, *uapi.unpack("2iQ", status[80:96]))

    def change(self, owner: int, mode: int, actor: Actor | None = None) -> None:
        """Have ``actor`` give it another owner, user and group, and mode (IPC_SET). Raises OSError."""
        status = self._live.host.uapi.pack("6I", 0, owner, owner, 0, 0, mode).ljust(_SHMID_SIZE, b"\0")
        (actor or self.actor).call("shmctl", self.identifier, IPC_SET, status)


def get_segment(
    live: Live, length: int, actor: Actor | None = None, key: int = IPC_PRIVATE, flags: int = 0o600 | IPC_CREAT
) -> Segment:
    """Create or find a segment of ``length`` bytes; it is removed after the case at the latest. Raises OSError.

    ``flags`` are its mode and further IPC_* and SHM_* flags.
    """
    actor = actor or live.actor()
    identifier = segment_number(live, actor, length, SHM_HUGETLB | live.size_flag | flags, key)
    return Segment(live, actor, identifier, -(-length // live.size))


def get_segment_of_no_size(live: Live) -> Segment:
    """Create a segment of as many bytes as a page has, which names no page size, as ``get_segment`` does."""
    actor = live.actor()
    return Segment(live, actor, segment_number(live, actor, live.size, SHM_HUGETLB | IPC_CREAT | 0o600), 1)


def segment_number(live: Live, actor: Actor, length: int, flags: int, key: int = IPC_PRIVATE) -> int:
    """Create or find a segment of ``length`` bytes, of any pages, that is removed after the case. Raises OSError."""
    identifier = actor.call("shmget", key, length, flags)
    live.when_actors_have_ended(_remove_if_there, live.host, identifier)
    return identifier


def _remove_if_there(host: Host, identifier: int) -> None:
    actor = host.start_actor()
    try:
        actor.call("shmctl", identifier, IPC_RMID, 0)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EIDRM):
            raise
    finally:
        actor.end()


#: what a hugetlb mapping is never part of (Documentation/filesystems/proc.rst smaps)
_OTHERS = ("Rss", "Pss", "Anonymous", "AnonHugePages", "ShmemPmdMapped", "Shared_Dirty", "Private_Dirty")

#: what smaps shows of a page that is not present: before, it asked how often the page is mapped
_NOT_PRESENT_IS_SHARED = KernelVersion(6, 11)


def expect_hugetlb(live: Live, memory: Memory, *, private: int = 0, shared: int = 0, apart: bool = False) -> None:
    """Expect what the only hugetlb mapping of a process shows, in pages, and that the process shows the same.

    Private ones are in one page table, or ``apart`` in one each. Raises KnownBug.
    """
    mapping = memory.smaps()
    expect_private_and_shared(live, private, shared, (mapping.private_hugetlb, mapping.shared_hugetlb), apart=apart)
    for name in _OTHERS:
        live.expect(f"{name} of a hugetlb mapping", 0, mapping.fields.get(name, 0))
    live.expect("HugetlbPages", (private + shared) * live.size, process_status(live, memory.actor).hugetlb_pages)


def expect_private_and_shared(
    live: Live,
    private: int,
    shared: int,
    found: tuple[int | None, int | None],
    *,
    broken: int = 0,
    apart: bool = False,
) -> None:
    """Expect Private_Hugetlb and Shared_Hugetlb, ``found`` in bytes, to be this many pages. Raises KnownBug.

    ``broken`` more pages were private and broke at their first base page: neither counts them. All private ones are in
    one page table, or ``apart`` in one each.
    """
    known = {}
    if private and live.mmu.may_seem_shared(live.size):
        # a table seems to be shared or not, with all that is in it
        not_all = [(private - pages) * live.size for pages in range(1, private)] if apart else []
        still_private = found[0] if found[0] in not_all else 0
        known[Quirk.SMAPS_SHOWS_SHARED] = still_private, (private + shared + broken) * live.size - still_private
    if broken:
        as_shared = broken if live.kernel_version >= _NOT_PRESENT_IS_SHARED else 0
        pages = private + broken - as_shared, shared + as_shared
        known[Quirk.SMAPS_SHOWS_BROKEN] = pages[0] * live.size, pages[1] * live.size
    live.expect("Private_Hugetlb, Shared_Hugetlb", (private * live.size, shared * live.size), found, known)


def forked(live: Live, memory: Memory, pages: int = 1, *, apart: bool = False) -> Memory:
    """Fork the actor of private ``memory``, and return what its child has of it: the ``pages`` that were touched.

    They are in one page table, or ``apart`` in one each. Raises KnownBug where it has none, or lacks some of these.
    """
    child = memory.fork()
    expect_inherited(live, child, pages, apart=apart)
    return child


def expect_inherited(live: Live, child: Memory, pages: int, *, apart: bool = False) -> None:
    """Expect who was forked to have the ``pages`` that were touched, as ``forked`` says. Raises KnownBug."""
    expected, found = pages * live.size, process_status(live, child.actor).hugetlb_pages
    # a table is passed over or not, with all that is in it
    lacking = found if apart and found in range(0, expected, live.size) else 0
    known = {Quirk.FORK_LOSES_PAGES: lacking} if live.mmu.may_seem_shared(live.size) else None
    live.expect("HugetlbPages of the child", expected, found, known)


def process_status(live: Live, actor: Actor) -> ProcessStatus:
    """Return /proc/PID/status of ``actor``. Raises Failed where there is none."""
    status = read_process_status(ObservedTree(live.host), actor.pid)
    return status or live.fail(f"/proc/{actor.pid}/status", "a process", "none")
