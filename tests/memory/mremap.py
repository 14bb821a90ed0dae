"""mremap(2) of huge pages."""

import errno
import signal
from collections.abc import Sequence
from functools import partial
from itertools import product

from hugepage_qa.cases.behind_absent_tables import see_behind_absent_tables
from hugepage_qa.cases.case import Area
from hugepage_qa.cases.hugetlb_files import HugeFile, new_memfd
from hugepage_qa.cases.hugetlb_of_a_process import moved_whole
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory, value_or_signal
from hugepage_qa.cases.places import free_place, place_of_tables
from hugepage_qa.kernel.uapi import MADV_POPULATE_READ, MAP_FIXED, MREMAP_DONTUNMAP, MREMAP_FIXED, MREMAP_MAYMOVE
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.sizes import GIB

MREMAP = Area("memory/mremap")
MISPLACED = {Quirk.MOVE_MISPLACES_PAGES: (0, 2)}
REMAP = "mremap(2); mm/mremap.c: huge pages are moved and shrunk, and never grow"
PARTS = f"{HUGETLB_DOC} lengths are not aligned to huge pages: EINVAL, or pages beyond them are excluded; {REMAP}"
#: shared, the flags, and the first page of three
_WAYS = (
    *((True, 0, 0), (True, MREMAP_MAYMOVE, 1)),
    *((shared, MREMAP_MAYMOVE | MREMAP_FIXED, 0) for shared in (True, False)),
)
#: what pages hold where lengths end within them: three that are to be moved, and two at the target
_AT_FIRST = (1, 2, 3, 2, 3)


@MREMAP.case("pages are moved to another address with what is in them", REMAP, since="5.16", pages=2)
def moved_pages(live: Live) -> None:
    for shared in (False, True):
        memory = live.map(2, shared=shared)
        memory.touch(0, 1)
        target = free_place(live, memory.actor, 2)
        flags = MREMAP_MAYMOVE | MREMAP_FIXED
        memory.actor.call("mremap", memory.address, memory.length, memory.length, flags, target)
        moved = Memory(live, memory.actor, target, 2, live.size)
        live.expect_signal(signal.SIGSEGV, memory.read, 0)
        live.expect_pool(nr=2, free=1, resv=1)
        live.expect("the page that was moved", 1, moved.read(0))
        moved.touch(1, 2)
        live.expect_pool(nr=2, free=0)
        moved.unmap()
        live.expect_pool(nr=2, free=2)
        live.expect_errno(errno.EFAULT, memory.actor.call, "mremap", target, moved.length, moved.length, 0)


@MREMAP.case(
    "pages of a mapping of 4 GiB are moved with what is in them",
    f"{REMAP}; mm/hugetlb.c move_hugetlb_page_tables()",
    since="5.16",
    pages=2,
)
def moved_4_gib(live: Live) -> None:
    memory = live.map(max(2, 4 * GIB // live.size), noreserve=True)
    last = memory.pages - 1
    memory.touch(0, 1)
    memory.touch(last, 2)
    moved = moved_whole(live, memory, free_place(live, memory.actor, memory.pages), touched=2)
    live.expect("the pages that were moved", (1, 2), (moved.read(0), moved.read(last)))
    live.expect_pool(nr=2, free=0)
    moved.unmap()
    live.expect_pool(nr=2, free=2)


@MREMAP.case(
    "pages are moved to their place also where nothing before them was ever touched, whatever the new address is",
    f"{REMAP}; mm/hugetlb.c move_hugetlb_page_tables() (CVE-2026-98373)",
    since="5.16",
    pages=2,
)
def moved_past_an_absent_table(live: Live) -> None:
    table = live.mmu.table(live.size)
    pages = table // live.size + 2
    actor = live.actor()
    start = place_of_tables(live, actor, 4 * (table + live.size), table)
    memory = live.map(pages, actor, noreserve=True, flags=MAP_FIXED, at=start)
    memory.touch(pages - 1, 2)
    see_behind_absent_tables(live, memory, [pages - 1])
    # half a table further on: what went wrong stays within the new mapping
    half = table // 2
    moved = moved_whole(live, memory, start + 2 * table + half, touched=1)
    early = pages - 1 - half // live.size
    found = moved.read(pages - 1), moved.read(early)
    live.expect("the page that was moved, and that half a table before it", (2, 0), found, MISPLACED)
    live.expect_pool(nr=2, free=0)
    moved.unmap()
    live.expect_pool(nr=2, free=2)


@MREMAP.case("a mapping shrinks by whole pages, and gives them back", REMAP, since="5.16", pages=2)
def shrunk_mapping(live: Live) -> None:
    memory = live.map(2)
    memory.touch(0, 1)
    memory.touch(1, 2)
    memory.actor.call("mremap", memory.address, memory.length, live.size, 0)
    live.expect_pool(nr=2, free=1)
    live.expect("the page that stayed", 1, memory.read(0))
    live.expect_signal(signal.SIGSEGV, memory.read, 1)


@MREMAP.case(
    "a mapping that is to shrink to a length inside a page keeps all of that page, or is refused, and one that is"
    " within it changes nothing",
    PARTS,
    since="5.16",
    pages=3,
)
def shrunk_to_a_part_of_a_page(live: Live) -> None:
    memory = live.map(3)
    memory.fill()
    for length in (memory.length - live.base_page, live.size + live.base_page, live.size + live.size // 2):
        found = memory.actor.result("mremap", memory.address, memory.length, length, 0)
        if found != -errno.EINVAL:
            live.expect("address", memory.address, found)
            memory = Memory(live, memory.actor, memory.address, -(-length // live.size), live.size)
        memory.expect_filled()
        live.expect_pool(nr=3, free=3 - memory.pages)
    if memory.pages < 3:
        live.expect_signal(signal.SIGSEGV, memory.read, 2)


@MREMAP.case(
    "the old length and the new one count in whole pages, whether these move, stay or are cut off: the pages of the"
    " new length are there, those of the old one nowhere else, and others stay; more pages, or none, are refused",
    f"{REMAP}; check_mremap_params(), vma_to_resize() EINVAL",
    since="5.16",
    pages=3,
)
def lengths_in_pages(live: Live) -> None:
    file = _numbered_file(live)
    # three pages to be moved, and behind them a place for two
    room = Memory(live, file.actor, free_place(live, file.actor, 5), 5, live.size)
    for (shared, flags, first), old, new in product(_WAYS, range(3), range(3)):
        # where a table is absent, a known bug goes by the address (MOVE_LENGTH_TRUNCATED)
        file.map(3, shared=shared, noreserve=True, flags=MAP_FIXED, at=room.address).advise(MADV_POPULATE_READ)
        to = 3 if flags & MREMAP_FIXED else first
        words = room.at(first), old * live.size, new * live.size, flags, room.at(to)
        there = {page: page + 1 for page in range(3)}
        with live.about(f"shared {shared}, from page {first} on, flags {flags}, {old} pages to {new}"):
            is_refused = not new or new > old
            expected = -errno.EINVAL if is_refused else room.at(to)
            live.expect("the address, or the error with a minus sign", expected, file.actor.result("mremap", *words))
            if not is_refused:
                taken = [there.pop(first + page) for page in range(old)]
                there |= {to + page: value for page, value in enumerate(taken[:new])}
            wanted = [there.get(page, signal.SIGSEGV.name) for page in range(room.pages)]
            live.expect("what each page holds, or the signal where none is mapped", wanted, _read_all(room))
        room.unmap()
    live.expect_pool(nr=3, free=0)


def _numbered_file(live: Live) -> HugeFile:
    """Return a file of three pages that hold 1, 2 and 3 at their start, and the same behind their first base page."""
    file = new_memfd(live)
    # gigantic pages take seconds each: the file keeps them
    for page, memory in enumerate(file.map(1, first=page) for page in range(3)):
        memory.touch(value=page + 1)
        file.actor.write(memory.address + live.base_page, page + 1)
        memory.unmap()
    return file


def _read_all(room: Memory, offset: int = 0) -> list[int | str]:
    """Return what all pages hold at ``offset``, or the name of the signal where none is mapped."""
    return [value_or_signal(partial(room.actor.read, room.at(page) + offset)) for page in range(room.pages)]


@MREMAP.case(
    "a length that is no multiple of the page size is refused, or no more is moved, cut off and replaced than it says:"
    " the rest of a page stays where it was, and what lies behind the new length at the target stays, too",
    PARTS,
    since="5.16",
    pages=3,
)
def lengths_within_a_page(live: Live) -> None:
    file, size = _numbered_file(live), live.size
    room = Memory(live, file.actor, free_place(live, file.actor, 5), 5, size)
    lengths = (0, 1, size, size + live.base_page, 2 * size)
    stayed, rounded, found = list[int](), list[int | str](), list[int | str]()
    for (shared, flags, first), old, new in product(_WAYS, lengths, lengths):
        if old % size or new % size:
            _map_again(file, room, shared=shared)
            to = 3 if flags & MREMAP_FIXED else first
            answer = file.actor.result("mremap", room.at(first), old, new, flags, room.at(to))
            ends = [first + old // size] * bool(old % size) + [to + new // size] * bool(new % size and to == 3)
            stayed += [_AT_FIRST[page] for page in ends]
            found += [_read_all(room, live.base_page)[page] for page in ends]
            is_growth = not new or -(-new // size) > -(-old // size)
            with live.about(f"shared {shared}, from page {first} on, flags {flags}, {old} bytes to {new}"):
                allowed = {-errno.EINVAL} if is_growth else {-errno.EINVAL, room.at(to)}
                live.expect("whether it is refused, or done where it may be", True, answer in allowed)
                if answer == -errno.EINVAL:
                    live.expect("what each page holds", [*_AT_FIRST], _read_all(room))
            there = _AT_FIRST if is_growth else _rounded(first, to, -(-old // size), -(-new // size))
            rounded += [there[page] for page in ends]
            room.unmap()
    live.expect_pool(nr=3, free=0)
    live.expect("what lies behind the lengths", stayed, found, {Quirk.MOVE_BEYOND_LENGTH: rounded})


def _map_again(file: HugeFile, room: Memory, *, shared: bool) -> None:
    """Map the pages of ``file`` as they are at first: what is at the target is not what is to be moved there."""
    for pages, at, first in ((3, 0, 0), (2, 3, 1)):
        place = room.at(at)
        part = file.map(pages, shared=shared, noreserve=True, flags=MAP_FIXED, at=place, first=first)
        part.advise(MADV_POPULATE_READ)


def _rounded(first: int, to: int, old: int, new: int) -> Sequence[int | str]:
    """Return what the pages hold when ``old`` of them from ``first`` on are ``new`` ones from ``to`` on."""
    there = list[int | str](_AT_FIRST)
    taken = there[first : first + old]
    there[first : first + old] = [signal.SIGSEGV.name] * old
    there[to : to + new] = taken[:new]
    return there


@MREMAP.case("a mapping does not grow", REMAP, pages=2)
def growing_mapping(live: Live) -> None:
    memory = live.map(1)
    memory.touch(value=1)
    for flags in (0, MREMAP_MAYMOVE):
        live.expect_errno(errno.EINVAL, memory.actor.call, "mremap", memory.address, live.size, 2 * live.size, flags)
        live.expect_pool(nr=2, free=1)
    live.expect("what the page holds", 1, memory.read())


@MREMAP.case("addresses that are not a multiple of the page size are refused", REMAP, pages=1)
def misaligned_remap(live: Live) -> None:
    memory = live.map(1)
    memory.touch(value=1)
    target = free_place(live, memory.actor, 2)
    flags = MREMAP_MAYMOVE | MREMAP_FIXED
    call = memory.actor.call
    for source, place in ((memory.address, target + live.base_page), (memory.address + live.base_page, target)):
        live.expect_errno(errno.EINVAL, call, "mremap", source, live.size, live.size, flags, place)
    live.expect_errno(
        errno.EINVAL, call, "mremap", memory.address, live.size, live.size, MREMAP_MAYMOVE | MREMAP_DONTUNMAP
    )
    live.expect_pool(nr=1, free=0)
    live.expect("what the page holds", 1, memory.read())


class Mremap(LiveTest):
    def test_mremap(self) -> None:
        self.run_area(MREMAP)
