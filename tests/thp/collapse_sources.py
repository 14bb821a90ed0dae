"""What huge pages of a process are made of: pieces of others, and smaller ones; by khugepaged and by advice."""

import errno
import mmap
from collections.abc import Iterator
from functools import partial
from operator import eq

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import expect_no_shortage
from hugepage_qa.cases.khugepaged_clock import KHUGEPAGED, let_nobody_else_act, quicken
from hugepage_qa.cases.khugepaged_work import COLLAPSE_SINCE, expect_collapse, put_to_sleep, put_to_work
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.lru_batches import drain_lru_batches
from hugepage_qa.cases.madv_collapse import collapse_memory
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.memory_policy import run_on
from hugepage_qa.cases.thp_memory import map_aligned, mapped_huge, pmd_size
from hugepage_qa.cases.thp_policy import advised, huge_pages, need_sizes, set_policy, smaller_sizes
from hugepage_qa.kernel.process_status import read_process_status
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.kernel.uapi import (
    MADV_COLLAPSE,
    MADV_HUGEPAGE,
    MADV_NOHUGEPAGE,
    MREMAP_FIXED,
    MREMAP_MAYMOVE,
)
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused

SOURCES = Area("thp/collapse-sources", sizes=Sizes.ONCE, uncleared=True)

DOC = f"{THP_DOC} Khugepaged controls"
COLLAPSE = "madvise(2) MADV_COLLAPSE"
SCAN = "mm/khugepaged.c hpage_collapse_scan_pmd(), collapse_scan_pmd()"
_NEW_VALUE = 77


@SOURCES.case(
    "a huge page that is mapped as base pages is made one that is mapped as a whole, and holds what it held",
    f"{DOC}; {COLLAPSE}; {SCAN}",
    since="5.8",
)
def a_huge_page_in_parts(live: Live) -> None:
    for by_advice in _ways(live):
        memory = huge_pages(live, 2)
        for prot in (mmap.PROT_READ, READ_WRITE):
            memory.actor.call("mprotect", memory.address + live.base_page, live.base_page, prot)
        memory.expect_huge(1, about="of the page behind it")
        _make_huge(live, memory, by_advice)
        memory.expect_filled()


@SOURCES.case(
    "a child makes a huge page of its own of one that it shares with its parent and has mapped as base pages",
    f"{DOC} max_ptes_shared; {COLLAPSE}; fork(2); {SCAN}",
    since="5.8",
)
def a_shared_huge_page_in_parts(live: Live) -> None:
    for by_advice in _ways(live):
        live.set_knob(f"{KHUGEPAGED}/max_ptes_shared", str(pmd_size(live) // live.base_page - 1))
        parent = huge_pages(live)
        child = parent.fork()
        # a page of its own, and by it all others as base pages
        child.touch(value=_NEW_VALUE)
        child.expect_huge(0, about="of the child before")
        _make_huge(live, child, by_advice)
        parent.expect_huge(about="of the parent")
        parent.expect_filled()
        child.touch()
        child.expect_filled()
        child.fill(_NEW_VALUE)
        parent.expect_filled()


@SOURCES.case(
    "pieces of two huge pages that lie side by side are made one, and hold what they held; so does the rest of the two",
    f"{DOC}; {COLLAPSE}; {SCAN}, __collapse_huge_page_copy()",
    since="5.8",
)
def pieces_of_two_huge_pages(live: Live) -> None:
    for by_advice in _ways(live):
        memory = huge_pages(live, 2)
        half, actor = memory.size // 2, memory.actor
        room = actor.mmap(3 * memory.size, 0, mmap.MAP_ANONYMOUS | mmap.MAP_PRIVATE)
        target = -(-room // memory.size) * memory.size
        flags = MREMAP_MAYMOVE | MREMAP_FIXED
        actor.call("mremap", memory.address + half, memory.size, memory.size, flags, target)
        pieces = Memory(live, actor, target, 1, memory.size)
        pieces.expect_huge(0, about="of pieces")
        _make_huge(live, pieces, by_advice)
        pieces.expect_filled(1 + half)
        wrong = actor.check(memory.address, half, WORD, 1) + actor.check(
            memory.address + 3 * half, half, WORD, 1 + 3 * half
        )
        live.expect("words of the rest that changed", 0, wrong)


@SOURCES.case(
    "huge pages of a smaller size are made one of PMD size, and hold what they held",
    f"{DOC}; {COLLAPSE}; {SCAN}",
    since="6.10",
)
def pages_of_a_smaller_size(live: Live) -> None:
    sizes = need_sizes(smaller_sizes(live))
    for (size, path), by_advice in ((one, way) for one in (sizes[0], sizes[-1]) for way in _ways(live)):
        set_policy(live, "madvise", pmd="never")
        live.set_knob(f"{path}/enabled", "madvise")
        memory = advised(live)
        before = _faults(live, path)
        memory.fill()
        given = _faults(live, path) - before
        if given < memory.length // size:
            expect_no_shortage(live, size, memory.length // size)
        live.expect(f"faults that took {size >> 10} kB", memory.length // size, min(given, memory.length // size))
        set_policy(live, "madvise")
        # a process comes to khugepaged's list by advice that is new, for memory that was touched before
        for advice in (MADV_NOHUGEPAGE, MADV_HUGEPAGE):
            memory.advise(advice)
        _make_huge(live, memory, by_advice)
        memory.expect_filled()
        memory.actor.end()


@SOURCES.case(
    "base pages that another processor has touched of late, or freed and written, are made a huge page, which holds"
    " what they held: at once, whatever that processor keeps in batches, private memory and shared memory",
    f"{COLLAPSE}; madvise(2) MADV_FREE; mm/khugepaged.c madvise_collapse() lru_add_drain_all()",
    since="6.1",  # MADV_COLLAPSE
)
def pages_of_another_processor(live: Live) -> None:
    let_nobody_else_act(live)
    for shared, is_freed in ((False, False), (False, True), (True, False)):
        with live.about(
            f"{'shared' if shared else 'private'} memory, {'freed and written' if is_freed else 'touched'}"
        ):
            # who tries again while a page is busy (EAGAIN) gives that processor time to empty its batches
            attempt = partial(_collapse_elsewhere, live, shared=shared, is_freed=is_freed)
            refused = live.host.last_attempt(attempt, partial(eq, None))
            live.expect("errno of MADV_COLLAPSE each time", None, refused)


def _collapse_elsewhere(live: Live, *, shared: bool, is_freed: bool) -> int | None:
    """Collapse memory of which another processor has the last base page in a batch, and return errno if it is busy.

    Raises CannotRun where the process may run on one processor alone, and where memory is too fragmented.
    """
    actor = live.actor()
    status = read_process_status(live.host, actor.pid)
    if status is None or len(status.cpus) < 2:
        raise CannotRun("processes of the suite may run on one processor alone")
    memory = map_aligned(live, 1, pmd_size(live), shared=shared, actor=actor)
    last = memory.size - live.base_page
    memory.fill_part(0, memory.size if is_freed else last)
    drain_lru_batches(live, actor)
    run_on(actor, status.cpus[:1])
    if is_freed:
        actor.call("madvise", memory.address + last, live.base_page, mmap.MADV_FREE)
    memory.fill_part(last, live.base_page)
    run_on(actor, status.cpus[1:2])
    refused = _refusal(live, memory)
    if refused is None:
        live.expect("bytes in huge pages", memory.length, mapped_huge(memory))
    memory.expect_filled()
    actor.end()
    return refused


def _refusal(live: Live, memory: Memory) -> int | None:
    """Give MADV_COLLAPSE once, and return errno if a base page is busy. Raises as ``collapse_memory`` does."""
    try:
        memory.advise(MADV_COLLAPSE)
    except Refused as refusal:
        if refusal.errno in (errno.EAGAIN, errno.EBUSY):
            return refusal.errno
        # who finds no free block is told why
        collapse_memory(live, memory)
    return None


def _ways(live: Live) -> Iterator[bool]:
    """Yield whether advice (since Linux 6.1) makes huge pages, or khugepaged, which sleeps until ``_make_huge``."""
    for by_advice in (False, True) if live.kernel_version >= COLLAPSE_SINCE else (False,):
        put_to_work(live)
        put_to_sleep(live)
        yield by_advice


def _make_huge(live: Live, memory: Memory, by_advice: bool) -> None:
    """Expect ``memory`` to be made huge. Raises CannotRun where it is too fragmented for that."""
    if by_advice:
        collapse_memory(live, memory)
        memory.expect_huge(about="after MADV_COLLAPSE")
    else:
        quicken(live)
        expect_collapse(live, memory, memory.length)


def _faults(live: Live, path: str) -> int:
    return read_integer(ObservedTree(live.host), f"{path}/stats/anon_fault_alloc") or 0


class ThpCollapseSources(LiveTest):
    def test_collapse_sources(self) -> None:
        self.run_area(SOURCES)
