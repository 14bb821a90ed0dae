"""What PAGEMAP_SCAN protects and tells of a part of hugetlb pages, of transparent huge pages, and across them."""

import errno
import mmap
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act, let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory, runs
from hugepage_qa.cases.pagemap_scan import PROTECT, Is, Masks, Region, Scan, scan_with, told_as_written, track_writes
from hugepage_qa.cases.thp_memory import pmd_size, room_for
from hugepage_qa.cases.thp_policy import base_pages, huge_pages
from hugepage_qa.cases.thp_shared_memory import shared_base_pages, shared_huge_pages
from hugepage_qa.cases.userfaultfd import protected_pages
from hugepage_qa.kernel.uapi import MAP_FIXED
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused

SCANNED_IN_PART = Area("memory/scanned-in-part", sizes=Sizes.ONCE)

DOC = "Documentation/admin-guide/mm/pagemap.rst PAGEMAP_SCAN"
WRITTEN = f"{DOC} PM_SCAN_WP_MATCHING; Documentation/admin-guide/mm/userfaultfd.rst UFFD_FEATURE_WP_ASYNC"
SINCE = "6.7"
#: that untouched memory would have of one level
_TABLES = 3


@SCANNED_IN_PART.case(
    "a scan that protects tells and protects all of a hugetlb page, or, where its range or the pages that it may tell"
    " have room for a part alone, nothing of it: the next scan tells it, and this one says that it goes on there",
    f"{DOC} PM_SCAN_WP_MATCHING, max_pages, walk_end; fs/proc/task_mmu.c pagemap_scan_hugetlb_entry(),"
    " pagemap_scan_backout_range()",
    since=SINCE,
    sizes=Sizes.EACH,
    pages=2,
)
def parts_of_hugetlb_pages(live: Live) -> None:
    every = live.size // live.base_page
    ranges = (0, 1), (0, every - 1), (1, every), (every // 2, every + 1), (1, 2 * every), (0, 2 * every - 1)
    limits = (
        (1, 1),
        (2, 1),
        (1, every - 1),
        (2, every - 1),
        (2, every),
        (2, every + 1),
        (2, 2 * every - 1),
        (2, 2 * every),
    )
    rows = [(first, end, 0) for first, end in ranges] + [(0, pages * every, most) for pages, most in limits]
    left, ends = list[list[int]](), list[int]()
    for shared in (False, True):
        memory = live.map(2, shared=shared)
        for page in range(2):
            memory.touch(page)
        for first, end, most in rows:
            fault = track_writes(memory)
            with live.about(f"base pages {first} to {end}, at most {most or 'all'}, shared {shared}"):
                untold, where = _expect_whole_or_untold(live, memory, first, end, most)
            if most:
                # a range that ends within pages, which are not protected in part, leaves it to the kernel
                left.append(untold or [end * live.base_page])
                ends.append(where)
            fault.unregister()
        memory.actor.end()
        live.expect_pool(nr=2, free=2)
    known = {Quirk.SCAN_PASSES_OVER_PAGES: [max(untold) for untold in left]}
    live.expect("where each scan goes on", [min(untold) for untold in left], ends, known)


def _expect_whole_or_untold(live: Live, memory: Memory, first: int, end: int, most: int) -> tuple[list[int], int]:
    """Protect base pages from ``first`` to ``end`` by one scan, of hugetlb pages that are all written before and after.

    Expected are whole pages to be told, at most ``most`` base pages of them together. Returned is where those begin of
    which the scan tells nothing, and where it says that it goes on, in bytes from the start of the memory.
    """
    base, size = live.base_page, memory.size
    start, stop = first * base, end * base
    room = most * base or memory.length
    within = [page for page in range(memory.pages) if start < (page + 1) * size and page * size < stop]
    whole = [page for page in within if start <= page * size and (page + 1) * size <= stop]
    told = whole[: room // size]
    found = scan_with(live, memory, Masks(Is(0), Is.WRITTEN, Is(0), Is.WRITTEN), start, stop, do=PROTECT, most=most)
    live.expect("what the scan that protects tells", _pages_written(told, size), found.regions)
    untold = [page for page in range(memory.pages) if page not in told]
    live.expect("what the next scan tells", _pages_written(untold, size), told_as_written(live, memory))
    for page in told:
        # what is there already
        memory.touch(page)
    live.expect(
        "what is told when these are written", [Region(0, memory.length, Is.WRITTEN)], told_as_written(live, memory)
    )
    live.expect("what the pages hold", (1, 1), (memory.read(0), memory.read(1)))
    return [max(start, page * size) for page in within if page not in told], found.end


def _pages_written(pages: list[int], size: int) -> list[Region]:
    return [Region(run.start * size, run.stop * size, Is.WRITTEN) for run in runs(set(pages))]


@SCANNED_IN_PART.case(
    "scans that protect, of which each goes on where the one before ended because it may tell no more pages, tell"
    " together all that was written, each page once, and nothing is written then: of huge pages, base pages, shared"
    " ones, and of what nobody has touched, before them, between them and behind them",
    f"{WRITTEN}, max_pages, walk_end; fs/proc/task_mmu.c pagemap_scan_pte_hole(), pagemap_scan_backout_range()",
    since=SINCE,
)
def protected_piece_by_piece(live: Live) -> None:
    let_nobody_else_act(live)
    every = pmd_size(live) // live.base_page
    for make, most in product((huge_pages, base_pages, shared_base_pages), (every // 2 + 45, every - 1, every + 1)):
        memory = make(live, 5)
        for page in (0, 2, 4):
            memory.advise(mmap.MADV_REMOVE if make is shared_base_pages else mmap.MADV_DONTNEED, page, 1)
        track_writes(memory)
        with live.about(f"{make.__name__}, at most {most} base pages"):
            before = _joined(told_as_written(live, memory))
            # whether a page that is absent is told depends on the kernel, and is looked at in memory/scanned
            absent = {page for page in (0, 2, 4) if any(one.start <= page * memory.size < one.end for one in before)}
            written = _pages_written([1, 3, *absent], memory.size)
            live.expect("what is written before", written, before)
            told, start = list[Region](), 0
            while start < memory.length:
                masks = Masks(Is(0), Is.WRITTEN, Is(0), Is.WRITTEN)
                found = scan_with(live, memory, masks, start, memory.length, do=PROTECT, most=most)
                told += found.regions
                if not start < found.end <= memory.length:
                    live.fail("where a scan ends", f"between {start} and {memory.length}", found.end)
                start = found.end
            live.expect("what the scans tell together", written, _joined(told))
            live.expect("what is written then", [], told_as_written(live, memory))
        memory.actor.end()


def _joined(regions: list[Region]) -> list[Region]:
    """Return ``regions``, those that meet as one."""
    joined = list[Region]()
    for region in regions:
        if joined and joined[-1].end == region.start and joined[-1].categories == region.categories:
            joined[-1] = Region(joined[-1].start, region.end, region.categories)
        else:
            joined.append(region)
    return joined


@SCANNED_IN_PART.case(
    "a scan that asks for all pages ends where it has told as many as it may, and the next one goes on there, in memory"
    " that nobody has touched: within what one page table would be for, at the end of that and behind it, whichever"
    " tables are absent",
    f"{DOC} max_pages, walk_end; mm/pagewalk.c walk_pmd_range(), walk_pud_range(), walk_p4d_range(), walk_pgd_range()",
    since=SINCE,
)
def untouched_piece_by_piece(live: Live) -> None:
    actor, base = live.actor(), live.base_page
    covered = [pmd_size(live)]
    for _level in range(2):
        covered.append(live.mmu.table(covered[-1]))
    for size in covered:
        try:
            start = room_for(actor, _TABLES + 1, size)
        except Refused as refusal:
            if refusal.errno != errno.ENOMEM or size == covered[0]:
                raise
            # the address space has no room for tables of this level
            break
        memory, every = Memory(live, actor, start, _TABLES, size), size // base
        # with what is touched behind it there are tables of the levels above
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED
        actor.write(actor.mmap(base, READ_WRITE, flags, address=memory.at(_TABLES)), 1)
        for most in (1, every - 1, every, every + 1, 2 * every - 1):
            with live.about(f"tables for {size >> 20} MiB, at most {most} base pages"):
                _expect_told_in_pieces(live, memory, most * base)


def _expect_told_in_pieces(live: Live, memory: Memory, piece: int) -> None:
    """Expect two scans that may tell ``piece`` bytes each, and one that may tell all, to tell all of ``memory``."""
    everything = Masks(Is(0), Is(0), Is(0), Is.PRESENT)
    for start, most in ((0, piece), (piece, min(piece, memory.length - piece)), (2 * piece, 0)):
        if start < memory.length:
            end = start + most if most else memory.length
            found = scan_with(live, memory, everything, start, memory.length, most=most // live.base_page)
            live.expect(f"what a scan from {start} on tells", Scan([Region(start, end, Is(0))], end), found)


@SCANNED_IN_PART.case(
    "a part of a huge page is told as written by itself once it is protected by itself, and the rest is left alone",
    f"{WRITTEN}; fs/proc/task_mmu.c pagemap_scan_thp_entry()",
    since=SINCE,
)
def written_part(live: Live) -> None:
    let_rest(live)
    memory = huge_pages(live, 2)
    half, base = memory.size // 2, live.base_page
    fault = track_writes(memory)
    fault.write_protect(length=half)
    memory.actor.write(memory.address + base, 1 + base)
    written = [Region(base, 2 * base, Is.WRITTEN), Region(half, memory.length, Is.WRITTEN)]
    live.expect("what is written", written, told_as_written(live, memory))
    live.expect("AnonHugePages of the page that was left alone", memory.size, memory.smaps(1).anon_huge_pages)
    memory.expect_filled()


@SCANNED_IN_PART.case(
    "a scan that protects a part of huge pages, at either end of one or across two, because its range ends there or it"
    " may tell no more pages, protects that part: all beside it is told as written by the next scan, and so is what is"
    " written of it then",
    f"{DOC} PM_SCAN_WP_MATCHING, max_pages; fs/proc/task_mmu.c pagemap_scan_thp_entry(), pagemap_scan_pmd_entry()",
    since=SINCE,
)
def protected_parts(live: Live) -> None:
    let_rest(live)
    every = pmd_size(live) // live.base_page
    # from where to where, within two huge pages and up to whole ones
    borders = (0, 1), (every - 1, every), (3, every // 2), (every - 1, every + 1), (0, every + 1), (1, 2 * every)
    whole = (0, every), (every, 2 * every), (0, 2 * every)
    for make, (first, end), by_range in product((huge_pages, base_pages), (*borders, *whole), (True, False)):
        memory = make(live, 2)
        with live.about(f"{make.__name__}, base pages {first} to {end}, ended by its range {by_range}"):
            _expect_part_protected(live, memory, first, end, by_range=by_range)
        memory.actor.end()


@SCANNED_IN_PART.case(
    "such a scan tells the part of shared memory in huge pages, or in base pages, that was written and protects it,"
    " whether it asks for what is present, too, or not",
    f"{WRITTEN}; fs/proc/task_mmu.c pagemap_scan_thp_entry(); mm/huge_memory.c __split_huge_pmd_locked()",
    since=SINCE,
)
def parts_of_shared_memory(live: Live) -> None:
    let_nobody_else_act(live)
    every, base = pmd_size(live) // live.base_page, live.base_page
    borders = (0, 1), (every - 1, every), (3, every // 2), (0, every)
    wanted, makes = (Is.WRITTEN, Is.WRITTEN | Is.PRESENT), (shared_base_pages, shared_huge_pages)
    for category, make, (first, end) in product(wanted, makes, borders):
        memory, part = make(live), Region(first * base, end * base, Is.WRITTEN)
        with live.about(f"{category!r}, {make.__name__}, base pages {first} to {end}"):
            track_writes(memory)
            masks = Masks(Is(0), category, Is(0), Is.WRITTEN)
            found = scan_with(live, memory, masks, part.start, part.end, do=PROTECT)
            known = {Quirk.PART_OF_SHARED_UNTOLD: Scan([], part.end)}
            live.expect("what the scan that protects tells", Scan([part], part.end), found, known)
            live.expect("base pages that are protected", [*range(first, end)], protected_pages(memory))
            memory.expect_filled()
        memory.actor.end()


def _expect_part_protected(live: Live, memory: Memory, first: int, end: int, *, by_range: bool) -> None:
    """Protect base pages from ``first`` to ``end`` by one scan, and expect each other one to be told as written."""
    base = live.base_page
    track_writes(memory)
    masks, part = Masks(Is(0), Is.WRITTEN, Is(0), Is.WRITTEN), Region(first * base, end * base, Is.WRITTEN)
    stop, most = (part.end, 0) if by_range else (memory.length, end - first)
    found = scan_with(live, memory, masks, part.start, stop, do=PROTECT, most=most)
    live.expect("what the scan that protects tells", Scan([part], part.end), found)
    # what is written of it is what is there already: no word changes
    again = {first, end - 1}
    for written in (set[int](), again):
        for number in written:
            memory.actor.write(memory.address + number * base, 1 + number * base)
        told = {*range(memory.length // base)} - {*range(first, end)} | written
        expected = [Region(run.start * base, run.stop * base, Is.WRITTEN) for run in runs(told)]
        live.expect(f"what is written when {sorted(written)} are", expected, told_as_written(live, memory))
    memory.expect_filled()


class ScannedInPart(LiveTest):
    def test_scanned_in_part(self) -> None:
        self.run_area(SCANNED_IN_PART)
