"""Base pages that lie far apart in one mapping, with page tables of each level missing between them.

Where there is no table, what it would cover is passed over, and no more: the walks over a range go on behind it.
"""

import errno
import mmap
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.commit_policy import need_noreserve
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import PRESENT, Memory
from hugepage_qa.cases.pagemap_scan import Is, Region, scan
from hugepage_qa.cases.pages_in_memory import expect_in_memory
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.kernel.uapi import MADV_DONTNEED, MADV_NOHUGEPAGE, MAP_FIXED, PROT_NONE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor, Refused
from hugepage_qa.version import KernelVersion

FAR_APART = Area("memory/far-apart", sizes=Sizes.ONCE)

#: what the two pages hold, and what is stored later
_FIRST, _LAST, _NEW = 5, 6, 9
#: that a mapping has, each as long as the distance: of the first and the third nothing is touched
_BLOCKS = 4
#: powers of two, in bytes: up to what a table of the highest level covers, where the addresses suffice
_LEAST_BASE_PAGES, _MOST_BITS = 2, 41
_SCAN_SINCE = KernelVersion(6, 7)


class _NoAddresses(Exception):
    """The address space has no room for so much."""


@dataclass(frozen=True)
class Apart:
    """Memory of base pages of which two are touched: the first of the second block, and the last one of the fourth."""

    live: Live
    memory: Memory
    distance: int
    shared: bool

    @property
    def first(self) -> int:
        """The number of the first page that is touched."""
        return self.distance // self.memory.size

    @property
    def last(self) -> int:
        """That of the second one."""
        return self.memory.pages - 1

    def ranges(self) -> list[tuple[int, int]]:
        """Return where ranges begin and end, in base pages: in front of what is not there, in it, and behind it."""
        block = self.first
        return [
            (0, _BLOCKS * block),
            (block - 1, _BLOCKS * block),
            (block // 2, _BLOCKS * block - 1),
            (0, 3 * block),
            (block + 1, _BLOCKS * block),
            (2 * block, _BLOCKS * block),
        ]

    def expect_held(self, memory: Memory | None = None, first: int = _FIRST, last: int = _LAST) -> None:
        """Expect the two pages, as they are elsewhere if that is given, to hold this."""
        memory = memory or self.memory
        found = memory.read(self.first), memory.read(self.last)
        self.live.expect("what the two pages hold", (first, last), found)

    def expect_written(self, memory: Memory | None = None) -> None:
        """Write both pages, and expect them to hold it."""
        memory = memory or self.memory
        for page in (self.first, self.last):
            memory.touch(page, _NEW)
        self.expect_held(memory, _NEW, _NEW)

    def expect_there(self, memory: Memory, *pages: int) -> None:
        """Expect smaps and pagemap to show these of the two pages, and no other."""
        self.live.expect("Rss", len(pages) * memory.size, sum(one.fields["Rss"] for one in memory.all_mappings()))
        beside = (page + step for page in (self.first, self.last) for step in (-1, 0, 1))
        numbers = [page for page in beside if 0 <= page < memory.pages]
        entries = memory.pagemap(memory.at(page) for page in numbers)
        there = [page for page, entry in zip(numbers, entries, strict=True) if entry & PRESENT]
        self.live.expect("base pages that pagemap shows", list(pages), there)


@FAR_APART.case(
    "a child has the pages that its parent has touched, however far apart, and no others, and who of both writes one"
    " has a page of its own then if they are private",
    "fork(2); mm/memory.c copy_page_range(), copy_p4d_range(), copy_pud_range(), copy_pmd_range()",
)
def inherited(live: Live) -> None:
    _for_each(live, _expect_inherited)


def _expect_inherited(apart: Apart) -> None:
    child = apart.memory.fork()
    if not apart.shared:
        # of what is shared a child may look for its pages when it needs them (vma_needs_copy())
        apart.expect_there(child, apart.first, apart.last)
    apart.expect_held(child)
    apart.expect_written()
    if apart.shared:
        apart.expect_held(child, _NEW, _NEW)
    else:
        apart.expect_held(child)
    child.actor.end()


@FAR_APART.case(
    "a protection holds for all pages of its range, however far apart, and so does the end of it, and for none beside"
    " it",
    "mprotect(2); mm/mprotect.c change_protection_range(), change_p4d_range(), change_pud_range(), change_pmd_range()",
)
def protected(live: Live) -> None:
    _for_each(live, _expect_ranges_protected)


def _expect_ranges_protected(apart: Apart) -> None:
    for start, end in apart.ranges():
        with apart.live.about(f"from base page {start} to {end - 1}"):
            _expect_protected(apart, start, end)


def _expect_protected(apart: Apart, start: int, end: int) -> None:
    live, memory = apart.live, apart.memory
    values = {apart.first: _FIRST, apart.last: _LAST}
    inside = [page for page in values if start <= page < end]
    memory.protect(mmap.PROT_READ, start, end - start)
    for page in inside:
        live.expect_signal(signal.SIGSEGV, memory.touch, page, _NEW)
    apart.expect_held()
    memory.protect(PROT_NONE, start, end - start)
    for page, value in values.items():
        if page in inside:
            live.expect_signal(signal.SIGSEGV, memory.read, page)
        else:
            live.expect(f"what page {page} beside the range holds", value, memory.read(page))
            memory.touch(page, value)
    memory.protect(READ_WRITE, start, end - start)
    apart.expect_held()
    apart.expect_written()
    for page, value in values.items():
        memory.touch(page, value)


@FAR_APART.case(
    "MADV_DONTNEED takes all pages of its range from the process, however far apart, and none beside it; private ones"
    " are zero then, shared ones hold what they held",
    "madvise(2); mm/memory.c zap_p4d_range(), zap_pud_range(), zap_pmd_range()",
)
def given_back(live: Live) -> None:
    _for_each(live, lambda apart: _expect_gone(apart, MADV_DONTNEED, is_kept=apart.shared))


@FAR_APART.case(
    "MADV_REMOVE takes all pages of its range out of shared memory and from who has them mapped, however far apart, and"
    " none beside it",
    "madvise(2); mm/memory.c unmap_mapping_range(); mm/shmem.c shmem_undo_range()",
)
def removed(live: Live) -> None:
    _for_each(live, lambda apart: _expect_gone(apart, mmap.MADV_REMOVE, is_kept=False), [True])


def _expect_gone(apart: Apart, advice: int, *, is_kept: bool) -> None:
    live, memory = apart.live, apart.memory
    values = {apart.first: _FIRST, apart.last: _LAST}
    for start, end in apart.ranges():
        with live.about(f"from base page {start} to {end - 1}"):
            memory.advise(advice, start, end - start)
            outside = [page for page in values if not start <= page < end]
            apart.expect_there(memory, *outside)
            wanted = [value if is_kept or page in outside else 0 for page, value in values.items()]
            apart.expect_held(memory, *wanted)
            for page, value in values.items():
                memory.touch(page, value)


@FAR_APART.case(
    "all pages of a mapping that moves to another address are there then, however far apart, and no others",
    "mremap(2); mm/mremap.c move_page_tables(), move_pgt_entry()",
)
def moved(live: Live) -> None:
    _for_each(live, _expect_moved)


def _expect_moved(apart: Apart) -> None:
    memory = apart.memory
    with _room(apart.live, memory.actor, memory.length) as place:
        # page tables move as a whole from and to what is aligned as they are, and entry by entry otherwise
        for to in (place, place + memory.size):
            with apart.live.about(f"{to - place} bytes off"):
                elsewhere = memory.moved_to(to)
                apart.expect_there(elsewhere, apart.first, apart.last)
                apart.expect_held(elsewhere)
                apart.expect_written(elsewhere)
                elsewhere.moved_to(memory.address)
                apart.expect_held(memory, _NEW, _NEW)
                memory.touch(apart.first, _FIRST)
                memory.touch(apart.last, _LAST)


@FAR_APART.case(
    "smaps, numa_maps, pagemap, mincore(2) and PAGEMAP_SCAN show all pages of a mapping, however far apart, and no"
    " others",
    "Documentation/filesystems/proc.rst smaps, numa_maps; Documentation/admin-guide/mm/pagemap.rst; mincore(2);"
    " mm/pagewalk.c walk_pgd_range(), walk_p4d_range(), walk_pud_range(), walk_pmd_range()",
)
def shown(live: Live) -> None:
    _for_each(live, _expect_shown)


def _expect_shown(apart: Apart) -> None:
    live, memory, base = apart.live, apart.memory, apart.live.base_page
    apart.expect_there(memory, apart.first, apart.last)
    if live.nodes:
        live.expect("pages on nodes", 2, sum(memory.numa_maps().nodes.values()))
    for page, states in ((apart.first, [False, True, False]), (apart.last, [False, True])):
        expect_in_memory(live, memory.actor, memory.at(page - 1), states)
    if live.kernel_version >= _SCAN_SINCE:
        wanted = [Region(page * base, (page + 1) * base, Is.PRESENT) for page in (apart.first, apart.last)]
        live.expect("what a scan finds", wanted, scan(live, memory, Is.PRESENT, Is.PRESENT).regions)


def _for_each(live: Live, act: Callable[[Apart], None], kinds: Sequence[bool] = (False, True)) -> None:
    """Have ``act`` look at two pages that lie apart, private and shared, for each distance that addresses suffice for.

    Raises Refused where they do not even suffice for what a page table covers.
    """
    need_noreserve(live)
    let_rest(live)
    actor = live.actor()
    for shared in kinds:
        distance = _LEAST_BASE_PAGES * live.base_page
        while distance <= 1 << _MOST_BITS:
            with live.about(f"{distance} bytes apart, shared {shared}"), suppress(_NoAddresses):
                _look_at(live, actor, distance, shared, act)
            distance *= 2


def _look_at(live: Live, actor: Actor, distance: int, shared: bool, act: Callable[[Apart], None]) -> None:
    length = _BLOCKS * distance
    with _room(live, actor, length) as place:
        kind = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE
        flags = kind | mmap.MAP_ANONYMOUS | live.host.uapi.map_noreserve | MAP_FIXED
        try:
            actor.mmap(length, READ_WRITE, flags, address=place)
        except Refused as refusal:
            if refusal.errno == errno.ENOMEM and distance > pmd_size(live):
                return
            raise
        memory = Memory(live, actor, place, length // live.base_page, live.base_page)
        memory.advise(MADV_NOHUGEPAGE)
        apart = Apart(live, memory, distance, shared)
        memory.touch(apart.first, _FIRST)
        memory.touch(apart.last, _LAST)
        act(apart)


@contextmanager
def _room(live: Live, actor: Actor, length: int) -> Iterator[int]:
    """Yield a multiple of ``length`` from which on as much is free, and unmap what is there then.

    A table that holds entries for all of it holds them side by side. Raises _NoAddresses.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | live.host.uapi.map_noreserve
    try:
        area = actor.mmap(2 * length, PROT_NONE, flags)
    except Refused as refusal:
        if refusal.errno == errno.ENOMEM and length > _BLOCKS * pmd_size(live):
            raise _NoAddresses from refusal
        raise
    try:
        yield -(-area // length) * length
    finally:
        actor.call("munmap", area, 2 * length)


class FarApart(LiveTest):
    def test_far_apart(self) -> None:
        self.run_area(FAR_APART)
