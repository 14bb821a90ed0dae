"""How much groups have in swap, and had at most: what a limit of swap refuses, and the highest use that is told."""

import mmap
import os
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import ControlGroup, Watch
from hugepage_qa.cases.group_memory import (
    IN_SWAP,
    USED,
    events,
    expect_about,
    huge_pages_in,
    swap_of,
    wait_until_written,
)
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.swapped import parts_out, swap_out, swapped
from hugepage_qa.cases.swapping_case import GROUP_PAGES, swapping_case
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.kernel.counters import read_vmstat
from hugepage_qa.kernel.uapi import MADV_PAGEOUT
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor
from hugepage_qa.version import KernelVersion

SWAP_OF_GROUPS = Area("cgroup/swap-of-groups", sizes=Sizes.ONCE)

DOC = "Documentation/admin-guide/cgroup-v2.rst"
#: of the pages that a group has: what it may have in swap, and by how many base pages more
_SWAPPED, _MORE = 2, 5
_PEAK = "memory.peak"
_SWAP_EVENTS = "memory.swap.events"
#: of vmstat
_AS_A_WHOLE = "thp_swpout"
#: who polls is told at once, or after the 10 ms in which two changes are told as one
_TOLD_SECONDS = 5.0
#: what is written to memory.peak begins it anew for the writer: Linux 6.12
_RESET_SINCE, _MOST_TEXT = KernelVersion(6, 12), 32

case = partial(swapping_case, SWAP_OF_GROUPS)


@case(
    "memory.swap.current is all memory of a group, and of those below it, that is in swap; memory.swap.max has no byte"
    " more go there, whichever of both groups has it: the rest stays as it is, and each refusal is an event of the"
    " group and of the one above it, told to who polls; what is given back is in swap no more",
    f"{DOC} memory.swap.current, memory.swap.max, memory.swap.events; mm/memcontrol.c"
    " __mem_cgroup_try_charge_swap(), __mem_cgroup_uncharge_swap()",
    since="5.10",  # who polls memory.swap.events is told
)
def refused_by_a_limit_of_swap(live: Live, group: ControlGroup, above: ControlGroup) -> None:
    _expect_swap_limited(live, group, above)


@case(
    "memory.swap.current has all base pages of a huge page that goes to swap as a whole, and memory.swap.max is kept,"
    " of a group and of the one above it, as where they go in pieces",
    f"{DOC} memory.swap.current, memory.swap.max, memory.swap.events; mm/memcontrol.c"
    " __mem_cgroup_try_charge_swap(), __mem_cgroup_uncharge_swap(); mm/swapfile.c SWP_BLKDEV",
    since="5.10",  # who polls memory.swap.events is told
    to_a_device=True,
)
def refused_as_a_whole(live: Live, group: ControlGroup, above: ControlGroup) -> None:
    if live.host.kernel_option("THP_SWAP") is False:  # powerpc's never have it
        raise CannotRun("this kernel swaps huge pages out in pieces: it has no CONFIG_THP_SWAP")
    before = read_vmstat(ObservedTree(live.host))[_AS_A_WHOLE]
    _expect_swap_limited(live, group, above)
    now = read_vmstat(ObservedTree(live.host))[_AS_A_WHOLE]
    # so many of each limit: of the second one fewer may find a piece of swap that nobody has had
    live.expect("whether huge pages went to swap as a whole", True, now - before >= _SWAPPED)


@case(
    "memory.peak is the most memory that a group, and those below it, have had at once, whatever was given back, and"
    " for who has written to it the most since then; so is memory.swap.peak of swap",
    f"{DOC} memory.peak, memory.swap.peak; mm/memcontrol.c memory_peak_show(), peak_write(); mm/page_counter.c",
    since="5.19",
)
def highest_use(live: Live, group: ControlGroup, above: ControlGroup) -> None:
    memory = huge_pages_in(live, group, GROUP_PAGES)
    beside = huge_pages_in(live, above.child("beside"), 2)
    both = above.read_number(USED)
    live.expect("whether the peak of both is what they have, at least", True, above.read_number(_PEAK) >= both)
    beside.actor.end()
    memory.advise(mmap.MADV_DONTNEED, 0, 2)
    memory.touch(0)
    size = memory.size
    # as it was, and less than a page more
    for each, pages in ((above, GROUP_PAGES + 2), (group, GROUP_PAGES)):
        peak = each.read_number(_PEAK)
        live.expect(f"whether the peak is that of {pages} huge pages", True, 0 <= peak - pages * size < size)
    live.expect("whether a peak is never below what is used", True, group.read_number(_PEAK) >= group.read_number(USED))
    if live.kernel_version >= _RESET_SINCE:
        _expect_peaks_apart(live, above, memory)
    if above.read("memory.swap.peak") is not None:  # since Linux 6.5
        swap_out(live, memory.part(2, 3), 3 * size)
        memory.part(2, 3).advise(mmap.MADV_DONTNEED)
        # with what others may have had swapped out of the process
        beyond = [each.read_number("memory.swap.peak") - 3 * size for each in (group, above)]
        live.expect("whether swap.peak is that of 3 huge pages", [True] * 2, [0 <= more < size // 2 for more in beyond])


def _expect_peaks_apart(live: Live, group: ControlGroup, memory: Memory) -> None:
    """Expect who has written to memory.peak to see the most since then, and nobody else."""
    watcher, size = live.actor(), memory.size
    files = [live.open(watcher, f"{group.path}/{_PEAK}", os.O_RDWR) for _number_of_it in range(2)]
    whole = group.read_number(_PEAK)
    watcher.call("write", files[0], b"reset", 5)
    used = group.read_number(USED)
    seen = [_read_number(watcher, file) for file in files]
    live.expect("what who has not written sees", whole, seen[1])
    live.expect("whether who has written sees what is used then", True, abs(seen[0] - used) < size // 2)
    # all of it: memory may be too fragmented for a huge page
    memory.part(1).fill()
    memory.advise(mmap.MADV_DONTNEED, 1, 1)
    seen = [_read_number(watcher, file) for file in files]
    live.expect("what who has not written sees then", whole, seen[1])
    live.expect("whether who has written sees the page that has gone", True, abs(seen[0] - used - size) < size // 2)


def _expect_swap_limited(live: Live, group: ControlGroup, above: ControlGroup) -> None:
    limit = _SWAPPED * pmd_size(live) + _MORE * live.base_page
    watcher = live.actor()
    for limited in (group, above):
        memory = huge_pages_in(live, group, GROUP_PAGES)
        limited.write("memory.swap.max", str(limit))
        live.expect("memory.swap.max", str(limit), (limited.read("memory.swap.max") or "").strip())
        before = events(group, _SWAP_EVENTS)
        watches = [
            Watch(watcher, live.open(watcher, f"{each.path}/{_SWAP_EVENTS}", os.O_RDONLY)) for each in (group, above)
        ]

        def is_full(memory: Memory = memory) -> bool:
            return parts_out(live, memory, [(0, memory.length)], lambda: swap_of(live, memory.actor) >= limit)

        with live.about(f"limit of the {'group' if limited is group else 'one above'}"):
            live.host.wait_until(is_full)
            live.expect("bytes of the process in swap", limit, swap_of(live, memory.actor))
            live.expect(
                "bytes of both groups in swap", [limit, limit], [each.read_number(IN_SWAP) for each in (group, above)]
            )
            mapping = memory.smaps()
            live.expect("bytes that are mapped or in swap", memory.length, mapping.rss + mapping.fields["Swap"])
            # one at least was refused: that has gone on until it was
            memory.advise(MADV_PAGEOUT)
            refused = {name: count - before[name] for name, count in events(group, _SWAP_EVENTS).items()}
            live.expect(
                "whether max and fail count", (True, True), (refused["max"] > 0, refused["fail"] >= refused["max"])
            )
            are_told = [live.host.last_look(watch.is_told, bool, _TOLD_SECONDS) for watch in watches]
            live.expect("whether the events are told", [True, True], are_told)
            live.expect("events of the one above", events(group, _SWAP_EVENTS), events(above, _SWAP_EVENTS))
            limited.write("memory.swap.max", "max")
            swap_out(live, memory, memory.length)
            live.expect("bytes in swap without a limit", memory.length, swapped(memory))
            wait_until_written(live, above)
            memory.part(1).advise(mmap.MADV_DONTNEED)
            expect_about(live, group, IN_SWAP, GROUP_PAGES - 1)
            memory.part(2, GROUP_PAGES - 2).expect_filled(1 + 2 * memory.size)
            memory.part(0).expect_filled()
            memory.actor.end()
            for each in (group, above):
                expect_about(live, each, IN_SWAP, 0)


def _read_number(actor: Actor, descriptor: int) -> int:
    length, (text,) = actor.call_with_buffers("pread64", descriptor, bytes(_MOST_TEXT), _MOST_TEXT, 0)
    return int(text[:length])


class CgroupSwapOfGroups(LiveTest):
    def test_swap_of_groups(self) -> None:
        self.run_area(SWAP_OF_GROUPS)
