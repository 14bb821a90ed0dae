"""Closed transparent huge pages and base pages that change: by advice, khugepaged, an end of swap, into own copies."""

import errno
import mmap
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.closed_memory import (
    DOC,
    KINDS,
    PRIVATE_KINDS,
    SINCE,
    VALUE,
    close,
    close_first,
    expect_access,
    expect_accessed,
    expect_closed,
    expect_marked,
    expect_shared_still_closed,
    fill,
    filled_memory,
)
from hugepage_qa.cases.closed_while_others_act import expect_own_copy
from hugepage_qa.cases.khugepaged_clock import await_scans, let_nobody_else_act
from hugepage_qa.cases.khugepaged_work import expect_collapse, put_to_work
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.madv_collapse import collapse_memory
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.process_counters import faults
from hugepage_qa.cases.swapped import need_swap, only_swap, page_all_out, swap_out, swapped
from hugepage_qa.cases.thp_memory import free_lazily, let_nothing_be_balanced, pmd_size, room_for
from hugepage_qa.cases.thp_policy import base_pages
from hugepage_qa.cases.thp_shared_memory import map_start, nameless_file
from hugepage_qa.cases.userfaultfd import Feature, Userfault
from hugepage_qa.kernel.uapi import MADV_COLD, MADV_POPULATE_READ, MADV_POPULATE_WRITE, MAP_FIXED
from hugepage_qa.plugins.avocado_test import LiveTest

CLOSED_AND_CHANGED = Area("userfaultfd/closed-and-changed", sizes=Sizes.ONCE)


@CLOSED_AND_CHANGED.case(
    "khugepaged leaves base pages as they are of which one is closed, and makes huge pages of those beside them;"
    " opened, these are huge, too",
    f"{DOC}; mm/khugepaged.c collapse_scan_pmd()",
    since=SINCE,
)
def left_by_khugepaged(live: Live) -> None:
    let_nobody_else_act(live)
    memory = fill(base_pages(live, 4))
    size, base = memory.size, live.base_page
    closed = (0, base), (size + size // 2, size + size // 2 + base), (3 * size - base, 3 * size)
    fault = close(memory)
    fault.read_write_protect(on=False, length=memory.length)
    for start, end in closed:
        fault.read_write_protect(offset=start, length=end - start)
    put_to_work(live)
    expect_collapse(live, memory, size)
    await_scans(live)
    live.expect("AnonHugePages where one of each is closed", size, memory.smaps().anon_huge_pages)
    expect_closed(live, memory, *closed)
    fault.read_write_protect(on=False, length=memory.length)
    expect_collapse(live, memory, memory.length)
    expect_closed(live, memory)
    memory.expect_filled(VALUE)


@CLOSED_AND_CHANGED.case(
    "base pages of shared memory that are closed stay so when MADV_COLLAPSE for another mapping of them, or by another"
    " process, has made a huge page of them, and what is not is open",
    f"{DOC}, Scope of protection; mm/khugepaged.c collapse_file(), file_backed_vma_is_retractable(); mm/rmap.c"
    " try_to_unmap_one()",
    since=SINCE,
)
def collapsed_for_another_mapping(live: Live) -> None:
    let_nobody_else_act(live)
    size = pmd_size(live)
    for by_child, closed in product((False, True), (size, live.base_page)):
        actor = live.actor()
        file = nameless_file(live, actor, "never")
        memory, other = fill(map_start(live, actor, file)), map_start(live, actor, file)
        if by_child:
            other = other.seen_by(actor.fork())
        with live.about(f"by a child {by_child}, {closed} bytes closed"):
            fault = close(memory)
            fault.read_write_protect(on=False)
            fault.read_write_protect(length=closed)
            other.expect_filled(VALUE)
            collapse_memory(live, other)
            live.expect("ShmemPmdMapped of the other mapping", size, other.smaps().shmem_pmd_mapped)
            expect_shared_still_closed(live, memory, (0, closed))
            fault.read_write_protect(on=False)
            memory.expect_filled(VALUE)
        actor.end()


@CLOSED_AND_CHANGED.case(
    "what is closed stays so when it is said to be cold or to be needed, in swap or not, and MADV_POPULATE_* is EFAULT"
    " for it; where faults are asynchronous that opens it",
    f"{DOC}; madvise(2) MADV_COLD, MADV_WILLNEED, MADV_POPULATE_READ; mm/madvise.c"
    " madvise_cold_or_pageout_pte_range(), mm/memory.c do_swap_page()",
    since=SINCE,
)
def advised_while_closed(live: Live) -> None:
    let_nobody_else_act(live)
    need_swap(live, 2 * pmd_size(live))
    for make in KINDS:
        with filled_memory(live, make) as memory:
            fault = close_first(memory)
            for in_swap in (False, True) if make in PRIVATE_KINDS else (False,):
                if in_swap:
                    swap_out(live, memory, memory.length)
                for advice in (MADV_COLD, mmap.MADV_WILLNEED):
                    memory.advise(advice)
                for advice in (MADV_POPULATE_READ, MADV_POPULATE_WRITE):
                    live.expect_errno(errno.EFAULT, memory.advise, advice, 0, 1)
                expect_closed(live, memory, (0, memory.size))
            fault.set_mode(Feature.RWP_ASYNC, 0)
            for advice in (MADV_POPULATE_READ, MADV_POPULATE_WRITE):
                fault.read_write_protect(length=memory.length)
                memory.advise(advice, 0, 1)
                expect_accessed(live, memory, (0, memory.size))
                expect_marked(live, memory, (memory.size, memory.length))
            memory.expect_filled(VALUE)


@CLOSED_AND_CHANGED.case(
    "what is closed and may be freed lazily stays closed until it is gone, and is zero and open then; what was opened"
    " and written before stays",
    f"{DOC}; madvise(2) MADV_FREE; mm/madvise.c madvise_free_pte_range(), mm/huge_memory.c madvise_free_huge_pmd();"
    " mm/rmap.c try_to_unmap_one()",
    since=SINCE,
)
def freed_lazily(live: Live) -> None:
    let_nobody_else_act(live)
    need_swap(live, 2 * pmd_size(live))
    for make in PRIVATE_KINDS:
        with filled_memory(live, make) as memory:
            fault = close(memory)
            live.host.wait_until(partial(free_lazily, live, memory))
            live.expect("LazyFree", memory.length, memory.smaps().fields["LazyFree"])
            expect_marked(live, memory, (0, memory.length))
            fault.read_write_protect(on=False)
            memory.actor.fill(memory.address, memory.size, memory.step, VALUE)
            expect_closed(live, memory, (memory.size, memory.length))
            page_all_out(live, memory)
            expect_marked(live, memory)
            expect_access(live, memory, memory.size, writes=False, value=0)
            memory.expect_filled(VALUE, pages=1)
            memory.expect_zero(1)


@CLOSED_AND_CHANGED.case(
    "what is closed in swap stays so when swap is switched off, and it comes back for that; what was open is open",
    f"{DOC}, Scope of protection; swapoff(2); mm/swapfile.c unuse_pte()",
    since=SINCE,
)
def swap_switched_off(live: Live) -> None:
    let_nobody_else_act(live)
    for make in PRIVATE_KINDS:
        with filled_memory(live, make) as memory:
            switch_off = only_swap(live, 4 * memory.length)
            fault = close_first(memory)
            swap_out(live, memory, memory.length)
            switch_off()
            live.expect("memory in swap", 0, swapped(memory))
            expect_accessed(live, memory, (memory.size, memory.length))
            expect_closed(live, memory, (0, memory.size))
            fault.read_write_protect(on=False)
            memory.expect_filled(VALUE)


@CLOSED_AND_CHANGED.case(
    "what is written into closed memory of a private mapping of a file, in huge pages or not, once it is open is its"
    " own copy, and what the file has stays; such copies are closed as any memory",
    f"{DOC}, Setup; mmap(2) MAP_PRIVATE; mm/memory.c do_uffd_rwp(), do_wp_page(); mm/mprotect.c change_present_ptes()",
    since=SINCE,
)
def private_mapping(live: Live) -> None:
    let_nobody_else_act(live)
    size = pmd_size(live)
    for huge in ("never", "always"):
        actor = live.actor()
        file = nameless_file(live, actor, huge)
        shared = fill(map_start(live, actor, file, 2))
        # what is mapped whole is unmapped when it is closed (closing-unmaps-shared)
        address = room_for(actor, 3, size) + live.base_page
        actor.mmap(2 * size, READ_WRITE, mmap.MAP_PRIVATE | MAP_FIXED, file, address=address)
        with live.about(f"huge={huge}"):
            expect_own_copy(live, shared, Memory(live, actor, address, 2, size))
        actor.end()


@CLOSED_AND_CHANGED.case(
    "what was closed and is open again is accessed without a fault: opened by its program or registered no more, moved"
    " by whole huge pages or not where its program was not asked to be told of that, and in a child",
    f"{DOC}; mm/memory.c __copy_present_ptes(); mm/mremap.c move_ptes(), mm/huge_memory.c move_huge_pmd(),"
    " copy_huge_pmd(), change_huge_pmd()",
    since=SINCE,
)
def opened_without_a_fault(live: Live) -> None:
    let_nobody_else_act(live)
    # who waits for a fault to know where memory is used lets it be one
    let_nothing_be_balanced(live)
    for make, (way, become_open) in product(KINDS, _WAYS.items()):
        if way == "in a child" and make not in PRIVATE_KINDS:
            continue  # a child has no page tables of shared memory
        found = live.host.last_attempt(partial(_faults_when_open, live, make, way, become_open), (0).__eq__)
        live.expect(f"faults of who reads what is open, {make.__name__}, {way}", 0, found)


def _faults_when_open(
    live: Live, make: Callable[[Live, int], Memory], way: str, become_open: Callable[[Userfault, Memory], Memory]
) -> int:
    with filled_memory(live, make, way) as memory:
        there = become_open(close_first(memory), memory)
        # pages of its program that the process has not run yet are faults, too
        there.expect_filled(VALUE, 1, 1)
        before = faults(live, there.actor)
        there.expect_filled(VALUE, 0, 1)
        return faults(live, there.actor).minor - before.minor


def _opened(fault: Userfault, memory: Memory) -> Memory:
    fault.read_write_protect(on=False)
    return memory


def _unregistered(fault: Userfault, memory: Memory) -> Memory:
    fault.unregister()
    return memory


def _moved(_fault: Userfault, memory: Memory, shift: int = 0) -> Memory:
    return memory.moved_to(room_for(memory.actor, 3, memory.size) + shift)


def _in_a_child(_fault: Userfault, memory: Memory) -> Memory:
    return memory.fork()


#: of what a program closed how it comes to be open, and where it is then
_WAYS: Mapping[str, Callable[[Userfault, Memory], Memory]] = {
    "opened": _opened,
    "registered no more": _unregistered,
    "moved by whole huge pages": _moved,
    # by half a huge page, which is a multiple of each base page
    "moved otherwise": lambda fault, memory: _moved(fault, memory, memory.size // 2),
    "in a child": _in_a_child,
}


class ClosedAndChanged(LiveTest):
    def test_closed_and_changed(self) -> None:
        self.run_area(CLOSED_AND_CHANGED)
