"""MADV_COLLAPSE where other processes ask for it (process_madvise(2)), or have a hold of what is to be collapsed."""

import errno
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.pinned_pages import pipe_with, word_from
from hugepage_qa.cases.thp_memory import collapse, let_only_pmd_inherit, map_aligned, mapped_huge, pmd_size
from hugepage_qa.cases.thp_policy import set_policy, unadvised_base_pages
from hugepage_qa.kernel.uapi import MADV_COLLAPSE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused, become_nobody

OTHERS = Area("thp/collapse-and-others", sizes=Sizes.ONCE)
DOC = "madvise(2) MADV_COLLAPSE; mm/khugepaged.c madvise_collapse()"
SINCE = "6.1"


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
    live.expect("AnonHugePages of the first range", memory.length, memory.smaps().anon_huge_pages)
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
    live.expect("AnonHugePages", 0, memory.smaps().anon_huge_pages)
    memory.expect_filled()


@OTHERS.case(
    "MADV_COLLAPSE of memory of which somebody holds a page, any one, is EAGAIN and changes nothing; it is huge when it"
    " was let go",
    f"{DOC}, madvise_collapse_errno()",
    since=SINCE,
)
def held_by_somebody(live: Live) -> None:
    for page, shared in product((0, pmd_size(live) // live.base_page - 1), (False, True)):
        if shared:
            let_only_pmd_inherit(live)
        set_policy(live, "never")
        memory = map_aligned(live, 1, pmd_size(live), shared=shared)
        memory.fill()
        held = Memory(live, memory.actor, memory.address + page * live.base_page, 1, live.base_page)
        reader = pipe_with(live, held)
        live.expect_errno(errno.EAGAIN, memory.advise, MADV_COLLAPSE)
        live.expect("huge pages while it is held", 0, mapped_huge(memory))
        memory.expect_filled()
        live.expect("the word that is in the pipe", held.read(), word_from(live, memory.actor, reader))
        collapse(live, partial(memory.advise, MADV_COLLAPSE))
        live.expect("huge pages when it was let go", memory.length, mapped_huge(memory))
        memory.expect_filled()


class ThpCollapseAndOthers(LiveTest):
    """MADV_COLLAPSE of memory that other processes have to do with.

    :avocado: enable
    """

    def test_collapse_and_others(self) -> None:
        """Every case, once for the machine."""
        self.run_area(OTHERS)
