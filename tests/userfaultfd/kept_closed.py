"""Transparent huge pages and base pages that a program has closed: what stays closed, and what is open again."""

import mmap
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.closed_memory import (
    ASYNCHRONOUS,
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
    expect_closed_anew,
    expect_marked,
    expect_open_at_last,
    expect_shared_still_closed,
    fill,
    filled_memory,
)
from hugepage_qa.cases.debugfs import expect_split
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.cases.swapped import need_swap, page_all_out, swap_out
from hugepage_qa.cases.thp_memory import pmd_size, room_for
from hugepage_qa.cases.thp_nodes import expect_moved_between
from hugepage_qa.cases.thp_policy import huge_pages, mapped_in_parts
from hugepage_qa.cases.thp_shared_memory import shared_base_pages
from hugepage_qa.cases.userfaultfd import Feature
from hugepage_qa.kernel.uapi import PROT_NONE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor_threads import Came

KEPT_CLOSED = Area("userfaultfd/kept-closed", sizes=Sizes.ONCE)

_NEW_VALUE = 1 << 41


@KEPT_CLOSED.case(
    "what is closed stays so when mprotect(2) forbids to write or to access it, or a part of it, and allows it again,"
    " and so is what is closed meanwhile; what is opened meanwhile can be accessed then",
    f"{DOC}; mm/huge_memory.c change_huge_pmd(); mm/mprotect.c change_present_ptes()",
    since=SINCE,
)
def protected_by_others(live: Live) -> None:
    let_nobody_else_act(live)
    came = {mmap.PROT_READ: (Came.SIGBUS, Came.SIGSEGV), PROT_NONE: (Came.SIGSEGV, Came.SIGSEGV)}
    base, size = live.base_page, pmd_size(live)
    for make, prot, before in product(KINDS, came, (True, False)):
        for start, length in ((0, size), (0, base), (size // 2, 2 * base)):
            memory = fill(make(live))
            about = f"{make.__name__}, protection {prot:#x}, {length} bytes from {start} on, closed before it {before}"
            with live.about(about):
                fault = close(memory)
                if not before:
                    fault.read_write_protect(on=False)
                protect = partial(memory.actor.call, "mprotect", memory.address + start, length)
                protect(prot)
                fault.read_write_protect()
                for writes in (False, True):
                    expect_access(live, memory, start, came[prot][writes], writes=writes)
                protect(READ_WRITE)
                expect_closed(live, memory, (0, size))
                protect(prot)
                fault.read_write_protect(on=False)
                protect(READ_WRITE)
                expect_closed(live, memory)
                memory.expect_filled(VALUE)
            memory.actor.end()


@KEPT_CLOSED.case(
    "huge pages that are split, or mapped in parts since a part is unmapped or given back, stay closed where they are"
    " left; what is given back is not closed any more",
    f"{DOC}, Scope of protection; mm/huge_memory.c __split_huge_pmd_locked(), remap_page()",
    since=SINCE,
)
def split(live: Live) -> None:
    let_nobody_else_act(live)
    for make in (huge_pages, mapped_in_parts):
        with filled_memory(live, make) as memory:
            fault = close(memory)
            expect_split(live, f"{memory.actor.pid},{memory.address:#x},{memory.at(2):#x}", 2)
            expect_accessed(live, memory)
            expect_closed(live, memory, (0, memory.length))
            fault.read_write_protect(on=False, length=memory.length)
            memory.expect_filled(VALUE)
    base, size = live.base_page, pmd_size(live)
    for make, (start, end) in product(KINDS, ((0, base), (size // 2, size), (size - base, size))):
        memory = fill(make(live))
        with live.about(f"{make.__name__}, given back from {start} to {end}"):
            close(memory)
            advice = mmap.MADV_REMOVE if make is shared_base_pages else mmap.MADV_DONTNEED
            memory.actor.call("madvise", memory.address + start, end - start, advice)
            rest = [one for one in ((0, start), (end, size)) if one[0] < one[1]]
            expect_marked(live, memory, *rest)
            expect_access(live, memory, start, writes=False, value=0)
            expect_access(live, memory, start, writes=True)
            expect_marked(live, memory, *rest)
        memory.actor.end()


@KEPT_CLOSED.case(
    "what is closed stays so in swap and when it comes back, which an access has it do that is told; what was accessed"
    " is told as accessed in swap, too, and nothing else is",
    f"{DOC}, Scope of protection: page reclaim; PAGE_IS_ACCESSED whether it is still present or swapped out;"
    " mm/rmap.c try_to_unmap_one(), mm/memory.c do_swap_page()",
    since=SINCE,
)
def closed_in_swap(live: Live) -> None:
    let_nobody_else_act(live)
    need_swap(live, 2 * pmd_size(live))
    for make in PRIVATE_KINDS:
        with filled_memory(live, make) as memory:
            fault = close_first(memory)
            swap_out(live, memory, memory.length)
            expect_marked(live, memory, (0, memory.size))
            expect_accessed(live, memory, (memory.size, memory.length))
            expect_closed(live, memory, (0, memory.size))
            fault.read_write_protect(on=False)
            swap_out(live, memory, memory.length)
            # closed where it is, and not only what is there
            expect_closed_anew(live, memory, fault)


@KEPT_CLOSED.case(
    "base pages of shared memory that are closed stay so when they are reclaimed, though no swap entry is in their"
    " place, and when they come back, which an access has them do that is told; what was open is open",
    f"{DOC}, Scope of protection: preserved across page reclaim; mm/rmap.c try_to_unmap_one(), mm/memory.c"
    " cond_install_uffd_wp_ptes()",
    since=SINCE,
)
def shared_and_reclaimed(live: Live) -> None:
    let_nobody_else_act(live)
    need_swap(live, 2 * pmd_size(live))
    memory = fill(shared_base_pages(live, 2))
    fault = close_first(memory)
    expect_marked(live, memory, (0, memory.size))
    page_all_out(live, memory)
    expect_shared_still_closed(live, memory, (0, memory.size))
    fault.read_write_protect(on=False)
    expect_closed(live, memory)
    memory.expect_filled(VALUE)
    memory.actor.end()


@KEPT_CLOSED.case(
    "what is closed stays so when it moves to another node, a huge page as a whole or mapped in parts, and what is open"
    " stays open",
    f"{DOC}, Scope of protection: migration entries; mm/huge_memory.c remove_migration_pmd(), mm/migrate.c"
    " remove_migration_pte()",
    since=SINCE,
    nodes=2,
)
def moved_to_another_node(live: Live) -> None:
    let_nobody_else_act(live)
    first, second = live.nodes[:2]
    need_memory(live, (first, second), 2 * pmd_size(live))
    for make in KINDS:
        with filled_memory(live, make) as memory:
            close_first(memory)
            # the first time they may be there already
            for old, new in ((second, first), (first, second)):
                expect_moved_between(live, memory, old, new)
                expect_accessed(live, memory, (memory.size, memory.length))
                expect_closed(live, memory, (0, memory.size))


@KEPT_CLOSED.case(
    "after fork() what a child has is open, in swap or not: it reads and writes it; in the parent what was closed stays"
    " so, and of what was open none writes what the other one has",
    f"{DOC}; mm/huge_memory.c copy_huge_pmd(), mm/memory.c __copy_present_ptes(), copy_nonpresent_pte()",
    since=SINCE,
)
def closed_before_a_child(live: Live) -> None:
    let_nobody_else_act(live)
    need_swap(live, 2 * pmd_size(live))
    for make, in_swap in product(PRIVATE_KINDS, (False, True)):
        with filled_memory(live, make, f"in swap {in_swap}") as memory:
            fault = close_first(memory)
            if in_swap:
                swap_out(live, memory, memory.length)
            child = memory.fork()
            memory.touch(1, _NEW_VALUE)
            live.expect("what a child has", VALUE + memory.size, child.read(1))
            memory.touch(1, VALUE + memory.size)
            expect_closed(live, child)
            child.expect_filled(VALUE)
            child.fill(_NEW_VALUE)
            expect_closed(live, memory, (0, memory.size))
            fault.read_write_protect(on=False)
            memory.expect_filled(VALUE)
            child.expect_filled(_NEW_VALUE)


@KEPT_CLOSED.case(
    "what a program is told of no more is open, each access of it is done: a part that is unregistered alone, all of"
    " it, and what was of a userfaultfd that is closed; registered anew it is open still",
    f"{DOC}, Cleanup; mm/userfaultfd.c userfaultfd_clear_vma()",
    since=SINCE,
)
def told_no_more(live: Live) -> None:
    let_nobody_else_act(live)
    for make in KINDS:
        with filled_memory(live, make) as memory:
            half, fault = memory.size // 2, close(memory)
            fault.unregister(1)
            expect_closed(live, memory, (0, memory.size))
            fault.unregister(0, offset=half)
            expect_closed(live, memory, (0, half))
            expect_open_at_last(live, memory, fault)


@KEPT_CLOSED.case(
    "what was closed is open where mremap(2) has moved it, by whole huge pages or not, in swap or not: each access of"
    " it is done, and finds what was there; the program was not asked to be told of it",
    f"{DOC}; mm/mremap.c move_ptes(), mm/huge_memory.c move_huge_pmd(); UFFD_FEATURE_EVENT_REMAP",
    since=SINCE,
)
def closed_and_moved(live: Live) -> None:
    let_nobody_else_act(live)
    need_swap(live, 2 * pmd_size(live))
    for make, shift, in_swap in product(KINDS, (0, live.base_page), (False, True)):
        if in_swap and make is shared_base_pages:
            continue  # no swap entries of it
        with filled_memory(live, make, f"moved to {shift} bytes behind a boundary, in swap {in_swap}") as memory:
            close(memory, ASYNCHRONOUS if in_swap else Feature.RWP)
            if in_swap:
                swap_out(live, memory, memory.length)
            there = memory.moved_to(room_for(memory.actor, 3, memory.size) + shift)
            expect_closed(live, there)
            there.expect_filled(VALUE)


class KeptClosed(LiveTest):
    def test_kept_closed(self) -> None:
        self.run_area(KEPT_CLOSED)
