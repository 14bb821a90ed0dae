"""Reads of files of huge pages that end before all is read: what they return, and where the next one begins."""

import errno
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.hugetlb_files import HugeFile, file_of_each_kind, new_memfd
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.places import ordinary_memory
from hugepage_qa.kernel.uapi import MAP_FIXED
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

SHORT_READS = Area("reservation/short-reads")

READ_ITER = "fs/hugetlbfs/inode.c hugetlbfs_read_iter()"
_OURS, _FILES = 9, 7
#: of parts of base pages: what copies to memory that ends goes by as much at most, and knows to the byte where it was
_STEP = 256
#: bytes of a read that has room
_NEXT = 2 * WORD
#: what preadv2(2) takes for the file position
_AT_POSITION = -1


@dataclass(frozen=True)
class _Call:
    """A call that reads so many bytes, to an address behind which there are ``room`` bytes, from an offset on."""

    name: str
    read: Callable[[HugeFile, int, int, int, int], int]
    #: it begins where the last one has ended, and not at the offset
    moves: bool


def _read(file: HugeFile, address: int, _room: int, length: int, _offset: int) -> int:
    return file.actor.result("read", file.descriptor, address, length)


def _pread(file: HugeFile, address: int, _room: int, length: int, offset: int) -> int:
    return file.actor.result("pread64", file.descriptor, address, length, offset)


def _in_three(file: HugeFile, address: int, room: int, length: int, _offset: int) -> int:
    """Read it to three buffers: memory ends in the middle of the second one."""
    return _read_to(file, _AT_POSITION, address, (room // 2, room, length - room // 2 - room))


def _in_two(file: HugeFile, address: int, room: int, length: int, offset: int) -> int:
    """Read it to two buffers: all memory that there is is the first one."""
    return _read_to(file, offset, address, (room, length - room))


def _in_two_at_position(file: HugeFile, address: int, room: int, length: int, _offset: int) -> int:
    return _in_two(file, address, room, length, _AT_POSITION)


def _read_to(file: HugeFile, offset: int, address: int, lengths: tuple[int, ...]) -> int:
    vector = b""
    for length in lengths:
        vector += file.actor.uapi.pack("2Q", address, length)
        address += length
    return file.actor.result("preadv2", file.descriptor, vector, len(lengths), offset, 0, 0)


_CALLS = (
    _Call("read", _read, True),
    _Call("preadv2 at the position, to three buffers", _in_three, True),
    _Call("preadv2 at the position, to two buffers", _in_two_at_position, True),
    _Call("pread64", _pread, False),
    _Call("preadv2, to two buffers", _in_two, False),
)


@SHORT_READS.case(
    "a read that comes to memory that is not mapped, may not be written, or is behind the end of its file, returns how"
    " much there was room for, or EFAULT where there was none, and moves the file position by as much, in a page, on"
    " into a hole, in a hole and at the end: the next read, of whoever shares the open file, goes on there; one that is"
    " told its offset moves nothing",
    f"read(2), readv(2), preadv2(2), EFAULT; {READ_ITER}",
    pages=2,
)
def where_memory_ends(live: Live) -> None:
    size, base = live.size, live.base_page
    starts = 0, base, base + _STEP, size - base, size - _STEP, size, size + base + _STEP, 2 * size - base
    files = [_written_file(live, file) for file in file_of_each_kind(live)]
    for number, (end, close) in enumerate(_ENDS.items()):
        file = files[number % len(files)]
        readers = file, HugeFile(live, file.actor, file.actor.call("dup", file.descriptor)), _of_a_child(live, file)
        buffer = ordinary_memory(live, file.actor, 3)
        close(live, buffer)
        for start, room, call in product(starts, (_STEP, base), _CALLS):
            with live.about(f"{call.name} at {start}, {room} bytes of memory, behind which it is {end}"):
                _expect_short(live, readers, call, start, buffer, room)
    live.expect_pool(nr=2, free=0)
    for file in files:
        # a file of a mount outlives who has it open
        file.truncate(0)
        file.actor.end()
    live.expect_pool(nr=2, free=2)


@SHORT_READS.case(
    "a read from within a word on that comes to memory that ends moves the file position by the bytes that it returns,"
    " which are no more than there is room for, and the next one goes on there",
    f"read(2), EFAULT; {READ_ITER}",
    pages=1,
)
def from_within_a_word(live: Live) -> None:
    size, base = live.size, live.base_page
    file = _written_file(live, new_memfd(live))
    buffer = ordinary_memory(live, file.actor, 2)
    buffer.unmap(1)
    for start, room in product((1, base - 3, size - base - 1, size - 5, size + 1), (5, base - 1, base)):
        with live.about(f"from byte {start} on, {room} bytes of memory"):
            _go_to(live, file, start)
            # what copies, or clears, by more than a byte at a time may have come less far than there is room
            count = file.actor.result("read", file.descriptor, buffer.at(1) - room, room + base)
            is_some = 0 < count <= room or (count == -errno.EFAULT and room < _STEP)
            live.expect(f"whether {count} is so many bytes", True, is_some)
            place = start + max(count, 0)
            _expect_place(live, file, (count, place), count)
            live.expect("bytes that are next", file.read(place, _NEXT), _next(file))
    live.expect_pool(nr=1, free=0)


def _written_file(live: Live, file: HugeFile) -> HugeFile:
    """Write the first base pages and the last ones of the first page of a file, behind which there is a hole."""
    file.truncate(2)
    page, length = file.map(1), 4 * live.base_page
    for start in (0, live.size - length):
        file.actor.fill(page.address + start, length, WORD, _FILES + start)
    return file


def _of_a_child(live: Live, file: HugeFile) -> HugeFile:
    """Return the same open file as a child has it."""
    return HugeFile(live, file.actor.fork(), file.descriptor)


def _unmap(_live: Live, buffer: Memory) -> None:
    buffer.unmap(1)


def _close(_live: Live, buffer: Memory) -> None:
    buffer.protect(0, 1)


def _make_read_only(_live: Live, buffer: Memory) -> None:
    buffer.protect(mmap.PROT_READ, 1)


def _put_behind_a_file(live: Live, buffer: Memory) -> None:
    actor: Actor = buffer.actor
    file = actor.call("memfd_create", "short", 0)
    actor.call("ftruncate", file, live.base_page)
    actor.mmap(buffer.length, READ_WRITE, mmap.MAP_SHARED | MAP_FIXED, file, address=buffer.address)
    actor.call("close", file)


#: what becomes of a buffer behind its first base page
_ENDS: dict[str, Callable[[Live, Memory], None]] = {
    "not mapped": _unmap,
    "not accessed": _close,
    "read-only": _make_read_only,
    "behind the end of a file": _put_behind_a_file,
}


def _expect_short(
    live: Live, readers: tuple[HugeFile, ...], call: _Call, start: int, buffer: Memory, room: int
) -> None:
    """Expect a read to the last ``room`` bytes of a base page, and on, to end there, and the next ones to go on."""
    file, size, base = readers[0], live.size, live.base_page
    position, length = start if call.moves else base, 2 * base + _STEP
    address = buffer.at(1) - room
    file.actor.fill(buffer.address, base, WORD, _OURS)
    _go_to(live, file, position)
    count = call.read(file, address, room, length, start)
    position += room if call.moves else 0
    _expect_place(live, file, (room, position), count)
    of_the_page = max(0, min(room, size - start))
    wrong = file.actor.check(address, of_the_page, WORD, _FILES + start) if of_the_page else 0
    live.expect("words of the page that are wrong", 0, wrong)
    hole = room - of_the_page
    live.expect("words of the hole", 0, file.actor.nonzero(address + of_the_page, hole) if hole else 0)
    before = base - room
    changed = file.actor.check(buffer.address, before, WORD, _OURS) if before else 0
    live.expect("words before the buffer that changed", 0, changed)
    # with no room at all
    found = file.actor.result("read", file.descriptor, buffer.at(1), base)
    _expect_place(live, file, (0 if position >= 2 * size else -errno.EFAULT, position), found)
    for reader in readers:
        live.expect("bytes that are next", file.read(position, _NEXT), _next(reader))
        position = min(position + _NEXT, 2 * size)
        live.expect("where the next read begins after these", position, _place(file))


def _expect_place(live: Live, file: HugeFile, expected: tuple[int, int], count: int) -> None:
    """Expect what a read returned, and where the next one begins then. Raises Failed: all else is wrong then, too."""
    found = count, _place(file)
    if found != expected:
        live.fail("what a read returns, and where the next one begins", expected, found)


def _go_to(live: Live, file: HugeFile, place: int) -> None:
    live.expect("where lseek(2) went", place, file.actor.call("lseek", file.descriptor, place, os.SEEK_SET))


def _place(file: HugeFile) -> int:
    return file.actor.call("lseek", file.descriptor, 0, os.SEEK_CUR)


def _next(file: HugeFile) -> bytes:
    count, (found,) = file.actor.call_with_buffers("read", file.descriptor, bytes(_NEXT), _NEXT)
    return found[:count]


class ShortReads(LiveTest):
    def test_short_reads(self) -> None:
        self.run_area(SHORT_READS)
