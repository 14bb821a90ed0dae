"""Files of file systems through all that changes them, and what they must hold then, to the word."""

import errno
import mmap
import os
from collections.abc import Callable, Sequence
from enum import Enum

from hugepage_qa.cases.expected_contents import Contents, Piece
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_shared_memory import map_file, mount_tmpfs
from hugepage_qa.kernel.proc_tables import find_mount
from hugepage_qa.kernel.uapi import (
    FALLOC_FL_COLLAPSE_RANGE,
    FALLOC_FL_INSERT_RANGE,
    FALLOC_FL_KEEP_SIZE,
    FALLOC_FL_PUNCH_HOLE,
    FALLOC_FL_ZERO_RANGE,
    MADV_HUGEPAGE,
)
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.process.actor import Actor, Refused
from hugepage_qa.sizes import KIB

TMPFS = "tmpfs"
#: what is written first: no word of it is zero
_FIRST = 1
#: from write to write, more than a file is long; and of what is written to a copy
_GENERATION = 1 << 40
_COPY = 1 << 12
#: what is read at a time
_PIECE = 64 * KIB


class KnownFile:
    """A file without a name in ``directory``, of which is known what it must hold. It ends with its actor."""

    def __init__(self, live: Live, actor: Actor, directory: str, room: int) -> None:
        """Make an empty one, which never gets longer than ``room`` bytes. Raises OSError."""
        self._live = live
        self.directory = directory
        self.actor = actor
        self.descriptor = self.beside()
        self.contents = Contents([])
        self._room = room
        self._buffer = actor.mmap(room, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._generation = 0

    @property
    def path(self) -> str:
        """A name by which others can open it."""
        return f"/proc/{self.actor.pid}/fd/{self.descriptor}"

    def is_on(self, file_system: str) -> bool:
        """Tell whether it is in a file system of that type."""
        mount = find_mount(self._live.host, self.directory)
        return mount is not None and mount.type == file_system

    def beside(self) -> int:
        """Have its actor make another file without a name there, and return the descriptor. Raises OSError."""
        return self._live.open(self.actor, self.directory, os.O_RDWR | self._live.host.uapi.o_tmpfile)

    def map(self) -> Memory:
        """Map it where huge pages fit, shared, from its first byte to the end of the huge page that has its last."""
        pages = -(-self.contents.length // pmd_size(self._live))
        return map_file(self._live, self.actor, self.descriptor, pages)

    def write(self, first: int, length: int) -> None:
        """Write words that were never written before (pwrite(2)). Raises OSError; CannotRun where less is written."""
        value = self._fill(self._buffer, length)
        if self.actor.call("pwrite64", self.descriptor, self._buffer, length, first) != length:
            raise CannotRun(f"the file system has no room for {length >> 10} KiB")
        self.replace(first, [Piece(length, value)])

    def write_by(self, write: Callable[["KnownFile", int, int, int], int], first: int, length: int) -> None:
        """Have ``write`` put words that were never written before, at an address, into the file, and expect it to."""
        value = self._fill(self._buffer, length)
        self._live.expect("bytes written", length, write(self, self._buffer, first, length))
        self.replace(first, [Piece(length, value)])

    def replace(self, first: int, by: Sequence[Piece]) -> None:
        """Take ``by`` for what stands from ``first`` on, and make the file longer where it reaches beyond its end."""
        length = sum(piece.length for piece in by)
        self.contents.replace(first, min(length, self.contents.length - first), by)

    def store(self, memory: Memory, first: int, length: int) -> None:
        """Store words that were never written before into ``memory``, which it is mapped in."""
        value = self._fill(memory.address + first, length, memory.actor)
        self.contents.replace(first, length, [Piece(length, value)])

    def _fill(self, address: int, length: int, actor: Actor | None = None) -> int:
        self._generation += 1
        value = _FIRST + self._generation * _GENERATION
        (actor or self.actor).fill(address, length, WORD, value)
        return value

    def copy(self) -> "KnownFile":
        """Return a copy that the file system makes (copy_file_range(2)). Raises OSError."""
        copy = KnownFile(self._live, self.actor, self.directory, self._room)
        copy.copy_from(self, 0, 0, self.contents.length)
        copy.contents = Contents(self.contents.pieces)
        # what is written to it then is in neither of them
        copy._generation = self._generation + _COPY
        return copy

    def copy_from(self, source: "KnownFile", start: int, to: int, length: int) -> int:
        """Copy what ``source`` has from ``start`` on (copy_file_range(2)), and return how many bytes. Raises OSError.

        What it must hold then is for the caller to say.
        """
        done, pack = 0, self.actor.uapi.pack
        # some of it may be copied at a time
        while done < length:
            places = pack("Q", start + done), pack("Q", to + done)
            copied = self.actor.call(
                "copy_file_range", source.descriptor, places[0], self.descriptor, places[1], length - done, 0
            )
            if not copied:
                break
            done += copied
        return done

    def truncate(self, length: int) -> None:
        """Make it ``length`` bytes long (ftruncate(2)). Raises OSError."""
        self.actor.call("ftruncate", self.descriptor, length)
        self.contents.resize(length)

    def punch(self, first: int, length: int) -> None:
        """Leave a hole (FALLOC_FL_PUNCH_HOLE). Raises OSError."""
        self._allocate(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, first, length)
        self.contents.replace(first, length, [Piece(length, None)])

    def remove(self, memory: Memory, first: int, length: int) -> None:
        """Leave a hole of whole base pages by way of ``memory``, a mapping of it (MADV_REMOVE). Raises OSError."""
        memory.actor.call("madvise", memory.address + first, length, mmap.MADV_REMOVE)
        self.contents.replace(first, length, [Piece(length, None)])

    def zero(self, first: int, length: int) -> None:
        """Make a range zero that stays allocated (FALLOC_FL_ZERO_RANGE). Raises OSError."""
        self._allocate(FALLOC_FL_ZERO_RANGE, first, length)
        self.contents.replace(first, length, [Piece(length, None)])

    def take_out(self, first: int, length: int) -> None:
        """Take a range out, whole blocks, and close the gap (FALLOC_FL_COLLAPSE_RANGE). Raises OSError."""
        self._allocate(FALLOC_FL_COLLAPSE_RANGE, first, length)
        self.contents.replace(first, length, [])

    def put_in(self, first: int, length: int) -> None:
        """Put a hole in, whole blocks, before what is at ``first`` (FALLOC_FL_INSERT_RANGE). Raises OSError."""
        self._allocate(FALLOC_FL_INSERT_RANGE, first, length)
        self.contents.replace(first, 0, [Piece(length, None)])

    def _allocate(self, mode: int, first: int, length: int) -> None:
        self.actor.call("fallocate", self.descriptor, mode, first, length)

    def evict(self) -> None:
        """Write it to the disk, and have its pages leave the page cache where nobody maps them."""
        self.actor.call("fsync", self.descriptor)
        self.actor.call("fadvise64", self.descriptor, 0, 0, self._live.host.uapi.posix_fadv_dontneed)

    def expect(self, where: str) -> None:
        """Expect it to hold what it must: mapped as it is in memory, and read once more from its disk."""
        length = self.contents.length
        self._live.expect(f"size {where}", length, self.actor.call("lseek", self.descriptor, 0, os.SEEK_END))
        memory = self.map()
        self._live.expect(f"words that are wrong when mapped, {where}", 0, self._wrong(memory.address))
        rest = -length % self._live.base_page
        if rest:
            found = self.actor.nonzero(memory.address + length, rest)
            self._live.expect(f"words behind the end that are not zero, {where}", 0, found)
        memory.unmap()
        # of a tmpfs nothing leaves memory
        self.evict()
        read = self.actor.call("pread64", self.descriptor, self._buffer, length, 0)
        self._live.expect(f"bytes read, {where}", length, read)
        self._live.expect(f"words that are wrong when read, {where}", 0, self._wrong(self._buffer))

    def expect_mapped(self, memory: Memory) -> None:
        """Expect ``memory``, which it has been mapped in before, to show what it must hold."""
        self._live.expect(
            "words that are wrong where it was mapped before", 0, self._wrong(memory.address, actor=memory.actor)
        )

    def read(self, length: int) -> None:
        """Read its first ``length`` bytes, one piece after the other, so that it is read ahead. Raises OSError."""
        for first in range(0, length, _PIECE):
            self.actor.call("pread64", self.descriptor, self._buffer, min(_PIECE, length - first), first)

    def expect_read(self, read: Callable[["KnownFile", int, int, int], int], first: int, length: int) -> None:
        """Expect ``read`` to put what stands from ``first`` on at an address: ``length`` bytes, or up to the end."""
        expected = min(length, self.contents.length - first)
        # what was read before may be the same
        self.actor.fill(self._buffer, length, WORD, 0)
        self._live.expect("bytes read", expected, read(self, self._buffer, first, length))
        self._live.expect("words that are wrong", 0, self._wrong(self._buffer, first, first + expected))

    def tried(self, carry: Callable[["KnownFile", int, int, int], int], first: int, length: int) -> int:
        """Have ``carry`` carry bytes from or to an address and return how many, or an error below 0."""
        self.actor.fill(self._buffer, length, WORD, 0)
        try:
            return carry(self, self._buffer, first, length)
        except Refused as refusal:
            return -(refusal.errno or 0)

    def wrong_of_tried(self, first: int, length: int) -> int:
        """Return how many words of those that were ``tried`` to be read from ``first`` on are not right."""
        return self._wrong(self._buffer, first, first + length)

    def _wrong(self, address: int, first: int = 0, end: int | None = None, actor: Actor | None = None) -> int:
        """Return how many words at ``address`` are not what must stand from ``first`` to ``end``, as ``actor`` sees."""
        wrong, actor = 0, actor or self.actor
        for piece in self.contents.between(first, self.contents.length if end is None else end):
            if piece.value is None:
                wrong += actor.nonzero(address, piece.length)
            else:
                wrong += actor.check(address, piece.length, WORD, piece.value)
            address += piece.length
        return wrong


class Brought(Enum):
    """What has brought the pages of a file into memory: XFS of 6.1 has base pages, smaller folios, PMD-sized ones then.

    Since 6.12 a long write makes PMD-sized ones on XFS, too, and ext4 of 7.3 has large folios.
    """

    WRITTEN = "as it was written"
    READ = "as it was read"
    ADVISED = "as advised memory of it was read"


def written_file(live: Live, file_system: str, length: int, brought: Brought) -> KnownFile:
    """Return a file of ``length`` bytes on ``file_system``, in large folios where that has them.

    Raises CannotRun where the machine has no such file system.
    """
    directory = mount_tmpfs(live, "always") if file_system == TMPFS else live.host.disk(file_system)
    file = KnownFile(live, live.actor(), directory, 2 * length)
    file.write(0, length)
    if brought is not Brought.WRITTEN:
        file.evict()
        bring(file, brought)
    return file


def bring(file: KnownFile, brought: Brought) -> None:
    """Bring all of ``file``, which has no page in memory, into memory. Raises OSError."""
    length = file.contents.length
    if brought is Brought.WRITTEN:
        file.write(0, length)
    elif brought is Brought.READ:
        file.read(length)
    else:
        memory = file.map()
        memory.advise(MADV_HUGEPAGE)
        file.actor.sum(memory.address, length)
        memory.unmap()


def is_offered(act: Callable[[int, int], None], first: int, length: int) -> bool:
    """Do to a range what not each file system can, and tell whether this one can. Raises OSError."""
    try:
        act(first, length)
    except Refused as refusal:
        if refusal.errno != errno.EOPNOTSUPP:
            raise
        return False
    return True


def data_of(live: Live, actor: Actor, descriptor: int, length: int) -> list[tuple[int, int]]:
    """Return where lseek(2) finds data in a file of ``length`` bytes: starts and ends of it in bytes.

    Raises Failed where it does not tell of data and holes in turn.
    """
    end, found = 0, list[tuple[int, int]]()
    while end < length:
        start = actor.result("lseek", descriptor, end, os.SEEK_DATA)
        behind = actor.result("lseek", descriptor, max(start, end), os.SEEK_HOLE)
        if start == -errno.ENXIO and behind == end:
            break
        if not end <= start < behind <= length:
            live.fail("data behind what was found, and a hole behind that", f"from {end} to {length}", (start, behind))
        found.append((start, behind))
        end = behind
    return found
