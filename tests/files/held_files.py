"""Huge pages of a tmpfs that somebody has a hold of, so that they cannot be split: what is cut from them, and when."""

import errno
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle, product
from operator import eq

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.hugetlb_files import HugeFile, open_file
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.memory_policy import move_all, node_of
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.cases.pinned_pages import pipe_with, word_from
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_shared_memory import (
    expect_blocks,
    expect_shared,
    let_only_pmd_inherit,
    map_file,
    map_start,
    mount_tmpfs,
)
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused

HELD_FILES = Area("files/held-files", sizes=Sizes.ONCE, uncleared=True)

END = "mm/shmem.c shmem_unused_huge_shrink(), shmem_alloc_and_add_folio()"
HOLE = "mm/shmem.c shmem_undo_range(); mm/truncate.c truncate_inode_partial_folio()"
_PAGES = 3
_VALUE = 77
#: for how long somebody else may have a hold of a page, too
_SECONDS = 30.0


@HELD_FILES.case(
    "what a huge page takes behind the end of a file, of which somebody has a hold, is not given to another file while"
    " he has, ENOSPC, however often that is tried, and is when he has none, wherever the file ends and whichever page"
    " he had: no more than that",
    f"vmsplice(2); write(2) ENOSPC; {END}",
)
def room_behind_a_held_end(live: Live) -> None:
    let_only_pmd_inherit(live)
    size, page = pmd_size(live), live.base_page
    point = live.mount_other(f"huge=always,size={size},mode=0700", "tmpfs")
    # of a file that ends a page before its huge page does Linux 6.1 keeps that, by a number that is one too small
    for offset, times in product((0, size // 2, size, 2 * size - 3 * page), (1, 3)):
        last = offset // page * page
        # the first page of the huge page, and the last one of the file
        for place in sorted({offset // size * size, last}):
            with live.about(f"a file that ends {WORD} bytes behind {offset}, held at {place}, tried {times} times"):
                file = _file_to(live, point, "held", offset)
                other = open_file(live, f"{point}/other", file.actor)
                live.expect("bytes that are free", 0, _free(live, point))
                with _held(live, file, place):
                    for _time in range(times):
                        live.expect_errno(errno.ENOSPC, _write, file, other)
                    live.expect("st_blocks while it is held", (size, 0), (file.blocks, other.blocks))
                _expect_given(live, file, other)
                left = offset % size // page * page + page
                live.expect("st_blocks", (left, page), (file.blocks, other.blocks))
                live.expect("bytes that are free", size - left - page, _free(live, point))
                _expect_value(live, file, offset)
                _empty(file, other)
                live.expect("bytes that are free without files", size, _free(live, point))


@HELD_FILES.case(
    "of files of which one is held, which was made first or last, the others give up what their huge pages take behind"
    " their ends until that is used up, ENOSPC, and it does when nobody has a hold of it",
    f"vmsplice(2); fallocate(2), write(2) ENOSPC; {END}",
)
def held_file_among_others(live: Live) -> None:
    let_only_pmd_inherit(live)
    size, page, count = pmd_size(live), live.base_page, 3
    point = live.mount_other(f"huge=always,size={count * size},mode=0700", "tmpfs")
    for number in range(count):
        with live.about(f"file {number} of {count} is held"):
            files = [_file_to(live, point, str(each), 0) for each in range(count)]
            held = files[number]
            actor = held.actor
            taker, late = (open_file(live, f"{point}/{name}", actor) for name in ("taker", "late"))
            live.expect("bytes that are free", 0, _free(live, point))
            rest = (count - 1) * (size - page)
            with _held(live, held, 0):
                found = live.host.last_look(partial(_allocated, taker, rest), partial(eq, rest), _SECONDS)
                live.expect("st_blocks of what takes what the others give up", rest, found)
                live.expect_errno(errno.ENOSPC, _write, held, late)
                taken = [size if file is held else page for file in files]
                live.expect("st_blocks while one is held", taken, [file.blocks for file in files])
            _expect_given(live, held, late)
            live.expect("st_blocks when none is", (page, page), (held.blocks, late.blocks))
            live.expect("bytes that are free", size - 2 * page, _free(live, point))
            for file in files:
                _expect_value(live, file, 0)
            _empty(*files, taker, late)
            live.expect("bytes that are free without files", count * size, _free(live, point))


@HELD_FILES.case(
    "a file that a full tmpfs looks at for what its huge page has behind the end, and that has none any more, is held"
    " by nobody afterwards, however often that was: its page moves to another node and back",
    f"fallocate(2) ENOSPC; move_pages(2); {END}",
    nodes=2,
)
def looked_at_in_vain(live: Live) -> None:
    let_only_pmd_inherit(live)
    size, page, nodes = pmd_size(live), live.base_page, live.nodes[:2]
    need_memory(live, nodes, size)
    point = live.mount_other(f"huge=always,size={size},mode=0700", "tmpfs")
    for times in (1, 3):
        with live.about(f"looked at {times} times"):
            file = _file_to(live, point, "file", 0)
            file.punch_bytes(page, page)
            live.expect("st_blocks of a file whose huge page was split", page, file.blocks)
            other = open_file(live, f"{point}/other", file.actor)
            for _time in range(times):
                live.expect_errno(errno.ENOSPC, file.actor.call, "fallocate", other.descriptor, 0, 0, size)
            mapping = map_file(live, file.actor, file.descriptor, 1)
            memory = Memory(live, file.actor, mapping.address, 1, page)
            live.expect("what the file holds", _VALUE, memory.read())
            source = node_of(memory)
            there = next(node for node in nodes if node != source)
            for start, end in ((source, there), (there, source)):
                with live.about(f"moved to node {end}"):
                    move_all(live, memory, "move_pages", start, end)
            live.expect("what the file holds when it has moved", _VALUE, memory.read())
            _empty(file, other)


def _allocated(file: HugeFile, length: int) -> int:
    """Allocate what there is room for of ``length`` bytes, and return st_blocks."""
    try:
        file.actor.call("fallocate", file.descriptor, 0, 0, length)
    except Refused as refusal:
        # a page that somebody else has a hold of cannot be split, and gives up nothing, until he has none
        if refusal.errno != errno.ENOSPC:
            raise
    return file.blocks


def _file_to(live: Live, point: str, name: str, offset: int) -> HugeFile:
    """Return a new file that ends a word behind ``offset``: the word is stored, and brings a huge page.

    Not written: of what write(2) brings Linux 6.14 has folios no larger than what is written (acd7ccb284b8). Raises
    CannotRun where memory is too fragmented for it.
    """
    size, actor = pmd_size(live), live.actor()
    file = open_file(live, f"{point}/{name}", actor)
    with_blocks(live, size, 1)
    memory = map_start(live, actor, file.descriptor, offset // size + 1, offset + WORD)
    actor.write(memory.address + offset, _VALUE)
    memory.unmap()
    expect_blocks(live, file, size, "st_blocks of a file in a huge page")
    return file


@contextmanager
def _held(live: Live, file: HugeFile, place: int) -> Iterator[None]:
    """Have a pipe hold the page at ``place`` of ``file`` meanwhile, which is not mapped."""
    size = pmd_size(live)
    memory = map_file(live, file.actor, file.descriptor, place // size + 1)
    one = Memory(live, file.actor, memory.address + place, 1, live.base_page)
    word, reader = one.read(), pipe_with(live, one)
    memory.unmap()
    yield
    live.expect("what comes out of the pipe", word, word_from(live, file.actor, reader))


def _write(file: HugeFile, other: HugeFile) -> int:
    """Write a word to ``other``. Raises Refused."""
    return file.actor.call("pwrite64", other.descriptor, file.actor.uapi.pack("Q", _VALUE), WORD, 0)


def _expect_given(live: Live, file: HugeFile, other: HugeFile) -> None:
    """Expect ``other`` to get a base page of what ``file`` has behind its end. Raises Failed."""

    def written() -> int:
        try:
            return _write(file, other)
        except Refused as refusal:
            return -(refusal.errno or 0)

    found = live.host.last_look(written, partial(eq, WORD), _SECONDS)
    if found != WORD:
        # each of the others would be waited for as long
        live.fail("what write(2) returns when nobody has a hold of the page", WORD, found)
    live.expect("what it has written", _VALUE, _word(live, other, 0))


def _expect_value(live: Live, file: HugeFile, offset: int) -> None:
    live.expect("what the file holds at its end", _VALUE, _word(live, file, offset))


def _word(live: Live, file: HugeFile, offset: int) -> int:
    return live.host.uapi.unpack("Q", file.read(offset, WORD))[0]


def _empty(*files: HugeFile) -> None:
    for file in files:
        file.actor.call("ftruncate", file.descriptor, 0)


def _free(live: Live, point: str) -> int:
    return live.host.file_system(point).free_bytes


# --- parts that are cut ----------------------------------------------------------------------------------------------


@HELD_FILES.case(
    "a hole in huge pages of which somebody has a hold, wherever they are held, within one or from one into another,"
    " made by fallocate(2) or MADV_REMOVE, and what ftruncate(2) cuts off, is zero, and all beside it stays what it"
    " was, when nobody has a hold of them, too",
    f"fallocate(2) FALLOC_FL_PUNCH_HOLE; madvise(2) MADV_REMOVE; ftruncate(2); {HOLE}",
)
def cut_from_held_pages(live: Live) -> None:
    let_only_pmd_inherit(live)
    size, page = pmd_size(live), live.base_page
    point, half = mount_tmpfs(live, "always"), size // 2
    places = cycle((0, half, size - page))
    for start, end in (
        (0, page),
        (0, half),
        (half, half + page),
        (size - page, size),
        (page, size),
        (size - page, size + page),
        (half, 2 * size + half),
        (size, 2 * size + page),
        (_PAGES * size - page, _PAGES * size),
        (page + WORD, page + 3 * WORD),
        (half + WORD, half + 2 * page),
        (size - page - WORD, 2 * size + WORD),
    ):
        are_pages = start % page == end % page == 0
        for cut in (_punch, _remove, _cut_off) if are_pages else (_punch, _cut_off):
            place = next(places)
            with live.about(f"{cut.__name__.strip('_')} from {start} to {end}, held at {place}"):
                _expect_cut(live, point, partial(cut, start, end), place)


def _punch(start: int, end: int, file: HugeFile, _memory: Memory) -> tuple[int, int]:
    """Leave a hole by fallocate(2), and return where what is zero begins and ends, as do these others."""
    file.punch_bytes(start, end - start)
    return start, end


def _remove(start: int, end: int, _file: HugeFile, memory: Memory) -> tuple[int, int]:
    memory.actor.call("madvise", memory.address + start, end - start, mmap.MADV_REMOVE)
    return start, end


def _cut_off(start: int, _end: int, file: HugeFile, memory: Memory) -> tuple[int, int]:
    for length in (start, memory.length):
        file.actor.call("ftruncate", file.descriptor, length)
    return start, memory.length


def _expect_cut(live: Live, point: str, cut: Callable[[HugeFile, Memory], tuple[int, int]], place: int) -> None:
    """Expect a file with huge pages, each of which is held at ``place``, to hold what ``cut`` leaves of it."""
    actor, size = live.actor(), pmd_size(live)
    file = open_file(live, f"{point}/{actor.pid}", actor)
    memory = map_start(live, actor, file.descriptor, _PAGES)
    expect_shared(live, memory, True, "huge=always")
    starts = [memory.at(number) + place for number in range(_PAGES)]
    readers = [pipe_with(live, Memory(live, actor, start, 1, live.base_page)) for start in starts]
    start, end = cut(file, memory)
    # whoever reads it, as it is mapped since before and anew
    again = map_file(live, actor, file.descriptor, _PAGES)
    for one in (memory, again):
        _expect_beside(live, one, start, end)
    for reader in readers:
        word_from(live, actor, reader)
    _expect_beside(live, again, start, end)
    live.expect("size", _PAGES * size, file.size)
    actor.call("ftruncate", file.descriptor, 0)
    actor.end()


def _expect_beside(live: Live, memory: Memory, start: int, end: int) -> None:
    found = memory.nonzero(start, end - start)
    live.expect("words that are not zero where it was cut", 0, found)
    wrong = memory.wrong_beside(start, end)
    live.expect("words beside it that changed", 0, wrong)


class ThpHeldFiles(LiveTest):
    def test_held_files(self) -> None:
        self.run_area(HELD_FILES)
