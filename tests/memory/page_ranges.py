"""Ranges of huge pages: what is done to some pages of a mapping is done to each of them, and to no other."""

import mmap
import signal
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import NamedTuple

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory, value_or_signal
from hugepage_qa.cases.pages_in_memory import expect_second_in_memory
from hugepage_qa.cases.places import free_place
from hugepage_qa.cases.process_counters import process_status
from hugepage_qa.kernel.uapi import MADV_DONTNEED, MADV_POPULATE_READ, MADV_POPULATE_WRITE, MAP_FIXED
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.sizes import GIB

PAGE_RANGES = Area("memory/page-ranges")
#: of the mapping whose pages are acted on, and which of them: first one and number
_PAGES = 4
_RANGES = ((0, 1), (1, 2), (0, 3), (1, 3), (0, 4))
_CUT_OFF = 4 * GIB
#: what was read of a page, or the signal, and the signal that ended a write
_Used = tuple[int | str, str | None]


class _Act(NamedTuple):
    """What is done to pages of a mapping, from a first one on so many, and what is expected of them then."""

    name: str
    act: Callable[[Memory, int, int], object]
    #: the signals that end an attempt to read and one to write, if one does
    read: str | None = None
    write: str | None = None
    #: whether all pages of the mapping are there before, and those that it is done to afterwards
    before: bool = True
    after: bool = True
    #: they are behind the mapping then
    moves: bool = False
    #: how the whole mapping is protected before
    prot: int = READ_WRITE


def _moved(memory: Memory, first: int, pages: int) -> None:
    memory.part(first, pages).moved_to(memory.at(memory.pages))


def _advise(advice: int) -> Callable[[Memory, int, int], object]:
    return lambda memory, first, pages: memory.advise(advice, first, pages)


def _protect(prot: int) -> Callable[[Memory, int, int], object]:
    return lambda memory, first, pages: memory.protect(prot, first, pages)


_SEGV = signal.SIGSEGV.name
_ACTS = (
    _Act("may be read", _protect(mmap.PROT_READ), write=_SEGV),
    _Act("may not be used", _protect(0), _SEGV, _SEGV),
    _Act("may be written again", _protect(READ_WRITE), prot=mmap.PROT_READ),
    _Act("may be used again", _protect(READ_WRITE), prot=0),
    _Act("unmapped", Memory.unmap, _SEGV, _SEGV, after=False),
    _Act("given back", _advise(MADV_DONTNEED), after=False),
    _Act("taken to read", _advise(MADV_POPULATE_READ), before=False),
    _Act("taken to write", _advise(MADV_POPULATE_WRITE), before=False),
    _Act("moved", _moved, _SEGV, _SEGV, moves=True),
)


@PAGE_RANGES.case(
    "what is done to pages of a mapping is done to each of them, from the first one to the last one, however many they"
    " are, and to no other: they are protected, unmapped, given back, taken and moved",
    "mprotect(2), munmap(2), madvise(2), mremap(2); mm/hugetlb.c hugetlb_change_protection(),"
    " __unmap_hugepage_range(), move_hugetlb_page_tables()",
    since="5.18",  # MADV_DONTNEED
    pages=_PAGES,
)
def ranges_of_pages(live: Live) -> None:
    file = new_memfd(live)
    # gigantic pages take seconds each: the file keeps them
    for shared in (True,) if live.is_gigantic else (True, False):
        fd, place = file.descriptor if shared else None, free_place(live, file.actor, 2 * _PAGES)
        for row, (first, pages) in product(_ACTS, _RANGES):
            if row.moves and pages * live.size >= _CUT_OFF and live.has_bug(Quirk.MOVE_LENGTH_TRUNCATED):
                continue  # /memory/mremap/moved-4-gib tells what moves them
            memory = live.map(_PAGES, file.actor, fd=fd, shared=shared, noreserve=True, flags=MAP_FIXED, at=place)
            for page in range(_PAGES) if row.before else ():
                memory.touch(page, page + 1)
            memory.protect(row.prot)
            row.act(memory, first, pages)
            everywhere = Memory(live, file.actor, place, 2 * _PAGES if row.moves else _PAGES, live.size)
            with live.about(f"shared {shared}, {pages} pages from {first} on, {row.name}"):
                mapped = _PAGES * row.before + pages * (row.after - row.before)
                live.expect("HugetlbPages", mapped * live.size, process_status(live, memory.actor).hugetlb_pages)
                expected = _expected(row, range(first, first + pages), keeps=shared)
                live.expect("what reading and writing each page brings", expected, _used(everywhere))
            if live.differences:
                return  # access to a page that is protected otherwise than its mapping might never end
            everywhere.unmap()
        file.truncate(0)
        live.expect_pool(nr=_PAGES, free=_PAGES)


@PAGE_RANGES.case(
    "mincore(2) tells of each base page of a huge page that is there, whichever part of it is asked for, and of none in"
    " front of it or behind it; a length is rounded up to base pages",
    "mincore(2); mm/mincore.c mincore_hugetlb()",
    pages=1,
)
def parts_that_are_there(live: Live) -> None:
    memory = live.map(3, noreserve=True)
    memory.touch(1)
    expect_second_in_memory(live, memory)
    live.expect_pool(nr=1, free=0)


def _expected(row: _Act, inside: range, *, keeps: bool) -> list[_Used]:
    """Return what is read of each page and what a write brings; a file ``keeps`` what its pages hold."""
    outside = {READ_WRITE: (None, None), mmap.PROT_READ: (None, _SEGV), 0: (_SEGV, _SEGV)}[row.prot]
    expected = list[_Used]()
    for page in range(_PAGES):
        read, write = (row.read, row.write) if page in inside else outside
        is_kept = keeps or (row.before and (row.after or page not in inside))
        expected.append((read or (page + 1 if is_kept else 0), write))
    if not row.moves:
        return expected
    return expected + [(page + 1, None) for page in inside] + [(_SEGV, _SEGV)] * (_PAGES - len(inside))


def _used(memory: Memory) -> list[_Used]:
    """Return what is read at the start of each page, and what signal a write to another word brings."""
    return [
        (
            value_or_signal(partial(memory.read, page)),
            value_or_signal(partial(memory.actor.write, memory.at(page) + WORD, 1)),
        )
        for page in range(memory.pages)
    ]


class PageRanges(LiveTest):
    def test_page_ranges(self) -> None:
        self.run_area(PAGE_RANGES)
