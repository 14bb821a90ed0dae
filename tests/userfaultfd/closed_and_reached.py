"""Closed transparent huge pages and base pages, while others act: children, who moves them, who fills holes beside."""

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
    expect_access,
    expect_marked,
    fill,
    filled_memory,
)
from hugepage_qa.cases.closed_while_others_act import (
    DEBUGGERS,
    PINS,
    copy_into_hole,
    expect_child_closed,
    expect_closed_where_moved,
    expect_hole_filled,
    expect_reached,
    expect_woken_later,
)
from hugepage_qa.cases.forced_writes import need_forced_writes
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.pinned_pages import pinned
from hugepage_qa.cases.swapped import need_swap, swap_out
from hugepage_qa.cases.thp_memory import pmd_size, room_for
from hugepage_qa.cases.thp_policy import advised, base_pages, huge_pages, huge_zeroes
from hugepage_qa.cases.thp_shared_memory import shared_base_pages
from hugepage_qa.cases.user_moves import Sides
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault
from hugepage_qa.kernel.uapi import MADV_NOHUGEPAGE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor_threads import Came

CLOSED_AND_REACHED = Area("userfaultfd/closed-and-reached", sizes=Sizes.ONCE)

_CLOSING = Mode.MISSING | Mode.READ_WRITE_PROTECTED


@CLOSED_AND_REACHED.case(
    "what is closed at fork() is closed for a child, too, if its program asks to be told of the child, and so is what"
    " is in swap, and the copy of what is pinned; each access is told on a descriptor of its own, each is opened alone",
    f"{DOC}; UFFD_FEATURE_EVENT_FORK; mm/userfaultfd.c dup_userfaultfd(); mm/huge_memory.c copy_huge_pmd(); mm/memory.c"
    " __copy_present_ptes(), copy_present_page(), copy_nonpresent_pte()",
    since=SINCE,
)
def with_a_child_told_of(live: Live) -> None:
    let_nobody_else_act(live)
    need_swap(live, 2 * pmd_size(live))
    for make in KINDS:
        with filled_memory(live, make) as memory:
            expect_child_closed(live, memory, live.base_page, shared=make is shared_base_pages)
    for make in PRIVATE_KINDS:
        with filled_memory(live, make, "in swap") as memory:
            out = partial(swap_out, live, memory, memory.length)
            expect_child_closed(live, memory, live.base_page, shared=False, meanwhile=out)
        with filled_memory(live, make, "pinned") as memory, pinned(live, memory):
            expect_child_closed(live, memory, live.base_page, shared=False)


@CLOSED_AND_REACHED.case(
    "what is closed stays so where mremap(2) moves it, by whole huge pages or not, if its program asks to be told of"
    " that, and an access is told there",
    f"{DOC}; UFFD_FEATURE_EVENT_REMAP; mm/mremap.c move_ptes(), mm/huge_memory.c move_huge_pmd()",
    since=SINCE,
)
def moved_and_told_of(live: Live) -> None:
    let_nobody_else_act(live)
    for make, shift in product(KINDS, (0, live.base_page)):
        with filled_memory(live, make, f"moved to {shift} bytes behind a boundary") as memory:
            address = room_for(memory.actor, 3, memory.size) + shift
            expect_closed_where_moved(live, memory, address, live.base_page)


@CLOSED_AND_REACHED.case(
    "who waits for closed memory sleeps on when it is opened with UFFDIO_RWPROTECT_MODE_DONTWAKE, until it is woken",
    f"{DOC}, Protecting and Unprotecting; mm/userfaultfd.c userfaultfd_rwprotect()",
    since=SINCE,
)
def woken_later(live: Live) -> None:
    let_nobody_else_act(live)
    for make in KINDS:
        with filled_memory(live, make) as memory:
            expect_woken_later(live, memory, live.base_page)


@CLOSED_AND_REACHED.case(
    "what UFFDIO_MOVE takes out of closed memory is open where it arrives, and what arrives in memory that is"
    " registered to be closed is closed, whichever it was before: pages that are there, zeroes or not, and in swap",
    "mm/userfaultfd.c move_present_ptes(), move_swap_pte(), move_zeropage_pte(): Re-arm RWP on the moved PTE if dst_vma"
    " is RWP-registered; mm/huge_memory.c move_pages_huge_pmd()",
    since=SINCE,
)
def moved_into_closed_memory(live: Live) -> None:
    let_nobody_else_act(live)
    need_swap(live, pmd_size(live))
    for make, closed, mode in product((*PRIVATE_KINDS, huge_zeroes, _zeroes), (False, True), (Mode.MISSING, _CLOSING)):
        source = make(live)
        value = None if make in (huge_zeroes, _zeroes) else VALUE
        with live.about(f"{make.__name__.strip('_')}, closed {closed}, {mode.name}"):
            _expect_moved(live, fill(source) if value else source, value, mode, closed=closed)
    for closed in (False, True):
        with live.about(f"in swap, closed {closed}"):
            _expect_moved(live, fill(base_pages(live)), VALUE, _CLOSING, closed=closed, in_swap=True)


def _expect_moved(
    live: Live, source: Memory, value: int | None, mode: Mode, *, closed: bool, in_swap: bool = False
) -> None:
    if closed:
        close(source)
    if in_swap:
        swap_out(live, source, source.length)
    target = advised(live, actor=source.actor)
    fault = Userfault(target, mode, Feature.MOVE | Feature.RWP)
    Sides(live, source, target, fault).move_all(0, 0, source.length)
    expect_marked(live, source)
    expect_access(live, source, 0, writes=False, value=0)
    expect_marked(live, target, *([(0, target.size)] if mode is _CLOSING else []))
    came = Came.SIGBUS if mode is _CLOSING else Came.DONE
    for place in (0, target.size // 2, target.size - live.base_page):
        expect_access(live, target, place, came, writes=False, value=0 if value is None else None)
    if mode is _CLOSING:
        expect_access(live, target, 0, came, writes=True)
        fault.read_write_protect(on=False)
    expect_marked(live, target)
    target.expect_zero() if value is None else target.expect_filled(value)
    source.actor.end()


@CLOSED_AND_REACHED.case(
    "what a program fills a hole of closed memory with is open, a copy, zeroes or what the file has, and an access of a"
    " hole is told as one of a missing page, if of anything; what is beside it stays closed",
    f"{DOC}, Scope of protection; ioctl_userfaultfd(2) UFFDIO_COPY, UFFDIO_ZEROPAGE, UFFDIO_CONTINUE; mm/userfaultfd.c"
    " mfill_atomic_install_pte(), mfill_atomic_pte_zeropage()",
    since=SINCE,
)
def filled_holes(live: Live) -> None:
    let_nobody_else_act(live)
    ways = *product(KINDS, ("copied", "zeroes")), (shared_base_pages, "of the file")
    for make, way in ways:
        memory, shared = fill(make(live, 2)), make is shared_base_pages
        takes_out = shared and way != "of the file"
        memory.advise(mmap.MADV_REMOVE if takes_out else mmap.MADV_DONTNEED, 1, 1)
        with live.about(f"{make.__name__}, {way}"):
            mode = (Mode.MINOR if way == "of the file" else Mode.MISSING) | Mode.READ_WRITE_PROTECTED
            feature = (Feature.MINOR_SHMEM if way == "of the file" else Feature.MISSING_SHMEM) if shared else Feature(0)
            fault = Userfault(memory, mode, Feature.RWP | feature)
            expect_hole_filled(live, memory, fault, partial(_fill_hole, live, memory, fault, way))
        memory.actor.end()


def _fill_hole(live: Live, memory: Memory, fault: Userfault, way: str) -> None:
    if way == "copied":
        copy_into_hole(live, memory, fault)
    elif way == "zeroes":
        fault.zero(1)
        expect_marked(live, memory, (0, memory.size))
        memory.expect_zero(1)
        memory.actor.fill(memory.at(1), memory.size, memory.step, VALUE + memory.size)
    else:
        fault.handling(memory.part(1)).go_on()


@CLOSED_AND_REACHED.case(
    "what pins closed memory, O_DIRECT, vmsplice(2) or io_uring(7), is EFAULT for it if the program is told of accesses"
    " by the process itself alone; where faults are asynchronous it is opened, and what is carried is right",
    f"{DOC}; include/linux/mm.h gup_can_follow_protnone(); mm/gup.c follow_page_pte(), gup_fast_pte_range(),"
    " gup_fast_pmd_leaf()",
    since=SINCE,
)
def pinned_while_closed(live: Live) -> None:
    let_nobody_else_act(live)
    for make, way in product(KINDS, PINS):
        with filled_memory(live, make, f"{way.name}") as memory:
            expect_reached(live, memory, way, memory.size if make is huge_pages else live.base_page)


@CLOSED_AND_REACHED.case(
    "what a debugger reads or writes by /proc/PID/mem is EIO for closed memory if the program is told of accesses by"
    " the process itself alone; where faults are asynchronous it opens it, and has what is there",
    f"{DOC}; fs/proc/base.c mem_rw(); include/linux/mm.h gup_can_follow_protnone()",
    since=SINCE,
)
def debugged_while_closed(live: Live) -> None:
    need_forced_writes(live)
    let_nobody_else_act(live)
    for make, way in product(KINDS, DEBUGGERS):
        with filled_memory(live, make, f"{way.name}") as memory:
            expect_reached(live, memory, way, memory.size if make is huge_pages else live.base_page)


def _zeroes(live: Live) -> Memory:
    """Return memory that was read alone, and has the base page of zeroes."""
    memory = advised(live, 1, MADV_NOHUGEPAGE)
    memory.expect_zero()
    return memory


class ClosedAndReached(LiveTest):
    def test_closed_and_reached(self) -> None:
        self.run_area(CLOSED_AND_REACHED)
