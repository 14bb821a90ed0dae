"""Transparent huge pages and base pages that a program closes: userfaultfd(2), UFFDIO_RWPROTECT (Linux 7.3)."""

import errno
import mmap
from collections.abc import Callable
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.closed_memory import (
    ASYNCHRONOUS,
    DOC,
    KINDS,
    SINCE,
    VALUE,
    close,
    expect_access,
    expect_accessed,
    expect_closed,
    expect_every_access_told,
    expect_marked,
    fill,
    filled_memory,
)
from hugepage_qa.cases.faults_of_the_kernel import expect_kernel_to_fault
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.madv_collapse import collapse, collapse_memory
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.pagemap_scan import Is, Region, scan
from hugepage_qa.cases.reached_from_outside import word_read_by
from hugepage_qa.cases.swapped import need_swap, swap_out
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import base_pages, huge_pages, huge_zeroes
from hugepage_qa.cases.thp_shared_memory import shared_base_pages, shared_huge_pages
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault, protected_pages
from hugepage_qa.kernel.uapi import MADV_COLLAPSE
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor_threads import Came

CLOSED_PAGES = Area("userfaultfd/closed-pages", sizes=Sizes.ONCE)


@CLOSED_PAGES.case(
    "an access of closed memory, a read or a write, is told and waits; when it is opened it goes on, and finds what was"
    " there, in its frame; a huge page stays one, Rss what it was, and what is not there is not closed",
    f"{DOC}, Scope of protection, Fault Handling; mm/huge_memory.c change_huge_pmd(), do_huge_pmd_uffd_rwp();"
    " mm/memory.c do_uffd_rwp()",
    since=SINCE,
)
def told(live: Live) -> None:
    let_nobody_else_act(live)
    for make in KINDS:
        with live.about(make.__name__):
            memory = fill(make(live, 2))
            memory.advise(mmap.MADV_REMOVE if make is shared_base_pages else mmap.MADV_DONTNEED, 1, 1)
            before = memory.smaps()
            fault = close(memory, waits=True)
            expect_marked(live, memory, (0, memory.size))
            after = memory.smaps()
            for name in ("Rss", "AnonHugePages"):
                live.expect(f"{name} when it is closed", before.fields[name], after.fields[name])
            expect_access(live, memory, memory.size, writes=False, value=0)
            fault.expect_nothing_told(live)
            first = memory.part(0)
            expect_every_access_told(live, first, fault, live.base_page)
            if make is huge_pages:
                live.expect("AnonHugePages in the end", before.anon_huge_pages, memory.smaps(0).anon_huge_pages)
            memory.actor.end()


@CLOSED_PAGES.case(
    "shared memory in huge pages is closed as any other: an access is told, and what is there stays in its frames",
    f"{DOC}: works on anonymous, shmem, and hugetlbfs memory; Protecting and Unprotecting: pages stay resident",
    since=SINCE,
)
def shared_huge(live: Live) -> None:
    let_nobody_else_act(live)
    memory = fill(shared_huge_pages(live))
    fault = close(memory, waits=True)
    found = len(protected_pages(memory)), memory.smaps().rss
    wanted = memory.size // live.base_page, memory.size
    live.expect("base pages that are closed, and Rss", wanted, found, {Quirk.CLOSING_UNMAPS_SHARED: (0, 0)})
    expect_every_access_told(live, memory, fault, live.base_page)


@CLOSED_PAGES.case(
    "where faults are asynchronous an access opens the huge page that it is in, or of what is mapped in parts the base"
    " page, and no other; pagemap and its scans tell what was accessed, read or written, and by another process, too",
    f"{DOC}, Fault Handling, Working-set detection with PAGEMAP_SCAN; mm/huge_memory.c do_huge_pmd_uffd_rwp();"
    " mm/memory.c do_uffd_rwp(); fs/proc/task_mmu.c pagemap_thp_category(), pagemap_page_category();"
    " Documentation/admin-guide/mm/pagemap.rst PAGE_IS_ACCESSED, bit 57",
    since=SINCE,
)
def opened_by_accesses(live: Live) -> None:
    let_nobody_else_act(live)
    for make, how in product(KINDS, ("read", "written", "read from outside")):
        memory = fill(make(live, 2))
        unit = memory.size if make is huge_pages else live.base_page
        with live.about(f"{make.__name__}, {how}"):
            fault = Userfault(memory, Mode.READ_WRITE_PROTECTED, ASYNCHRONOUS, waits=True, of_kernel=True)
            fault.read_write_protect(length=memory.length)
            expect_accessed(live, memory)
            expect_marked(live, memory, (0, memory.length))
            place = memory.size // 2
            if how == "read from outside":
                found = word_read_by(live, live.actor(), memory, place)
                live.expect("word that another process reads", VALUE + place, found)
            else:
                expect_access(live, memory, place, writes=how == "written")
            start = place // unit * unit
            opened = start, start + unit
            closed = [(first, end) for first, end in ((0, start), (opened[1], memory.length)) if first < end]
            expect_marked(live, memory, *closed)
            expect_accessed(live, memory, opened)
            untouched = scan(live, memory, Is.PRESENT, Is.PRESENT, without=Is.ACCESSED).regions
            live.expect("what was not accessed", [Region(*part, Is.PRESENT) for part in closed], untouched)
            fault.read_write_protect(length=memory.length)
            expect_accessed(live, memory)
            fault.read_write_protect(on=False, length=memory.length)
            expect_accessed(live, memory, (0, memory.length))
            fault.expect_nothing_told(live)
            memory.expect_filled(VALUE)
        memory.actor.end()


@CLOSED_PAGES.case(
    "a part of a huge page, at either end, in the middle or across two, is closed alone, and opened alone",
    f"{DOC}, Protecting and Unprotecting; mm/mprotect.c change_pmd_range(), change_present_ptes();"
    " mm/huge_memory.c __split_huge_pmd_locked()",
    since=SINCE,
)
def parts(live: Live) -> None:
    let_nobody_else_act(live)
    base, size = live.base_page, pmd_size(live)
    for make, on in product(KINDS, (True, False)):
        for start, end in ((0, base), (size - base, size), (size // 2, size), (size - base, size + base)):
            with filled_memory(live, make, f"bytes {start} to {end}, closed {on}") as memory:
                fault = close(memory)
                fault.read_write_protect(on=not on, length=memory.length)
                fault.read_write_protect(on=on, offset=start, length=end - start)
                rest = (0, start), (end, memory.length)
                expect_closed(live, memory, *([(start, end)] if on else [one for one in rest if one[0] < one[1]]))
                fault.read_write_protect(on=False, length=memory.length)
                memory.expect_filled(VALUE)


@CLOSED_PAGES.case(
    "a huge page of zeroes is closed as any other, and stays so when a part of it is given back, or protected by"
    " mprotect(2) for a time; opened, it is zero, and written it is another one",
    f"{DOC}; mm/huge_memory.c change_huge_pmd(), __split_huge_zero_page_pmd()",
    since=SINCE,
)
def closed_zeroes(live: Live) -> None:
    let_nobody_else_act(live)
    base, half = live.base_page, pmd_size(live) // 2
    for part in (False, True):
        memory = huge_zeroes(live)
        with live.about(f"in parts {part}"):
            fault = close(memory)
            if part:
                for prot in (mmap.PROT_READ, READ_WRITE):
                    memory.actor.call("mprotect", memory.address + half, base, prot)
            expect_marked(live, memory, (0, memory.size))
            for place, writes in product((0, half, memory.size - base), (False, True)):
                expect_access(live, memory, place, Came.SIGBUS, writes=writes, value=0)
            fault.read_write_protect(on=False)
            memory.expect_zero()
            fill(memory)
            fault.read_write_protect()
            expect_closed(live, memory, (0, memory.size))
            fault.read_write_protect(on=False)
            memory.expect_filled(VALUE)
        memory.actor.end()


@CLOSED_PAGES.case(
    "MADV_COLLAPSE refuses base pages of which one is closed, there or in swap, and it stays so; opened, they are huge",
    f"{DOC}; mm/khugepaged.c collapse_scan_pmd()",
    since=SINCE,
)
def collapsed(live: Live) -> None:
    let_nobody_else_act(live)
    need_swap(live, pmd_size(live))
    for in_swap in (False, True):
        memory = fill(base_pages(live))
        half, base = memory.size // 2, live.base_page
        with live.about(f"in swap {in_swap}"):
            fault = close(memory)
            fault.read_write_protect(on=False, length=half)
            fault.read_write_protect(on=False, offset=half + base, length=half - base)
            if in_swap:
                swap_out(live, memory, memory.length)
            live.expect_errno(errno.EINVAL, collapse, live, partial(memory.advise, MADV_COLLAPSE))
            memory.expect_huge(0, about="while one is closed")
            expect_closed(live, memory, (half, half + base))
            fault.read_write_protect(on=False)
            collapse_memory(live, memory)
            memory.expect_huge(about="when none is")
            expect_closed(live, memory)
            memory.expect_filled(VALUE)
        memory.actor.end()


@CLOSED_PAGES.case(
    "a program is told of accesses by the kernel for a process if it may, and they are EFAULT otherwise",
    f"{DOC}; include/linux/mm.h gup_can_follow_protnone(); userfaultfd(2) UFFD_USER_MODE_ONLY",
    since=SINCE,
)
def accessed_by_the_kernel(live: Live) -> None:
    let_nobody_else_act(live)
    for make in KINDS:
        with live.about(make.__name__):
            expect_kernel_to_fault(live, partial(_new, live, make), Mode.READ_WRITE_PROTECTED, Feature.RWP)


def _new(live: Live, make: Callable[[Live, int], Memory]) -> Memory:
    return make(live, 1)


class ClosedPages(LiveTest):
    def test_closed_pages(self) -> None:
        self.run_area(CLOSED_PAGES)
