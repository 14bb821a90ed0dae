"""Closed transparent huge pages and base pages that change: by advice, khugepaged, an end of swap, into own copies."""

import errno
import mmap
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
from hugepage_qa.cases.swapped import need_swap, only_swap, page_all_out, swap_out, swapped
from hugepage_qa.cases.thp_memory import free_lazily, pmd_size, room_for
from hugepage_qa.cases.thp_policy import base_pages
from hugepage_qa.cases.thp_shared_memory import map_start, nameless_file
from hugepage_qa.cases.userfaultfd import Feature
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


class ClosedAndChanged(LiveTest):
    def test_closed_and_changed(self) -> None:
        self.run_area(CLOSED_AND_CHANGED)
