"""Memory that the kernel has pinned for a process: fixed buffers of io_uring(7), pipes, files past the page cache."""

import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.process.actor import Actor, Refused
from hugepage_qa.sizes import GIB

# include/uapi/linux/io_uring.h: struct io_uring_params, and where it has sq_off.tail, cq_off.head and cq_off.cqes
_PARAMS, _TAIL_AT, _HEAD_AT, _CQES_AT = 120, 44, 80, 100
_REGISTER_BUFFERS, _UNREGISTER_BUFFERS, _GET_EVENTS = 0, 1, 1
_UPDATE_BUFFERS, _CLONE_BUFFERS = 16, 30
_OFF_SQES = 0x10000000
_READ_FIXED, _WRITE_FIXED = 4, 5
_CQE, _RES_AT = 16, 8
#: of requests; of their results a ring holds twice as many
_ENTRIES = 4
_RESULTS = 2 * _ENTRIES
#: tmpfs takes O_DIRECT since Linux 6.6 (e88e0d366f9c), and btrfs since 6.15 for files with checksums (968f19c5b1b7),
#: and both copy all the same: nothing would be pinned
_PINNING = ("ext4", "xfs")
_MOVABLE = "proc/sys/vm/movable_gigantic_pages"
#: the kernel takes no longer buffer: EFAULT (io_uring/rsrc.c)
LONGEST_BUFFER = GIB


def new_ring(actor: Actor, entries: int, params: bytes) -> tuple[int, bytes]:
    """Return a ring of so many ``entries``, and what io_uring_setup(2) made of ``params`` (struct io_uring_params).

    Raises Refused, and CannotRun where the kernel has no io_uring or the machine forbids it.
    """
    try:
        ring, (params,) = actor.call_with_buffers("io_uring_setup", entries, params)
    except Refused as refusal:
        if refusal.errno not in (errno.ENOSYS, errno.EPERM):
            raise
        raise CannotRun("this kernel has no io_uring, or kernel.io_uring_disabled forbids it") from refusal
    return ring, params


@contextmanager
def where_none_is_pinned(live: Live) -> Iterator[None]:
    """Raise CannotRun for a gigantic page that may lie where none is pinned for long, and has to move, and cannot.

    Those that nobody uses lie there, too, and none is allocated for it (mm/hugetlb.c alloc_migrate_hugetlb_folio()):
    an area of hugetlb_cma=, or movable memory.
    """
    try:
        yield
    except Refused as refusal:
        if refusal.errno != errno.ENOMEM or not live.is_gigantic:
            raise
        has_area = any(word.startswith("hugetlb_cma=") for word in (live.host.read("proc/cmdline") or "").split())
        if not has_area and (live.host.read(_MOVABLE) or "0").strip() == "0":
            raise
        raise CannotRun("a page lies in an area of hugetlb_cma=, or in movable memory, and finds no other") from refusal


class Pin:
    """The first base page of ``memory``, or other parts, as the kernel has it pinned.

    What it holds can be carried to files and from them.
    """

    def __init__(self, live: Live, memory: Memory) -> None:
        self._live = live
        self._actor = actor = memory.actor
        self._address = memory.address
        self._uapi = live.host.uapi
        self._ring, params = new_ring(actor, _ENTRIES, bytes(_PARAMS))
        self._tail, self._head, self._results = (
            self._uapi.unpack("I", params[at : at + 4])[0] for at in (_TAIL_AT, _HEAD_AT, _CQES_AT)
        )
        self._rings = self._entries = 0
        self._asked = 0

    def hold(self, *parts: tuple[int, int]) -> None:
        """Pin it, or instead parts of ``memory``: offset and length of each in bytes. Raises Refused, and CannotRun."""
        parts = parts or ((0, self._live.base_page),)
        vector = b"".join(self._uapi.pack("2Q", self._address + offset, length) for offset, length in parts)
        with where_none_is_pinned(self._live):
            self._actor.call("io_uring_register", self._ring, _REGISTER_BUFFERS, vector, len(parts))

    def replace(self, number: int, part: tuple[int, int]) -> None:
        """Have the buffer ``number`` be another part of ``memory``: its offset and length in bytes. Raises Refused.

        What it was is let go at once, or soon by a worker (before Linux 6.13). Since Linux 5.13.
        """
        offset, length = part
        vector = self._actor.mmap(self._live.base_page, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        for at, word in enumerate((self._address + offset, length)):
            self._actor.write(vector + at * WORD, word)
        # struct io_uring_rsrc_update2
        update = self._uapi.pack("2I2Q2I", number, 0, vector, 0, 1, 0)
        self._actor.call("io_uring_register", self._ring, _UPDATE_BUFFERS, update, len(update))
        self._actor.call("munmap", vector, self._live.base_page)

    def take_from(self, other: "Pin") -> None:
        """Have the buffers of ``other``, too. Since Linux 6.12. Raises Refused."""
        # struct io_uring_clone_buffers
        asked = self._uapi.pack("8I", other._ring, *[0] * 7)
        self._actor.call("io_uring_register", self._ring, _CLONE_BUFFERS, asked, 1)

    def let_go(self) -> None:
        """Let it go: what a ring holds when it is closed is let go later, by a worker."""
        self._actor.call("io_uring_register", self._ring, _UNREGISTER_BUFFERS, 0, 0)

    def read(self) -> int:
        """Return the first word, as the pin sees it."""
        file = self._actor.call("memfd_create", "pinned", 0)
        self._live.expect("bytes carried through the pin", WORD, self.to_file(file, 0, WORD))
        _count, (word,) = self._actor.call_with_buffers("pread64", file, bytes(WORD), WORD, 0)
        return self._uapi.unpack("Q", word)[0]

    def write(self, value: int) -> None:
        """Store ``value`` in the first word, through the pin."""
        file = self._actor.call("memfd_create", "pinned", 0)
        self._actor.call("pwrite64", file, self._uapi.pack("Q", value), WORD, 0)
        self._live.expect("bytes carried through the pin", WORD, self.from_file(file, 0, WORD))

    def to_file(self, file: int, offset: int, length: int, number: int = 0) -> int:
        """Have ``length`` bytes of ``memory`` from ``offset`` on written to the start of ``file``.

        They are to lie in the buffer ``number``. Returned are the bytes written, or an errno with a minus sign.
        """
        return self._carry(_WRITE_FIXED, file, offset, length, number)

    def from_file(self, file: int, offset: int, length: int, number: int = 0) -> int:
        """Have ``length`` bytes of ``memory`` read from the start of ``file``, as ``to_file`` has them written."""
        return self._carry(_READ_FIXED, file, offset, length, number)

    def _carry(self, opcode: int, file: int, offset: int, length: int, number: int) -> int:
        if not self._rings:
            page, shared = self._live.base_page, mmap.MAP_SHARED
            self._rings = self._actor.mmap(page, READ_WRITE, shared, self._ring)
            self._entries = self._actor.mmap(page, READ_WRITE, shared, self._ring, _OFF_SQES)
        where = self._address + offset, length
        entry = self._uapi.pack("BBHiQQIIQHHIQQ", opcode, 0, 0, file, 0, *where, 0, 0, number, 0, 0, 0, 0)
        for at in range(0, len(entry), WORD):
            self._actor.write(self._entries + at, self._uapi.unpack("Q", entry[at : at + WORD])[0])
        # every request is the first entry: the array that says so is zero
        place = self._asked % _RESULTS
        seen, self._asked = self._asked - place, self._asked + 1
        # how many results have been read is told when there is room for no more: right behind the tail or in
        # a line of its own, as the version has it (struct io_rings)
        are_side_by_side = self._head == self._tail + len(self._uapi.pack("I", 0))
        if seen and not place and not are_side_by_side:
            self._store(self._head, seen, 0)
        self._store(self._tail, self._asked, seen if are_side_by_side else 0)
        self._actor.call("io_uring_enter", self._ring, 1, self._asked - seen, _GET_EVENTS, 0, 0)
        result = self._actor.read(self._rings + self._results + place * _CQE + _RES_AT)
        done, _flags = self._uapi.unpack("iI", self._uapi.pack("Q", result))
        return done

    def _store(self, place: int, *numbers: int) -> None:
        """Store two numbers at a ``place`` in the ring."""
        self._actor.write(self._rings + place, self._uapi.unpack("Q", self._uapi.pack("2I", *numbers))[0])


@contextmanager
def pinned(live: Live, memory: Memory) -> Iterator[Pin]:
    """Pin the first base page of ``memory`` meanwhile, to be read and written; it stays mapped until then.

    Raises Refused, and CannotRun where the kernel has no io_uring or the machine forbids it.
    """
    pin = Pin(live, memory)
    pin.hold()
    try:
        yield pin
    finally:
        pin.let_go()


def pipe_with(live: Live, memory: Memory) -> int:
    """Give the first word of ``memory`` to a pipe (vmsplice(2)), which holds its page, and return where it is read."""
    reader, writer = memory.actor.pipe()
    vector = live.host.uapi.pack("2Q", memory.address, WORD)
    live.expect("bytes in the pipe", WORD, memory.actor.call("vmsplice", writer, vector, 1, 0))
    return reader


def word_from(live: Live, actor: Actor, descriptor: int) -> int:
    """Return the next word of a file that ``actor`` has open."""
    count, (word,) = actor.call_with_buffers("read", descriptor, bytes(WORD), WORD)
    live.expect("bytes read", WORD, count)
    return live.host.uapi.unpack("Q", word)[0]


@contextmanager
def in_a_pipe(live: Live, memory: Memory) -> Iterator[None]:
    """Have a pipe hold the page with the first word of ``memory`` meanwhile. Raises Refused."""
    expected, reader = memory.read(), pipe_with(live, memory)
    try:
        yield
    finally:
        live.expect("what comes out of the pipe", expected, word_from(live, memory.actor, reader))


def open_for_direct_io(live: Live, actor: Actor) -> int:
    """Open a file without a name on a disk, past the page cache: reads and writes pin the memory that they carry.

    Raises CannotRun without such a disk.
    """
    for file_system in _PINNING:
        with suppress(CannotRun):
            directory = live.host.disk(file_system)
            return live.open(actor, directory, live.host.uapi.o_tmpfile | os.O_RDWR | live.host.uapi.o_direct)
    raise CannotRun(f"no disk with {' or '.join(_PINNING)}, where O_DIRECT pins what it carries")
