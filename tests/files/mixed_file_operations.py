"""What files in large folios hold when anything is done to them in any order: a model says what that is.

The operations are drawn, the same in each run. Two processes have the file mapped all the time: who writes, cuts or
moves a part of it meets folios that are mapped whole and in parts, dirty, written back, or gone from memory.
"""

import mmap
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.file_contents import KnownFile, is_offered
from hugepage_qa.cases.file_transfers import READS, WRITES
from hugepage_qa.cases.large_folios import DISKS, block_size, file_case
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.swapped import need_swap
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_shared_memory import map_file
from hugepage_qa.kernel.uapi import MADV_COLD, MADV_COLLAPSE, MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_PAGEOUT, MS_SYNC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused

MIXED_FILES = Area("files/mixed-file-operations", sizes=Sizes.ONCE, uncleared=True)

_PROGRAMS = 2
_OPERATIONS = 50
_LOOK_AFTER = 5
#: of base pages: what goes through a pipe of 16 buffers at once, wherever in a page it begins
_PIPE = 8


class _Program:
    """Operations on a file, drawn by ``random``, which never makes it longer than ``room`` bytes."""

    def __init__(self, live: Live, file: KnownFile, room: int, random: Random) -> None:
        self._live, self._file, self._room, self._random = live, file, room, random
        self._base = live.base_page
        memory = map_file(live, file.actor, file.descriptor, -(-room // pmd_size(live)))
        self._views = [memory, memory.seen_by(file.actor.fork())]
        self._done: list[str] = []
        self._operations: list[Callable[[], None]] = [
            *(self._write, self._write_otherwise, self._copy, self._copy, self._store, self._store),
            *(self._read, self._read),
            *(self._shorten, self._lengthen, self._punch, self._remove, self._zero, self._take_out, self._put_in),
            *(self._evict, self._sync, self._collapse, self._collapse),
            *(partial(self._advise, advice) for advice in (mmap.MADV_DONTNEED, MADV_PAGEOUT, MADV_COLD)),
            *(partial(self._advise, advice) for advice in (MADV_HUGEPAGE, MADV_NOHUGEPAGE)),
        ]

    def run(self) -> None:
        """Do operations, and look now and then at all that the file holds."""
        for number in range(1, _OPERATIONS + 1):
            self._operations[self._random.randrange(len(self._operations))]()
            if number % _LOOK_AFTER == 0:
                self._look(number)
        for view in self._views:
            view.unmap()
        self._file.expect("after all operations")

    # --- drawing ---

    def _range(self, unit: int = WORD, end: int | None = None) -> tuple[int, int]:
        """Draw start and length of a range that ends before ``end``, by default within the file: whole ``unit`` bytes.

        It lies within a base page, begins or ends beside a base page or where a large folio may, or is any.
        """
        end = self._file.contents.length if end is None else end
        draw, block = self._random.randrange, block_size(self._live)
        size = min((self._base // 4, 3 * self._base, block // 2 + self._base, block)[draw(4)], end)
        middle = (draw(end), block // 2, block, draw(1 + end // self._base) * self._base)[draw(4)]
        first = max(min(middle - (0, size // 2, size)[draw(3)], end - size), 0)
        first, size = first // unit * unit, -(-size // unit) * unit
        return first, min(size, (end - first) // unit * unit)

    def _view(self) -> Memory:
        return self._views[self._random.randrange(len(self._views))]

    def _tell(self, what: str, *numbers: int) -> None:
        self._done.append(" ".join([what, *map(str, numbers)]))

    # --- operations ---

    def _write(self) -> None:
        first, length = self._range(end=min(self._file.contents.length + 2 * self._base, self._room))
        first = min(first, self._file.contents.length)
        self._tell("write", first, length)
        if length:
            self._file.write(first, length)

    def _write_otherwise(self) -> None:
        first, length = self._range()
        length = min(length, _PIPE * self._base)
        write = WRITES[self._random.randrange(len(WRITES))]
        self._tell(write.__name__, first, length)
        if length >= 4 * WORD:
            self._file.write_by(write, first, length)

    def _copy(self) -> None:
        """Copy one part of the file to another one, which a file system may share until one of them is written."""
        unit = (WORD, self._base)[self._random.randrange(2)]
        (start, length), (to, _length) = self._range(unit), self._range(unit)
        length = min(length, self._file.contents.length - to)
        self._tell("copy", start, to, length)
        # what overlaps is EINVAL
        if length and abs(start - to) >= length:
            pieces = self._file.contents.between(start, start + length)
            self._live.expect("bytes copied", length, self._file.copy_from(self._file, start, to, length))
            self._file.replace(to, pieces)

    def _read(self) -> None:
        first, length = self._range()
        length = min(length, _PIPE * self._base)
        read = READS[self._random.randrange(len(READS))]
        self._tell(read.__name__, first, length)
        if length >= 4 * WORD:
            self._file.expect_read(read, first, length)

    def _store(self) -> None:
        first, length = self._range()
        self._tell("store", first, length)
        if length:
            self._file.store(self._view(), first, length)

    def _shorten(self) -> None:
        first, _length = self._range()
        # of a short one nothing is left to be done with
        length = max(first, self._room // 4)
        self._tell("truncate", length)
        if length < self._file.contents.length:
            self._file.truncate(length)

    def _lengthen(self) -> None:
        _first, length = self._range()
        length = min(self._file.contents.length + length, self._room)
        self._tell("truncate", length)
        self._file.truncate(length)

    def _punch(self) -> None:
        self._with_range("punch", self._file.punch)

    def _zero(self) -> None:
        self._with_range("zero", self._file.zero)

    def _with_range(self, what: str, act: Callable[[int, int], None]) -> None:
        first, length = self._range()
        self._tell(what, first, length)
        if length:
            is_offered(act, first, length)

    def _remove(self) -> None:
        """Leave a hole by way of the mapping (MADV_REMOVE)."""
        first, length = self._range(self._base)
        self._tell("remove", first, length)
        if length:
            self._file.remove(self._view(), first, length)

    def _take_out(self) -> None:
        first, length = self._range(self._base)
        self._tell("take out", first, length)
        if length and first + length < self._file.contents.length - self._room // 4:
            is_offered(self._file.take_out, first, length)

    def _put_in(self) -> None:
        first, length = self._range(self._base)
        self._tell("put in", first, length)
        if length and self._file.contents.length + length <= self._room:
            is_offered(self._file.put_in, first, length)

    def _evict(self) -> None:
        self._tell("evict")
        for view in self._views:
            view.advise(mmap.MADV_DONTNEED)
        self._file.evict()

    def _sync(self) -> None:
        first, length = self._range(self._base)
        self._tell("msync", first, length)
        if length:
            view = self._view()
            view.actor.call("msync", view.address + first, length, MS_SYNC)

    def _advise(self, advice: int) -> None:
        first, length = self._range(self._base)
        self._tell(f"advise {advice}", first, length)
        if length:
            view = self._view()
            view.actor.call("madvise", view.address + first, length, advice)

    def _collapse(self) -> None:
        """Have huge pages made, where that is possible: since Linux 6.1, and not on each file system."""
        self._tell("collapse")
        view = self._view()
        with suppress(Refused):
            view.advised_by(view.actor, MADV_COLLAPSE)

    # --- judging ---

    def _look(self, number: int) -> None:
        for name, view in zip(("its process", "another one"), self._views, strict=True):
            with self._live.about(f"mapped by {name}, after {number} operations"):
                before = len(self._live.differences)
                self._file.expect_mapped(view)
                length = self._file.contents.length
                if rest := -length % self._base:
                    found = view.nonzero(length, rest)
                    self._live.expect("words behind the end that are not zero", 0, found)
                if len(self._live.differences) > before:
                    self._live.fail("what the file holds", "as the model says", "; ".join(self._done))


@file_case(
    MIXED_FILES,
    "a file holds what was written to it last, and zeroes where there is a hole, for all who read it or have it mapped,"
    " whatever is done to parts of it in any order",
    "write(2); ftruncate(2); fallocate(2); madvise(2); mm/truncate.c truncate_inode_partial_folio(); mm/filemap.c;"
    " mm/khugepaged.c collapse_file()",
    on=DISKS,
)
def anything_done_to_a_file(live: Live, file: KnownFile) -> None:
    _run(live, file, 0)


@file_case(
    MIXED_FILES,
    "a file of huge pages holds what was written to it last, and zeroes where there is a hole, for all who read it or"
    " have it mapped, in memory or in swap, whatever is done to parts of it in any order",
    "write(2); ftruncate(2); fallocate(2); madvise(2); mm/shmem.c shmem_undo_range(), shmem_fallocate();"
    " mm/khugepaged.c collapse_file()",
    on=("tmpfs",),
)
def anything_done_to_shared_memory(live: Live, file: KnownFile) -> None:
    need_swap(live, 2 * file.contents.length)
    for number in range(_PROGRAMS):
        with live.about(f"program {number}"):
            _run(live, file, number)


def _run(live: Live, file: KnownFile, number: int) -> None:
    room = 2 * (block_size(live) * 5 // 4)
    _Program(live, file, room, Random(number)).run()  # noqa: S311 - what is done, no secret


class ThpMixedFileOperations(LiveTest):
    def test_mixed_file_operations(self) -> None:
        self.run_area(MIXED_FILES)
