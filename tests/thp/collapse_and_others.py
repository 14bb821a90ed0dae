"""MADV_COLLAPSE where other processes ask for it (process_madvise(2)), or have a hold of what is to be collapsed."""

import errno
from functools import partial
from itertools import product

from hugepage_qa.cases.capabilities import become_nobody
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import expect_no_node_short
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.madv_collapse import collapse, collapse_memory
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.pinned_pages import in_a_pipe, pinned
from hugepage_qa.cases.thp_memory import map_aligned, mapped_huge, pmd_size
from hugepage_qa.cases.thp_policy import set_policy, unadvised_base_pages
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, shared_base_pages
from hugepage_qa.kernel.uapi import MADV_COLLAPSE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused

OTHERS = Area("thp/collapse-and-others", sizes=Sizes.ONCE)
DOC = "madvise(2) MADV_COLLAPSE; mm/khugepaged.c madvise_collapse()"
SINCE = "6.1"
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
        held = page.frames()
        with live.about(f"{make.__name__.strip('_')}, {pin.__name__}, base page {number}"):
            with pin(live, page):
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
