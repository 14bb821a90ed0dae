"""Huge pages of groups that are in swap and in no memory: who is charged for each part of them, and until when."""

import mmap
from collections.abc import Callable, Sequence
from functools import partial, wraps
from statistics import median

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import ControlGroup
from hugepage_qa.cases.fragmentation import SAMPLES, compact_if_short
from hugepage_qa.cases.group_memory import (
    IN_SWAP,
    USED,
    give_what_is_in_swap,
    huge_pages_in,
    leave_memory,
    look_for_about,
    need_exact_charges,
    swapping_groups,
    wait_until_written,
)
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.swapped import parts_out, swap_to_a_device, swapped
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import set_policy
from hugepage_qa.plugins.avocado_test import LiveTest

LEFT_IN_SWAP = Area("cgroup/left-in-swap", sizes=Sizes.ONCE)

DOC = "Documentation/admin-guide/cgroup-v2.rst"
_PAGES = 4
#: huge pages of swap on the device: more, as what has been there in parts leaves no whole ones
_ROOM = 6 * _PAGES
#: for how long a CPU may keep what was given back, or charge for what it has not given yet
_SECONDS = 20.0
#: for how long what was in memory is looked at: it goes at once, or when memory is short
_CACHED_SECONDS = 5.0
SINCE = "5.8"  # what comes back from swap is charged when it is read

#: of a huge page: who gives one of each back has a huge page less in all
_PARTS = _PAGES


def _unmap(memory: Memory, offset: int, length: int) -> None:
    memory.actor.call("munmap", memory.address + offset, length)


def _advise(advice: int, memory: Memory, offset: int, length: int) -> None:
    memory.actor.call("madvise", memory.address + offset, length, advice)


_GIVING: tuple[tuple[str, Callable[[Memory, int, int], None]], ...] = (
    ("munmap()", _unmap),
    ("MADV_DONTNEED", partial(_advise, mmap.MADV_DONTNEED)),
    ("MADV_FREE", partial(_advise, mmap.MADV_FREE)),
)

#: gets a group, the one above it, and what ends the swap
_Act = Callable[[Live, ControlGroup, ControlGroup, Callable[[], None]], None]


def case(statement: str, source: str) -> Callable[[_Act], None]:
    """Make the decorated function, which gets groups and what ends the swap, a case with swap on a device."""

    def register(act: _Act) -> None:
        @wraps(act)
        def in_groups(live: Live) -> None:
            need_exact_charges(live)
            size = pmd_size(live)
            swap_off = swap_to_a_device(live, _ROOM * size)
            set_policy(live, "madvise")
            compact_if_short(live, size, _PAGES)
            act(live, *swapping_groups(live), swap_off)

        LEFT_IN_SWAP.case(statement, source, since=SINCE)(in_groups)

    return register


@case(
    "memory.swap.current of a group, and of the one above it, is each base page of its huge pages that is in swap and"
    " in no memory, and no longer any part that was given back, by munmap(), MADV_DONTNEED or MADV_FREE and in"
    " whichever order, or that is left when the process ends",
    f"{DOC} memory.swap.current; mm/memcontrol.c __mem_cgroup_uncharge_swap(); mm/swap_cgroup.c swap_cgroup_record()",
)
def given_back(live: Live, group: ControlGroup, above: ControlGroup, _swap_off: Callable[[], None]) -> None:
    for parts, (name, give_back), shift in (
        ((0, 1, 2, 3), _GIVING[0], 0),
        ((3, 2, 1, 0), _GIVING[1], 0),
        ((1, 3, 2, 0), _GIVING[2], live.base_page),
        ((2, 0), _GIVING[0], live.base_page),
        ((), _GIVING[0], 0),
    ):
        memory = _left_in_swap(live, group)
        ends = [part * memory.size // _PARTS + shift * (0 < part < _PARTS) for part in range(_PARTS + 1)]
        with live.about(f"{name} of parts {parts}"):
            _expect_charged(live, (group, above), IN_SWAP, _PAGES)
            for number, part in enumerate(parts, 1):
                for page in range(_PAGES):
                    give_back(memory, page * memory.size + ends[part], ends[part + 1] - ends[part])
                with live.about(f"{number} of them are given back"):
                    _expect_charged(live, (group, above), IN_SWAP, _PAGES * (_PARTS - number) // _PARTS)
            memory.actor.end()
            _expect_charged(live, (group, above), IN_SWAP, 0)


@case(
    "memory.swap.current of a group has no longer what was written to swap and is still in memory, too, once that is"
    " given back, by munmap(), MADV_DONTNEED or MADV_FREE, all at once or by parts, or when the process ends",
    f"{DOC} memory.swap.current; mm/swapfile.c __try_to_reclaim_swap() TTRS_UNMAPPED",
)
def given_back_in_memory(live: Live, group: ControlGroup, _above: ControlGroup, _swap_off: Callable[[], None]) -> None:
    for count, give_back in ((1, _GIVING[0]), (2, _GIVING[1]), (_PARTS, _GIVING[2]), (0, _GIVING[0])):
        with live.about(f"{give_back[0]} of {count} parts"):
            # whoever has a hold of a page in that moment keeps it and its place in swap
            kept = median(_kept_in_swap(live, group, count, give_back[1]) for _sample in range(SAMPLES))
            live.expect(
                f"whether less than half of it is still in swap: {kept} bytes",
                True,
                kept < _PAGES * pmd_size(live) // 2,
            )


def _kept_in_swap(live: Live, group: ControlGroup, count: int, give_back: Callable[[Memory, int, int], None]) -> int:
    """Return the bytes in swap that a group has more after memory went there, and was given back in so many parts."""
    before = group.read_number(IN_SWAP)
    memory = huge_pages_in(live, group, _PAGES)
    live.host.wait_until(
        partial(parts_out, live, memory, [(0, memory.length)], lambda: swapped(memory) == memory.length)
    )
    live.expect("bytes of the process in swap", memory.length, swapped(memory))
    wait_until_written(live, group)
    for part in range(count):
        give_back(memory, part * memory.length // count, memory.length // count)
    if not count:
        memory.actor.end()
    kept = live.host.last_look(
        lambda: group.read_number(IN_SWAP) - before, lambda now: now < memory.size // 2, _CACHED_SECONDS
    )
    memory.actor.end()
    give_what_is_in_swap(group)
    return kept


@case(
    "memory that comes back from swap is charged to the group that had it swapped out, whatever group the process is in"
    " by then, when it is read, written, or brought back by swapoff(2): each base page of huge pages; what was written"
    " or brought back is in swap no longer",
    f"{DOC} Memory Ownership, memory.current, memory.swap.current; mm/memcontrol.c mem_cgroup_swapin_charge_folio();"
    " mm/swap_cgroup.c lookup_swap_cgroup_id()",
)
def brought_back(live: Live, group: ControlGroup, above: ControlGroup, swap_off: Callable[[], None]) -> None:
    other = above.child("beside")
    half = _PAGES // 2
    # what was only read may keep its place in swap
    for name, come_back, pages, left in (
        ("read", lambda memory: memory.part(half, half).expect_filled(1 + half * memory.size), half, None),
        ("written", lambda memory: memory.part(0, half).fill(), half, half),
        ("brought back by swapoff(2)", lambda _memory: swap_off(), _PAGES, 0),
    ):
        memory = _left_in_swap(live, group)
        _expect_charged(live, (group, above), USED, 0)
        other.add(memory.actor)
        with live.about(name):
            come_back(memory)
            _expect_charged(live, (group, above), USED, pages)
            _expect_charged(live, (other,), USED, 0)
            if left is not None:
                _expect_charged(live, (group, above), IN_SWAP, left)
            memory.expect_filled()
            _expect_charged(live, (group, above), USED, _PAGES)
            memory.actor.end()
            for file in (USED, IN_SWAP):
                _expect_charged(live, (group, above), file, 0)


def _left_in_swap(live: Live, group: ControlGroup) -> Memory:
    """Return huge pages of a process in ``group``, which are in swap alone. Raises CannotRun where they cannot be."""
    memory = huge_pages_in(live, group, _PAGES)
    leave_memory(live, memory, group)
    return memory


def _expect_charged(live: Live, groups: Sequence[ControlGroup], file: str, pages: int) -> None:
    """Expect ``file`` of each group to be so many huge pages. Raises Failed."""
    for group in groups:
        if (found := look_for_about(live, group, file, pages, _SECONDS)) != pages:
            # each of the others would be waited for as long
            live.fail(f"huge pages in {file} of {group.path}", pages, found)


class CgroupLeftInSwap(LiveTest):
    def test_left_in_swap(self) -> None:
        self.run_area(LEFT_IN_SWAP)
