"""Mappings that begin and end within what one page table covers, moved while some of the tables are not there.

mremap(2) goes from one table to the next, at each level, and passes over those that are not there: what it goes on with
is the start of the next one, however much of the last one the mapping has.
"""

import mmap
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.commit_policy import need_noreserve
from hugepage_qa.cases.fragmentation import expect_no_node_short, with_blocks
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_memory import mapped_huge, pmd_size, room_for
from hugepage_qa.cases.thp_policy import give_on_advice
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE, MAP_FIXED
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

FROM_WITHIN = Area("memory/moved-from-within", sizes=Sizes.ONCE)

_SOURCE = "mremap(2); mm/mremap.c move_page_tables(), get_extent(), get_old_pud(), get_old_pmd()"
#: tables that a mapping lies in: of the first and the third nothing is touched
_TABLES = 4


@dataclass(frozen=True)
class _Scattered:
    """Memory from page ``start`` of a table on, whose pages that are touched hold their number and ``value`` more."""

    live: Live
    memory: Memory
    touched: tuple[int, ...]

    def expect_held(self, memory: Memory, value: int) -> None:
        """Expect the pages to be there where ``memory`` is, with what they hold, and no others."""
        found = {page: memory.read(page) for page in self.touched}
        self.live.expect("what the pages hold", {page: value + page for page in self.touched}, found)
        resident = sum(one.fields["Rss"] for one in memory.all_mappings())
        self.live.expect("Rss", len(self.touched) * memory.size, resident)

    def fill(self, memory: Memory, value: int) -> None:
        """Write the pages where ``memory`` is."""
        for page in self.touched:
            memory.touch(page, value + page)


@FROM_WITHIN.case(
    "base pages of a mapping that begins and ends anywhere within what a page table covers, of the lowest level and of"
    " that above, are moved with what they hold to any place in other tables, and back, though tables before and"
    " between them are not there",
    _SOURCE,
)
def base_pages(live: Live) -> None:
    let_rest(live)
    for table in (pmd_size(live), live.mmu.table(pmd_size(live))):
        _for_each(live, table, live.base_page, _expect_moved)


@FROM_WITHIN.case(
    "huge pages, private and shared, of a mapping that begins and ends anywhere within what a page table of them covers"
    " are moved, each as a whole, with what they hold to any place in other tables, and back, though tables before and"
    " between them are not there",
    f"{_SOURCE}; mm/huge_memory.c move_huge_pmd()",
)
def huge_pages(live: Live) -> None:
    let_rest(live)
    give_on_advice(live)
    size = pmd_size(live)

    def expect_moved_whole(scattered: _Scattered, place: int) -> None:
        memory, length = scattered.memory, len(scattered.touched) * size
        if mapped_length(memory) != length:
            expect_no_node_short(live, size, len(scattered.touched))
        live.expect("bytes that huge pages map", length, mapped_length(memory))
        moved = _expect_moved(scattered, place)
        live.expect("bytes that huge pages map, when it was back", length, mapped_length(moved))

    def mapped_length(memory: Memory) -> int:
        return mapped_huge(Memory(live, memory.actor, memory.address, 1, memory.length))

    _for_each(live, live.mmu.table(size), size, expect_moved_whole)


def _expect_moved(scattered: _Scattered, place: int) -> Memory:
    """Expect pages to hold what they held at ``place``, with nothing left where they were, and when they are back."""
    live, memory = scattered.live, scattered.memory
    moved = memory.moved_to(place)
    scattered.expect_held(moved, 1)
    for page in (scattered.touched[0], memory.pages - 1):
        live.expect_signal(signal.SIGSEGV, memory.read, page)
    scattered.fill(moved, 2)
    back = moved.moved_to(memory.address)
    scattered.expect_held(back, 2)
    return back


def _for_each(live: Live, table: int, size: int, expect: Callable[[_Scattered, int], object]) -> None:
    """Have ``expect`` move pages of ``size`` bytes from each start in a ``table``, which covers so many bytes.

    Private ones and shared ones, and each to the same place in another table, to its start and elsewhere.
    """
    need_noreserve(live)
    half, actor = table // 2, live.actor()
    source, target = (room_for(actor, _TABLES + 2, table) for _side in range(2))
    for shared, start in product((False, True), (0, size, half, table - size)):
        for to in dict.fromkeys((start, 0, (start + half - size) % table)):
            where = f"pages of {size} bytes, tables of {table}, from byte {start} to {to}, shared {shared}"
            with live.about(where), _scattered(live, actor, source + start, table, size, shared) as scattered:
                expect(scattered, target + to)
            if live.differences:
                # so it is with most of the others
                return


@contextmanager
def _scattered(live: Live, actor: Actor, place: int, table: int, size: int, shared: bool) -> Iterator[_Scattered]:
    """Yield memory at ``place``, which lies in the first of its tables as far as it ends within the last one.

    Touched are the pages at both ends of the second table and of the last one, and those as far within them.
    """
    start = place % table
    length = _TABLES * table - table + size
    kind = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE
    flags = kind | mmap.MAP_ANONYMOUS | live.host.uapi.map_noreserve | MAP_FIXED
    actor.mmap(length, READ_WRITE, flags, address=place)
    memory = Memory(live, actor, place, length // size, size)
    memory.advise(MADV_HUGEPAGE if size == pmd_size(live) else MADV_NOHUGEPAGE)
    second, last = table - start, (_TABLES - 1) * table - start
    offsets = {second, table - size, table, second + table - size, last, length - size}
    scattered = _Scattered(live, memory, tuple(sorted(offset // size for offset in offsets if offset >= second)))
    with_blocks(live, size, len(scattered.touched))
    scattered.fill(memory, 1)
    try:
        yield scattered
    finally:
        memory.unmap()


class MovedFromWithin(LiveTest):
    def test_moved_from_within(self) -> None:
        self.run_area(FROM_WITHIN)
