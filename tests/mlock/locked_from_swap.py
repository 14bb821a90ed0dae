"""Locked memory that was in swap: which pages of it are locked once they are back, as kpageflags tells."""

import errno
from collections.abc import Sequence
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import ControlGroup, Version, new_group
from hugepage_qa.cases.frames import MLOCKED, UNEVICTABLE
from hugepage_qa.cases.group_memory import actor_in, give_what_is_in_swap, leave_memory, swapping_groups
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.locked_flags import expect_locked_pages, read_locked_flags
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.merged_pages import expect_all_merged, start_merging
from hugepage_qa.cases.swapped import need_swap, swapped
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import advised
from hugepage_qa.kernel.ksm import DIRECTORY
from hugepage_qa.kernel.uapi import MADV_NOHUGEPAGE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused

LOCKED_FROM_SWAP = Area("mlock/locked-from-swap", sizes=Sizes.ONCE)

DOC = "Documentation/mm/unevictable-lru.rst Mlocked Pages; mlock(2); mlock2(2) MLOCK_ONFAULT"
_LOCKING = (Memory.lock, Memory.lock_on_fault)
_RECLAIM_SECONDS = 60.0


@LOCKED_FROM_SWAP.case(
    "base pages that were merged and swapped out are locked and unevictable for the second of their two processes"
    " once mlock(2) has brought them back, or an access if they are locked on fault, and no more when it unlocks them",
    f"{DOC}; mm/memory.c do_swap_page(); mm/ksm.c ksm_might_need_to_copy()",
    since="5.19",  # memory.reclaim
)
def merged_and_brought_from_swap(live: Live) -> None:
    need_swap(live, 2 * pmd_size(live))
    group = new_group(live, "memory", Version.TWO)
    for lock in _LOCKING:
        start_merging(live)
        both = [advised(live, 1, MADV_NOHUGEPAGE, actor=actor_in(live, group)) for _process in range(2)]
        for memory in both:
            memory.fill()
        expect_all_merged(live, *both)
        live.set_knob(f"{DIRECTORY}/run", "0")
        # MADV_PAGEOUT leaves what several processes have
        if not live.host.last_look(partial(_are_out, group, both), bool, _RECLAIM_SECONDS):
            raise CannotRun("merged pages stay in memory")
        give_what_is_in_swap(group)
        # the second one gets copies of what the first one has, which are new pages
        for memory in both:
            lock(memory)
            memory.expect_filled()
        with live.about(lock.__name__):
            expect_locked_pages(live, "brought from swap", both[1], MLOCKED | UNEVICTABLE)
            for memory in both:
                memory.unlock()
            expect_locked_pages(live, "brought from swap and unlocked", both[1], 0)
        for memory in both:
            memory.actor.end()


@LOCKED_FROM_SWAP.case(
    "base pages that were swapped out are locked and unevictable once mlock(2) has brought them back, or an access if"
    " they are locked on fault, and no more when it unlocks them",
    f"{DOC}; mm/memory.c do_swap_page() (9ae2feacedde)",
    since="5.19",  # memory.reclaim
)
def brought_from_swap(live: Live) -> None:
    need_swap(live, pmd_size(live))
    group, _other = swapping_groups(live)
    locked, unmarked = MLOCKED | UNEVICTABLE, Quirk.LOCKED_PAGES_FROM_SWAP_UNMARKED
    found = dict[str, set[str]]()
    for lock in _LOCKING:
        memory = advised(live, 1, MADV_NOHUGEPAGE, actor=actor_in(live, group))
        memory.fill()
        leave_memory(live, memory, group)
        lock(memory)
        memory.expect_filled()
        with live.about(lock.__name__):
            found[lock.__name__] = read_locked_flags(live, memory, *[locked, 0] if live.has_bug(unmarked) else [locked])
            if found[lock.__name__] == {hex(locked)}:
                expect_locked_pages(live, "brought from swap", memory, locked)
            memory.unlock()
            expect_locked_pages(live, "brought from swap and unlocked", memory, 0)
        memory.actor.end()
    # at last: a known bug ends the case
    expected, known = ({lock.__name__: {hex(flags)} for lock in _LOCKING} for flags in (locked, 0))
    live.expect("MLOCKED and UNEVICTABLE of base pages brought from swap", expected, found, {unmarked: known})


def _are_out(group: ControlGroup, memories: Sequence[Memory]) -> bool:
    try:
        group.write("memory.reclaim", str(sum(memory.length for memory in memories)))
    except Refused as refusal:
        if refusal.errno != errno.EAGAIN:
            raise
    return all(swapped(memory) == memory.length for memory in memories)


class LockedFromSwap(LiveTest):
    def test_locked_from_swap(self) -> None:
        self.run_area(LOCKED_FROM_SWAP)
