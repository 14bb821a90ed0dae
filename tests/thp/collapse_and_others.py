"""MADV_COLLAPSE where other processes ask for it (process_madvise(2)), or have a hold of what is to be collapsed."""

import errno
from functools import partial
from itertools import product

from hugepage_qa.cases.capabilities import become_nobody
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import expect_no_node_short
from hugepage_qa.cases.khugepaged_work import put_to_work
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.madv_collapse import collapse, collapse_memory
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.pinned_pages import in_a_pipe, pinned
from hugepage_qa.cases.thp_memory import map_aligned, mapped_huge, pmd_size
from hugepage_qa.cases.thp_policy import set_policy, unadvised_base_pages
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, shared_base_pages
from hugepage_qa.kernel.uapi import MADV_COLLAPSE, MADV_HUGEPAGE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor, Refused
from hugepage_qa.process.actor_threads import Came

OTHERS = Area("thp/collapse-and-others", sizes=Sizes.ONCE)
DOC = "madvise(2) MADV_COLLAPSE; mm/khugepaged.c madvise_collapse()"
SINCE = "6.1"
#: huge pages that are asked for twice at once, and how often
_AT_ONCE, _ROUNDS = 2, 4
#: a base page is busy, the group is charged for too much, or no block is free: to be tried again
_TRY_AGAIN = frozenset({errno.EAGAIN, errno.EBUSY, errno.ENOMEM})
#: for which who holds a base page for a moment is waited
_SECONDS = 10.0


@OTHERS.case(
    "process_madvise(2) collapses memory of another process, range for range, and that of one that is gone is ESRCH",
    "process_madvise(2) MADV_COLLAPSE; mm/khugepaged.c madvise_collapse()",
    since=SINCE,
)
def by_another_process(live: Live) -> None:
    memory, other = unadvised_base_pages(live), live.actor()
    apart = map_aligned(live, 2, pmd_size(live), actor=memory.actor)
    apart.fill()
    process = other.call("pidfd_open", memory.actor.pid, 0)
    # all of the one, and of the other the second page
    ranges = live.host.uapi.pack("4Q", memory.address, memory.length, apart.at(1), apart.size)

    def ask() -> None:
        given = other.call("process_madvise", process, ranges, 2, MADV_COLLAPSE, 0)
        if given != memory.length + apart.size:
            raise Refused(errno.EAGAIN, f"process_madvise: {given} bytes of {memory.length + apart.size}")

    collapse(live, ask)
    memory.expect_huge(about="of the first range")
    live.expect("AnonHugePages of the second one", apart.size, apart.smaps(1).anon_huge_pages)
    for each in (memory, apart):
        each.expect_filled()
    memory.actor.end()
    live.expect_errno(errno.ESRCH, other.call, "process_madvise", process, ranges, 2, MADV_COLLAPSE, 0)


@OTHERS.case(
    "process_madvise(2) of a stranger who may not look at the memory of the process is refused, and collapses nothing",
    "process_madvise(2) EPERM; mm/madvise.c process_madvise()",
    since=SINCE,
)
def by_a_stranger(live: Live) -> None:
    memory, stranger = unadvised_base_pages(live), live.actor()
    become_nobody(stranger)
    # the manual page has EPERM, mm_access() EACCES
    refusal: int | None = None
    try:
        memory.advised_by(stranger, MADV_COLLAPSE)
    except Refused as error:
        refusal = error.errno
    live.expect("whether it is refused", True, refusal in (errno.EPERM, errno.EACCES))
    memory.expect_huge(0)
    memory.expect_filled()


@OTHERS.case(
    "MADV_COLLAPSE is EAGAIN, to be tried again, while a base page of the memory is pinned, wherever it lies, by whom,"
    " and whose the memory is: that huge page is not made, the next one is, and when it is let go so is the first; all"
    " holds what it held, and what is pinned stays the owner's",
    "madvise(2) MADV_COLLAPSE EAGAIN; mm/khugepaged.c madvise_collapse_errno(), __collapse_huge_page_isolate(),"
    " hpage_collapse_scan_file()",
    since=SINCE,
)
def pinned_for_a_while(live: Live) -> None:
    let_only_pmd_inherit(live)
    set_policy(live, "never")
    base = live.base_page
    for make, pin, number in product((_own_base_pages, shared_base_pages), (in_a_pipe, pinned), (0, 7, -1)):
        memory = make(live, 2)
        page = Memory(live, memory.actor, memory.address + number * base % memory.size, 1, base)
        with live.about(f"{make.__name__.strip('_')}, {pin.__name__}, base page {number}"):
            with pin(live, page):
                # for long it is moved before it is pinned, where it lies in memory that has to stay movable
                held = page.frames()
                # the page beside it may be in somebody's hands for a moment
                live.host.wait_until(partial(_collapsed_beside, live, memory), _SECONDS)
                live.expect("bytes in huge pages", memory.size, mapped_huge(memory))
                live.expect_errno(errno.EAGAIN, memory.advise, MADV_COLLAPSE, 0, 1)
                live.expect("frame of what is pinned", held, page.frames())
                memory.expect_filled()
            collapse_memory(live, memory)
            live.expect("bytes in huge pages then", memory.length, mapped_huge(memory))
            memory.expect_filled()
        memory.actor.end()


def _another_thread(_live: Live, memory: Memory) -> Actor:
    memory.actor.threads.repeat("madvise", memory.address, memory.length, MADV_COLLAPSE)
    return memory.actor


def _another_process(live: Live, memory: Memory) -> Actor:
    other = live.actor()
    process = other.call("pidfd_open", memory.actor.pid, 0)
    ranges = live.host.uapi.pack("2Q", memory.address, memory.length)
    other.threads.repeat("process_madvise", process, ranges, 1, MADV_COLLAPSE, 0)
    return other


def _khugepaged(_live: Live, memory: Memory) -> Actor:
    for _time in range(2):
        # by the first advice it may not come to khugepaged's list, which reads the flags from before
        memory.advise(MADV_HUGEPAGE)
    return memory.actor


@OTHERS.case(
    "who asks for memory to be collapsed while another thread does, another process, or khugepaged collapses it by"
    " itself, succeeds, whoever comes second, or is told that a page is busy and succeeds when it tries again: the"
    " memory is huge, and holds what it held",
    f"{DOC}, collapse_huge_page() (SCAN_PMD_MAPPED); process_madvise(2) MADV_COLLAPSE",
    since=SINCE,
)
def at_once_with_another(live: Live) -> None:
    put_to_work(live)
    for round_number, other in product(range(_ROUNDS), (_another_thread, _another_process, _khugepaged)):
        memory = _own_base_pages(live, _AT_ONCE)
        with live.about(f"round {round_number}, {other.__name__.strip('_').replace('_', ' ')}"):
            beside = other(live, memory)
            _another_thread(live, memory)
            done = memory.actor.threads.stop(0)
            if beside is not memory.actor:
                done += beside.threads.stop(0)
            errors = {error for one in done for error in one.errors}
            names = {errno.errorcode[error] for error in errors - _TRY_AGAIN}
            live.expect("errors that are no reason to try again", set(), names)
            if errno.ENOMEM in errors:
                expect_no_node_short(live, memory.size, _AT_ONCE)
            live.expect("whether all have succeeded", {True}, {Came.DONE in one.came for one in done})
            memory.expect_huge()
            memory.expect_filled()
        if beside is not memory.actor:
            beside.end()
        memory.actor.end()


def _own_base_pages(live: Live, pages: int) -> Memory:
    """Return private memory that was filled without advice: neither a fault nor khugepaged makes it huge."""
    memory = map_aligned(live, pages, pmd_size(live))
    memory.fill()
    return memory


def _collapsed_beside(live: Live, memory: Memory) -> bool:
    """Have both pages of ``memory`` collapsed, of which the first is pinned, and return whether one is huge."""
    found = memory.actor.result("madvise", memory.address, memory.length, MADV_COLLAPSE)
    if found == -errno.ENOMEM:
        expect_no_node_short(live, memory.size, 1)
    live.expect("what madvise(2) returns", -errno.EAGAIN, found)
    return mapped_huge(memory) > 0


class ThpCollapseAndOthers(LiveTest):
    def test_collapse_and_others(self) -> None:
        self.run_area(OTHERS)
