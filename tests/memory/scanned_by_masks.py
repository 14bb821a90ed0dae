"""PAGEMAP_SCAN of memory of many kinds, by masks, ranges and limits that are drawn, and what it tells as written."""

import mmap
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from itertools import product
from operator import or_
from random import Random

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act, let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.pagemap_scan import PROTECT, Is, Masks, Region, Scan, scan_with, told_as_written, track_writes
from hugepage_qa.cases.swapped import need_swap, parts_out, swapped
from hugepage_qa.cases.thp_memory import mapped_huge, need_blocks, pmd_size
from hugepage_qa.cases.thp_policy import base_pages, expect_huge_zeroes, huge_pages, mapped_in_parts
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, mount_tmpfs, shared_base_pages
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault, protected_pages
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MADV_NOHUGEPAGE, MAP_FIXED
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest

SCANNED_BY_MASKS = Area("memory/scanned-by-masks", sizes=Sizes.ONCE)

#: whole huge pages, mapped in parts, base pages, zeroes, a file, a hole, what nobody has mapped; one more of a file
_PAGES = 8
_WHOLE, _IN_PARTS, _SMALL, _ZEROES, _FILE, _HOLE, _GONE, _LAST = range(_PAGES)
#: of the base pages in the place of a huge one: from where to where they are written, swapped out, and read alone
_WRITTEN, _OUT, _READ = ((0, 8), (100, 120), (508, 512)), (104, 110), ((8, 12), (300, 301))
#: what is asked for: what a page is, but not whether it is written, which nobody has asked the kernel to keep
_KINDS = (Is.FILE, Is.PRESENT, Is.SWAPPED, Is.PFNZERO, Is.HUGE)
_MOST_REGIONS, _SCANS = (1, 1, 2, 3, 64), 80
_SOME = 1, 2, 7, 512, 513, 1023
_WRITTEN_WHERE = "Documentation/admin-guide/mm/pagemap.rst PAGE_IS_WRITTEN"
_ALL, _NOTHING = reduce(or_, _KINDS, Is.WRITTEN), Is(0)
#: pages that are written, told as that alone or as all that they are, and those that are not
_ASKED_FOR_WRITTEN = (
    Masks(_NOTHING, Is.WRITTEN, _NOTHING, Is.WRITTEN),
    Masks(_NOTHING, Is.WRITTEN, _NOTHING, _ALL),
    Masks(_NOTHING, _NOTHING, Is.WRITTEN, Is.WRITTEN),
    Masks(_NOTHING, Is.PRESENT, Is.WRITTEN | Is.HUGE, _ALL),
    Masks(Is.WRITTEN, Is.WRITTEN, _NOTHING, _ALL),
    Masks(_NOTHING, Is.PRESENT, _NOTHING, _ALL),
    Masks(_NOTHING, _NOTHING, Is.SWAPPED | Is.FILE, Is.WRITTEN),
)
#: all pages, those that are there, those that are absent, and those that are no huge ones
_ASKED_IN_PIECES = (
    Masks(_NOTHING, _NOTHING, _NOTHING, _ALL & ~Is.WRITTEN),
    Masks(_NOTHING, Is.PRESENT, _NOTHING, Is.PRESENT | Is.FILE),
    Masks(Is.PRESENT | Is.SWAPPED, Is.PRESENT | Is.SWAPPED, _NOTHING, Is.PRESENT),
    Masks(Is.HUGE, Is.HUGE, _NOTHING, Is.PRESENT | Is.SWAPPED),
)
#: what of tracked memory is protected: what is written, alone or with what else it is or is not
_CHOSEN_TO_PROTECT = (
    Masks(_NOTHING, Is.WRITTEN, _NOTHING, Is.WRITTEN),
    Masks(_NOTHING, Is.WRITTEN | Is.FILE, _NOTHING, Is.WRITTEN),
    Masks(Is.FILE, Is.WRITTEN | Is.FILE, _NOTHING, Is.WRITTEN),
    Masks(Is.PRESENT, Is.PRESENT, _NOTHING, Is.WRITTEN),
    Masks(_NOTHING, Is.WRITTEN, Is.HUGE | Is.SWAPPED, Is.WRITTEN),
)
#: what makes written memory, and what it is
_TRACKED: Mapping[Callable[[Live], Memory], Is] = {
    huge_pages: Is.PRESENT | Is.HUGE,
    mapped_in_parts: Is.PRESENT,
    base_pages: Is.PRESENT,
    shared_base_pages: Is.PRESENT | Is.FILE,
}


@SCANNED_BY_MASKS.case(
    "a scan tells of each page, in huge pages, in parts of them, of a file, in swap, of zeroes or absent, what it is"
    " asked for, if the page has what all masks say, from the first page of the range to the last one, as regions that"
    " end where something else is told, and ends at the first page for which there is no room",
    "Documentation/admin-guide/mm/pagemap.rst PAGEMAP_SCAN; fs/proc/task_mmu.c pagemap_scan_is_interesting_page(),"
    " pagemap_scan_push_range(), pagemap_scan_output()",
    since="6.7",
)
def as_a_model_says(live: Live) -> None:
    memory, kinds, no_zeroes = _memory_of_many_kinds(live)
    draw = Random(1)  # noqa: S311 - the same each time
    count, every = len(kinds), memory.size // live.base_page
    edges = sorted({page * every + more for page in range(_PAGES) for more in (-1, 0, 1, 3, 104, 110)} - {-1})
    for number in range(_SCANS):
        masks = _drawn_masks(draw)
        if number % 2:
            start, end = sorted(draw.sample(edges, 2))
        else:
            start, end = 0, count
        most = draw.choice((0, 0, *_SOME))
        regions = draw.choice(_MOST_REGIONS)
        base = live.base_page
        found = scan_with(live, memory, masks, start * base, end * base, most=most, regions=regions)
        told, with_bug = (_told(each, masks, start, end, most, regions, base) for each in (kinds, no_zeroes))
        with live.about(f"{masks}, pages {start} to {end}, at most {most or 'all'} in {regions} regions"):
            live.expect("what is told", told, found, {Quirk.HUGE_ZEROES_UNTOLD: with_bug})
    memory.part(_WHOLE, 2).expect_filled()


@SCANNED_BY_MASKS.case(
    "scans of which each goes on where the one before ended, for want of room for pages or regions, tell each page"
    " once, wherever they end: in huge pages, in parts of them, in a file, and in what is absent",
    "Documentation/admin-guide/mm/pagemap.rst PAGEMAP_SCAN max_pages, vec_len, walk_end; fs/proc/task_mmu.c"
    " pagemap_scan_output(), pagemap_scan_pte_hole()",
    since="6.7",
)
def piece_by_piece(live: Live) -> None:
    memory, kinds, no_zeroes = _memory_of_many_kinds(live)
    count, base = len(kinds), live.base_page
    every = memory.size // base
    for masks, (most, regions) in product(_ASKED_IN_PIECES, ((every // 2 + 45, 64), (every - 1, 64), (every + 1, 2))):
        start = 0
        while start < count:
            told, with_bug = (_told(each, masks, start, count, most, regions, base) for each in (kinds, no_zeroes))
            found = scan_with(live, memory, masks, start * base, count * base, most=most, regions=regions)
            with live.about(f"{masks}, from page {start} on at most {most} in {regions} regions"):
                live.expect("what is told", told, found, {Quirk.HUGE_ZEROES_UNTOLD: with_bug})
            # the next one begins where this one should have ended: one that ends before it began has no end
            start = told.end // base


@SCANNED_BY_MASKS.case(
    "nothing is told as written where no userfaultfd tracks writes, by whatever masks it is asked for and in whatever"
    " range: of huge pages, whole or in parts, of base pages, a file, zeroes, what is in swap and what is absent",
    f"{_WRITTEN_WHERE}; fs/proc/task_mmu.c pagemap_scan_pmd_entry(), pagemap_page_category(), pagemap_thp_category()",
    since="7.3",  # before, each page that had no mark of a userfaultfd was told as written
)
def untracked(live: Live) -> None:
    memory, kinds, no_zeroes = _memory_of_many_kinds(live)
    base, every = live.base_page, memory.size // live.base_page
    ranges = [(0, len(kinds)), *((page * every + 1, (page + 2) * every - 1) for page in range(_PAGES - 1))]
    for masks, (start, end) in product(_ASKED_FOR_WRITTEN, ranges):
        found = scan_with(live, memory, masks, start * base, end * base, regions=_MOST_REGIONS[-1])
        told, with_bug = (_told(each, masks, start, end, 0, _MOST_REGIONS[-1], base) for each in (kinds, no_zeroes))
        with live.about(f"{masks}, pages {start} to {end}"):
            live.expect("what is told", told, found, {Quirk.HUGE_ZEROES_UNTOLD: with_bug})


@SCANNED_BY_MASKS.case(
    "of huge pages, whole or in parts, and base pages, of which a part is tracked, that part is told as written, to the"
    " base page, before it is protected, and nothing when it is no longer tracked, or for faults alone",
    f"{_WRITTEN_WHERE}; fs/proc/task_mmu.c pagemap_scan_pmd_entry(), pagemap_thp_category()",
    since="7.3",
)
def tracked_in_part(live: Live) -> None:
    let_rest(live)
    every = pmd_size(live) // live.base_page
    parts = (0, 1), (every - 1, every), (every // 2, every), (every - 1, every + 1), (1, 2 * every), (0, every)
    for make, (first, end) in product((huge_pages, mapped_in_parts, base_pages), parts):
        memory = make(live, 2)
        part = Memory(live, memory.actor, memory.address + first * live.base_page, end - first, live.base_page)
        with live.about(f"{make.__name__}, base pages {first} to {end} tracked"):
            _expect_told_where_tracked(live, memory, part)
            memory.expect_filled()
        memory.actor.end()


@SCANNED_BY_MASKS.case(
    "hugetlb pages are told as written where they are tracked, each by itself, and nowhere else",
    f"{_WRITTEN_WHERE}; fs/proc/task_mmu.c pagemap_hugetlb_category()",
    since="7.3",
    sizes=Sizes.EACH,
    pages=2,
)
def tracked_hugetlb_pages(live: Live) -> None:
    for shared, page in product((False, True), range(2)):
        memory = live.map(2, shared=shared)
        memory.touch(0)
        memory.touch(1)
        with live.about(f"page {page} tracked, shared {shared}"):
            _expect_told_where_tracked(live, memory, memory.part(page))
        memory.actor.end()
    live.expect_pool(nr=2, free=2)


@SCANNED_BY_MASKS.case(
    "a scan that protects does so with what its masks choose and nothing else, whether it has room to tell of it or is"
    " asked to tell nothing: of huge pages, whole or in parts, base pages and shared ones; the rest stays written",
    "Documentation/admin-guide/mm/pagemap.rst PM_SCAN_WP_MATCHING: the pages of interest; fs/proc/task_mmu.c"
    " pagemap_scan_pmd_entry(), pagemap_scan_thp_entry()",
    since="6.7",
)
def protected_as_chosen(live: Live) -> None:
    let_nobody_else_act(live)
    for make, masks, regions in product(_TRACKED, _CHOSEN_TO_PROTECT, (_MOST_REGIONS[-1], 0)):
        memory = make(live)
        track_writes(memory)
        kind = _TRACKED[make]
        is_chosen = masks.tell(kind | Is.WRITTEN)
        told = scan_with(live, memory, masks, 0, memory.length, do=PROTECT, regions=regions).regions
        with live.about(f"{make.__name__.replace('_', ' ')}, {masks}, {'told' if regions else 'nothing told'}"):
            everything, written = memory.length // live.base_page, [Region(0, memory.length, Is.WRITTEN)]
            live.expect("what it tells", written if is_chosen and regions else [], told)
            known = {Quirk.SCAN_PROTECTS_OTHERS: everything} if not regions and Is.HUGE not in kind else None
            found = len(protected_pages(memory))
            live.expect("base pages that are protected", everything if is_chosen else 0, found, known)
            live.expect("what is written then", [] if is_chosen else written, told_as_written(live, memory))
            memory.expect_filled()
        memory.actor.end()


def _expect_told_where_tracked(live: Live, memory: Memory, part: Memory) -> None:
    """Expect ``part`` of ``memory`` to be told as written as long as its writes are tracked, and nothing else."""
    start = part.address - memory.address
    written = [Region(start, start + part.length, Is.WRITTEN)]
    live.expect("what is written before", [], told_as_written(live, memory))
    for why, register, told in (
        ("missing pages", partial(Userfault, part, Mode.MISSING, Feature(0)), []),
        ("writes", partial(track_writes, part), written),
    ):
        fault = register()
        live.expect(f"what is written, tracked for {why}", told, told_as_written(live, memory))
        fault.unregister()
        live.expect(f"what is written after {why}", [], told_as_written(live, memory))


def _memory_of_many_kinds(live: Live) -> tuple[Memory, Sequence[Is | None], Sequence[Is | None]]:
    """Return memory of which each huge page is of another kind, and what each of its base pages is: None of no mapping.

    Returned last is what they are to a kernel that tells of no huge page of zeroes. Raises CannotRun where memory is
    too fragmented for huge pages.
    """
    let_rest(live)
    need_swap(live, pmd_size(live))
    let_only_pmd_inherit(live)
    memory = huge_pages(live, _PAGES)
    actor, base, every = memory.actor, live.base_page, memory.size // live.base_page
    live.set_knob(f"{DIRECTORY}/use_zero_page", "1")
    absent = [Is(0)] * every
    for prot in (mmap.PROT_READ, READ_WRITE):
        actor.call("mprotect", memory.at(_IN_PARTS), base, prot)
    for page in (_SMALL, _ZEROES, _HOLE):
        memory.advise(mmap.MADV_DONTNEED, page, 1)
    memory.advise(MADV_NOHUGEPAGE, _SMALL, 1)
    small = list(absent)
    # fewer base pages are in a huge one where they are larger: what is beyond it is left out
    for first, end in _WRITTEN:
        for number in range(first, min(end, every)):
            actor.write(memory.at(_SMALL) + number * base, 1 + number)
            small[number] = Is.PRESENT
    for first, end in _READ:
        for number in range(first, min(end, every)):
            live.expect("what is read of what nobody wrote", 0, actor.read(memory.at(_SMALL) + number * base))
            small[number] = Is.PRESENT | Is.PFNZERO
    first, end = _OUT
    out = Memory(live, actor, memory.at(_SMALL) + first * base, end - first, base)
    live.host.wait_until(
        partial(parts_out, live, out, [(0, out.length)], lambda: swapped(memory.part(_SMALL)) == out.length)
    )
    live.expect("memory in swap", out.length, swapped(memory.part(_SMALL)))
    small[first:end] = [Is.SWAPPED] * (end - first)
    with_blocks(live, memory.size, 1)
    expect_huge_zeroes(live, memory, _ZEROES)
    descriptor = live.open(actor, f"{mount_tmpfs(live, 'always')}/file")
    actor.call("ftruncate", descriptor, 2 * memory.size)
    for page, offset in ((_FILE, 0), (_LAST, memory.size)):
        flags = mmap.MAP_SHARED | MAP_FIXED
        actor.mmap(memory.size, READ_WRITE, flags, descriptor, offset, memory.at(page))
        part = memory.part(page)
        part.fill(1 + page * memory.size)
        need_blocks(live, part)
        live.expect("bytes of the file that are mapped in huge pages", part.length, mapped_huge(part))
    actor.call("munmap", memory.at(_GONE), memory.size)
    whole, file = Is.HUGE | Is.PRESENT, Is.HUGE | Is.PRESENT | Is.FILE
    of_each = {_WHOLE: whole, _IN_PARTS: Is.PRESENT, _ZEROES: whole | Is.PFNZERO, _FILE: file, _LAST: file}
    of_pages = {page: [kind] * every for page, kind in of_each.items()} | {_SMALL: small}
    gone: list[Is | None] = [None] * every
    kinds = [kind for page in range(_PAGES) for kind in (gone if page == _GONE else of_pages.get(page, absent))]
    return memory, kinds, [kind & ~Is.PFNZERO if kind and Is.HUGE in kind else kind for kind in kinds]


def _drawn_masks(draw: Random) -> Masks:
    """Return masks that let some pages through: each has few bits."""

    def some(likely: float) -> Is:
        chosen = Is(0)
        for kind in _KINDS:
            if draw.random() < likely:
                chosen |= kind
        return chosen

    return Masks(some(0.3), some(0.2), some(0.3), some(0.6))


def _told(kinds: Sequence[Is | None], masks: Masks, start: int, end: int, most: int, regions: int, base: int) -> Scan:
    """Return what the pages from ``start`` to ``end`` are told as."""
    told: list[Region] = []
    pages = 0
    for page in range(start, end):
        kind = kinds[page]
        if kind is None or not masks.tell(kind):
            continue
        last, categories = told[-1] if told else None, kind & masks.told
        goes_on = last is not None and last.end == page * base and last.categories == categories
        if (most and pages == most) or (not goes_on and len(told) == regions):
            return Scan(told, page * base)
        pages += 1
        if goes_on and last is not None:
            told[-1] = Region(last.start, (page + 1) * base, categories)
        else:
            told.append(Region(page * base, (page + 1) * base, categories))
    return Scan(told, end * base)


class ScannedByMasks(LiveTest):
    def test_scanned_by_masks(self) -> None:
        self.run_area(SCANNED_BY_MASKS)
