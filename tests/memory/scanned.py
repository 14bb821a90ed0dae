"""What PAGEMAP_SCAN tells of hugetlb pages and of transparent ones, and pages whose writes are found by it alone."""

import errno
import mmap
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.pagemap_scan import PROTECT, Is, Region, Scan, protect, scan, told_as_written, track_writes
from hugepage_qa.cases.places import place_of_a_table
from hugepage_qa.cases.race import at_once
from hugepage_qa.cases.swapped import need_swap, swap_out
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import advised, base_pages, expect_huge_zeroes, huge_pages
from hugepage_qa.cases.thp_shared_memory import filled_file, let_only_pmd_inherit, mount_tmpfs
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MAP_FIXED_NOREPLACE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.version import KernelVersion

SCANNED = Area("memory/scanned", sizes=Sizes.ONCE)

DOC = "Documentation/admin-guide/mm/pagemap.rst PAGEMAP_SCAN"
WRITTEN = f"{DOC} PM_SCAN_WP_MATCHING; Documentation/admin-guide/mm/userfaultfd.rst UFFD_FEATURE_WP_ASYNC"
SINCE = "6.7"
#: kernels that tell what has no page table as written; earlier ones told nothing of it
_HOLES_TOLD, _HOLES_TOLD_BY_BACKPORTS = KernelVersion(7, 3), (KernelVersion(6, 12, 117),)
_KINDS = Is.FILE | Is.PRESENT | Is.SWAPPED | Is.PFNZERO | Is.HUGE
#: scans that find writes, and how long these are waited for
_SEEN, _SEEN_SECONDS = 5, 60


@SCANNED.case(
    "hugetlb pages that are there are told as huge and present, those of a file as of a file, and no others",
    f"{DOC}; fs/proc/task_mmu.c pagemap_scan_hugetlb_entry()",
    since=SINCE,
    sizes=Sizes.EACH,
    pages=2,
)
def hugetlb_pages(live: Live) -> None:
    for shared in (False, True):
        memory = live.map(2, shared=shared)
        memory.touch(1)
        kind = Is.HUGE | Is.PRESENT | (Is.FILE if shared else Is(0))
        expected = [Region(live.size, 2 * live.size, kind)]
        live.expect(f"pages that are there, shared {shared}", expected, _there(live, memory))
        memory.actor.end()


@SCANNED.case(
    "hugetlb pages that are written, and no others, are told so until they are protected again",
    f"{WRITTEN}; fs/proc/task_mmu.c make_uffd_wp_huge_pte(), mm/hugetlb.c hugetlb_fault()",
    since=SINCE,
    sizes=Sizes.EACH,
    pages=3,
)
def written_hugetlb_pages(live: Live) -> None:
    for shared in (False, True):
        memory = live.map(3, shared=shared)
        memory.touch(0)
        memory.touch(1)
        _expect_writes_told(live, memory, live.size)
        memory.actor.end()
        live.expect_pool(nr=3, free=3)


@SCANNED.case(
    "a huge page is told as huge, one that is mapped in parts as present, a hole not at all, and memory in swap and a"
    " page of zeroes as what they are",
    f"{DOC}; fs/proc/task_mmu.c pagemap_scan_thp_entry(), pagemap_page_category()",
    since=SINCE,
)
def kinds_of_memory(live: Live) -> None:
    let_rest(live)
    need_swap(live, pmd_size(live))
    memory = huge_pages(live, 3)
    size, base = memory.size, live.base_page
    memory.advise(mmap.MADV_DONTNEED, 1, 1)
    memory.actor.call("munmap", memory.at(3) - base, base)
    whole = [Region(0, size, Is.HUGE | Is.PRESENT), Region(2 * size, 3 * size - base, Is.PRESENT)]
    live.expect("what is there", whole, _there(live, memory))
    live.expect("what is huge", whole[:1], scan(live, memory, Is.HUGE, _KINDS).regions)
    live.expect("what is not huge", whole[1:], scan(live, memory, Is.PRESENT, _KINDS, without=Is.HUGE).regions)
    ordinary = base_pages(live)
    swap_out(live, ordinary, ordinary.length)
    live.expect("what is in swap", [Region(0, size, Is.SWAPPED)], scan(live, ordinary, Is.SWAPPED, _KINDS).regions)
    live.set_knob(f"{DIRECTORY}/use_zero_page", "1")
    with_blocks(live, size, 1)
    expect_huge_zeroes(live, memory, 1)
    zeroes = [Region(size, 2 * size, Is.HUGE | Is.PRESENT | Is.PFNZERO)]
    found = scan(live, memory, Is.PFNZERO, _KINDS).regions
    live.expect("pages of zeroes", zeroes, found, {Quirk.HUGE_ZEROES_UNTOLD: []})


@SCANNED.case(
    "huge pages of a file are told as those of a file",
    f"{DOC} PAGE_IS_FILE; fs/proc/task_mmu.c pagemap_thp_category()",
    since=SINCE,
)
def huge_pages_of_a_file(live: Live) -> None:
    let_only_pmd_inherit(live)
    memory = filled_file(live, f"{mount_tmpfs(live, 'always')}/file", 2)
    expected = [Region(0, memory.length, Is.HUGE | Is.PRESENT | Is.FILE)]
    live.expect("what is there", expected, _there(live, memory))


@SCANNED.case(
    "huge pages and base pages that are written, and no others, are told as written until they are asked for",
    f"{WRITTEN}; fs/proc/task_mmu.c pagemap_scan_thp_entry(), mm/huge_memory.c do_huge_pmd_wp_page()",
    since=SINCE,
)
def written_pages(live: Live) -> None:
    let_rest(live)
    for make in (huge_pages, base_pages):
        memory = make(live, 3)
        memory.advise(mmap.MADV_DONTNEED, 2, 1)
        # a protected huge page is mapped in parts when it is written (12f6b01a0bcb)
        _expect_writes_told(live, memory, live.base_page)


@SCANNED.case(
    "what MADV_DONTNEED drops of protected memory is told as written, and nothing else, until a scan protects it again"
    " or a part of it: whole huge pages and parts of them, base pages, and what nobody has touched",
    f"{WRITTEN}; MADV_DONTNEED dirties; fs/proc/task_mmu.c pagemap_scan_pte_hole(), pagemap_page_category()",
    since=SINCE,
)
def dropped_pages(live: Live) -> None:
    version = live.kernel_version
    if version < _HOLES_TOLD and not version.follows_any(_HOLES_TOLD_BY_BACKPORTS):
        raise CannotRun("this kernel does not tell memory without page tables as written")
    let_rest(live)
    every = pmd_size(live) // live.base_page
    whole = (0, every), (every, 2 * every), (2 * every, 3 * every), (0, 2 * every), (0, 3 * every)
    parts = (0, 1), (every - 1, every), (every // 2, every), (every - 1, 2 * every + 1), (every, 3 * every - 1)
    for make, (first, end) in product((huge_pages, base_pages, advised), (*whole, *parts)):
        memory = make(live, 3)
        with live.about(f"{make.__name__}, base pages {first} to {end} dropped"):
            _expect_dropped_told(live, memory, first, end, is_filled=make is not advised)
        memory.actor.end()


@SCANNED.case(
    "a scan that matches a page of a pool which nobody has touched, nor what is near it, protects it: it is not told as"
    " written when it is read, and is, once, when it is written",
    f"{WRITTEN}; fs/proc/task_mmu.c pagemap_scan_pte_hole(), pagemap_scan_hugetlb_hole_wp()",
    since=SINCE,
    sizes=Sizes.EACH,
    pages=1,
)
def untouched_hugetlb_page(live: Live) -> None:
    for shared, is_read in product((False, True), (True, False)):
        actor = live.actor()
        place = place_of_a_table(live, actor)
        memory = live.map(1, actor, shared=shared, at=place, flags=MAP_FIXED_NOREPLACE)
        track_writes(memory)
        protect(live, memory, Is(0))
        with live.about(f"shared {shared}, read {is_read}"):
            live.expect("what is written when it is protected", [], told_as_written(live, memory))
            if is_read:
                memory.expect_zero()
                live.expect("what is written when it was read", [], told_as_written(live, memory))
            memory.touch()
            whole = [Region(0, live.size, Is.WRITTEN)]
            live.expect("what is written when it was", whole, told_as_written(live, memory, PROTECT))
            live.expect("what is written after that", [], told_as_written(live, memory))
            live.expect("what it holds", 1, memory.read())
        actor.end()
        live.expect_pool(nr=1, free=1)


@SCANNED.case(
    "a scan that matches pages of a pool which nobody has touched protects all of them, with or without a page table:"
    " none is told as written when all are read, and one that is written is, once",
    f"{DOC} PM_SCAN_WP_MATCHING; fs/proc/task_mmu.c pagemap_scan_pte_hole(), pagemap_scan_hugetlb_entry()",
    since=SINCE,
    sizes=Sizes.EACH,
    pages=3,
)
def untouched_hugetlb_pages(live: Live) -> None:
    told_when_read = []
    for shared in (False, True):
        actor = live.actor()
        memory = live.map(3, actor, shared=shared, at=place_of_a_table(live, actor), flags=MAP_FIXED_NOREPLACE)
        track_writes(memory)
        protect(live, memory, Is(0))
        with live.about(f"shared {shared}"):
            live.expect("what is written when they are protected", [], told_as_written(live, memory))
            memory.expect_zero(0, 3)
            told_when_read.append(told_as_written(live, memory, PROTECT))
            memory.touch(2)
            last = [Region(2 * live.size, 3 * live.size, Is.WRITTEN)]
            live.expect("what is written to page 2", last, told_as_written(live, memory, PROTECT))
            live.expect("what is written after that", [], told_as_written(live, memory))
        actor.end()
        live.expect_pool(nr=3, free=3)
    # page 0 has no page table when it is protected, and the others have that which was made for it
    others = [Region(live.size, 3 * live.size, Is.WRITTEN)]
    known = {Quirk.SCAN_LEAVES_UNTOUCHED: [others, others]}
    live.expect("what is written when private and shared pages were read", [[], []], told_when_read, known)


def _expect_dropped_told(live: Live, memory: Memory, first: int, end: int, *, is_filled: bool) -> None:
    """Drop base pages from ``first`` to ``end`` of protected memory, and expect them to be told until protected."""
    base = live.base_page
    track_writes(memory).write_protect(length=memory.length)
    live.expect("what is written before", [], told_as_written(live, memory))
    dropped = Region(first * base, end * base, Is.WRITTEN)
    memory.actor.call("madvise", memory.address + dropped.start, dropped.end - dropped.start, mmap.MADV_DONTNEED)
    live.expect("what is written", [dropped], told_as_written(live, memory))
    absent = scan(live, memory, Is.WRITTEN, Is.WRITTEN | Is.PRESENT, without=Is.PRESENT).regions
    live.expect("what is written and not present", [dropped], absent)
    most = (end - first + 1) // 2
    middle = dropped.start + most * base
    told = scan(live, memory, Is.WRITTEN, Is.WRITTEN, do=PROTECT, most=most).regions
    live.expect("what is told of the first half", [Region(dropped.start, middle, Is.WRITTEN)], told)
    rest = [Region(middle, dropped.end, Is.WRITTEN)] if middle < dropped.end else []
    live.expect("what is told of the rest", rest, told_as_written(live, memory, PROTECT))
    live.expect("what is written when all is protected", [], told_as_written(live, memory))
    last = dropped.end - base
    live.expect("the last word that was dropped", 0, memory.actor.read(memory.address + dropped.end - WORD))
    live.expect("what is written when that was read", [], told_as_written(live, memory))
    memory.actor.write(memory.address + last, 1)
    live.expect("what is written of it", [Region(last, dropped.end, Is.WRITTEN)], told_as_written(live, memory))
    if is_filled:
        changed = memory.wrong_beside(dropped.start, dropped.end)
        live.expect("words beside it that changed", 0, changed)


@SCANNED.case(
    "a scan ends when it has told as many pages or regions as it may, and says where it goes on",
    f"{DOC} max_pages, vec_len, walk_end",
    since=SINCE,
)
def limits(live: Live) -> None:
    let_rest(live)
    memory = huge_pages(live, 3)
    size, kind = memory.size, Is.HUGE | Is.PRESENT
    first = scan(live, memory, Is.PRESENT, _KINDS, most=size // live.base_page)
    live.expect("the first huge page", Scan([Region(0, size, kind)], size), first)
    rest = scan(live, memory, Is.PRESENT, _KINDS, start=first.end)
    live.expect("the rest", Scan([Region(size, 3 * size, kind)], 3 * size), rest)
    memory.advise(mmap.MADV_DONTNEED, 1, 1)
    live.expect("one region", [Region(0, size, kind)], scan(live, memory, Is.PRESENT, _KINDS, regions=1).regions)


@SCANNED.case(
    "a scan that begins within a page, or protects what nobody registered, is refused",
    f"{DOC} EINVAL, EPERM; fs/proc/task_mmu.c pagemap_scan_get_args(), pagemap_scan_test_walk()",
    since=SINCE,
)
def refused(live: Live) -> None:
    memory = huge_pages(live)
    live.expect_errno(errno.EINVAL, scan, live, memory, Is.PRESENT, Is.PRESENT, start=1)
    live.expect_errno(errno.EPERM, scan, live, memory, Is.PRESENT, Is.PRESENT, do=PROTECT)
    memory.fill()
    memory.expect_filled()


@SCANNED.case(
    "whoever copies the pages that a scan tells as written, and protects, has all that threads write meanwhile",
    f"{WRITTEN}; fs/proc/task_mmu.c pagemap_scan_thp_entry(), pagemap_scan_pmd_entry()",
    since=SINCE,
)
def written_while_they_are_scanned(live: Live) -> None:
    let_rest(live)
    for make in (huge_pages, base_pages):
        _expect_every_write_told(live, make(live, 2))


@SCANNED.case(
    "whoever copies the hugetlb pages that a scan tells as written, and protects, has all that threads write meanwhile",
    f"{WRITTEN}; fs/proc/task_mmu.c pagemap_scan_hugetlb_entry()",
    since=SINCE,
    sizes=Sizes.BUDDY,
    pages=4,
)
def written_while_hugetlb_pages_are_scanned(live: Live) -> None:
    for shared in (False, True):
        memory = live.map(4, shared=shared)
        memory.fill()
        _expect_every_write_told(live, memory)
        memory.actor.end()
        live.expect_pool(nr=4, free=4)


def _there(live: Live, memory: Memory) -> list[Region]:
    return scan(live, memory, Is.PRESENT, _KINDS).regions


def _expect_every_write_told(live: Live, memory: Memory) -> None:
    """Copy what is told as written while threads write, again and again, and expect the copy to be right at the end.

    So is memory saved of a process that goes on (Documentation/admin-guide/mm/pagemap.rst). Raises CannotRun where the
    threads wrote nothing meanwhile.
    """
    actor = memory.actor
    track_writes(memory).write_protect(length=memory.length)
    saved = actor.call("memfd_create", "saved", 0)
    actor.call("pwrite64", saved, memory.address, memory.length, 0)
    seen = 0
    with at_once(live, actor, 0) as threads:
        for _thread in range(2):
            threads.use(memory)
        end = live.host.clock() + _SEEN_SECONDS
        while seen < _SEEN and live.host.clock() < end:
            seen += _save_what_is_written(live, memory, saved)
    if seen < _SEEN:
        raise CannotRun(f"threads wrote nothing before {_SEEN} scans of {_SEEN_SECONDS} s: this machine is too busy")
    _save_what_is_written(live, memory, saved)
    copy = actor.mmap(memory.length, mmap.PROT_READ, mmap.MAP_SHARED, saved)
    live.expect("checksum of the copy", actor.sum(memory.address, memory.length), actor.sum(copy, memory.length))
    live.expect("what is written after that", [], told_as_written(live, memory))


def _save_what_is_written(live: Live, memory: Memory, saved: int) -> bool:
    """Protect what was written, and copy it to a file; return whether there was anything."""
    end, is_seen = 0, False
    while end < memory.length:
        found = scan(live, memory, Is.WRITTEN, Is.WRITTEN, do=PROTECT, start=end)
        for region in found.regions:
            length = region.end - region.start
            memory.actor.call("pwrite64", saved, memory.address + region.start, length, region.start)
        end, is_seen = found.end, is_seen or bool(found.regions)
    return is_seen


def _expect_writes_told(live: Live, memory: Memory, told: int) -> None:
    """Expect a word that is written to page 1, and to 2, which is not there yet, to be told once, as ``told`` bytes."""
    track_writes(memory).write_protect(length=memory.length)
    live.expect("what is written before", [], told_as_written(live, memory))
    for page in (1, 2):
        memory.touch(page)
        start = page * memory.size
        found = told_as_written(live, memory, PROTECT)
        live.expect(f"what is written to page {page}", [Region(start, start + told, Is.WRITTEN)], found)
        live.expect("what is written after that", [], told_as_written(live, memory))
    live.expect("what the pages hold", (1, 1), (memory.read(1), memory.read(2)))


class Scanned(LiveTest):
    def test_scanned(self) -> None:
        self.run_area(SCANNED)
