"""Huge pages that are swapped out to a device: as a whole or what is left of them. To a file they go in pieces."""

from collections.abc import Callable
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import expect_change, read_counters
from hugepage_qa.cases.control_group import ControlGroup, Version, new_group
from hugepage_qa.cases.folio_layout import expect_folios
from hugepage_qa.cases.group_memory import give_what_is_in_swap, huge_pages_in
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.swapped import parts_out, swap_devices, swap_out, swap_to_a_device, swapped
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.cases.thp_policy import huge_pages, need_sizes, set_policy, sizes_in_turn, smaller_sizes
from hugepage_qa.kernel.counters import read_vmstat
from hugepage_qa.kernel.proc_tables import read_swaps
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.tree import read_integer, size_name
from hugepage_qa.kernel.uapi import MADV_DONTNEED, MADV_HUGEPAGE
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

SWAP_DEVICE = Area("swap/swap-device", sizes=Sizes.ONCE)

_PAGES, _ROOM = 2, 8
#: of so many base pages one is left
_LEFT_OF = 32
#: of one size alone, in its directory: a name of the suite, and that of the file
_OF_SIZE = {f"stats/{name} of the size": name for name in ("swpout", "swpout_fallback")}


@SWAP_DEVICE.case(
    "huge pages that swap on a device has room for are swapped out as a whole, each counts in thp_swpout, and each of"
    " their base pages in pswpout, and they come back with what they held",
    f"{THP_DOC} thp_swpout; mm/page_io.c count_swpout_vm_event(); mm/swapfile.c SWP_BLKDEV",
    since="5.4",  # MADV_PAGEOUT
)
def swapped_out_whole(live: Live) -> None:
    _need_swap_of_whole_pages(live)
    swap_to_a_device(live, _ROOM * pmd_size(live))
    length = _PAGES * pmd_size(live)
    change = {"thp_swpout": _PAGES, "thp_swpout_fallback": 0, "pswpout": length // live.base_page}
    out = partial(swap_out, live, length=length)
    memory = expect_change(live, change, partial(huge_pages, live, _PAGES), out)
    live.expect("AnonHugePages", 0, memory.smaps().anon_huge_pages)
    memory.expect_filled()
    live.expect("memory in swap after it was read", 0, swapped(memory))


@SWAP_DEVICE.case(
    "of huge pages that together have room in swap on a device the last one, for which there is none in one piece, is"
    " split and counts in thp_swpout_fallback, once, the others in thp_swpout, and so in the statistics of their size;"
    " they come back with what they held",
    f"{THP_DOC} thp_swpout, thp_swpout_fallback, swpout, swpout_fallback; mm/vmscan.c shrink_folio_list();"
    " mm/swapfile.c SWP_BLKDEV",
    since="5.4",  # MADV_PAGEOUT
)
def last_one_in_pieces(live: Live) -> None:
    _need_swap_of_whole_pages(live)
    ends = list[Callable[[], None]]()

    def filled(pages: int) -> Memory:
        # what the one before has in swap is in the way of this one
        while ends:
            ends.pop()()
        memory = huge_pages(live, pages)
        # the header of the swap area takes its first page
        ends.append(swap_to_a_device(live, pages * memory.size))
        ends.append(memory.actor.end)
        return memory

    for pages in (1, 2, 3, 5):
        with live.about(f"swap of {pages} huge pages"):
            whole, parts = pages - 1, 1
            change = {"thp_swpout": whole, "thp_swpout_fallback": parts}
            change |= dict(zip(_OF_SIZE, (whole, parts), strict=True))
            memory = expect_change(live, change, partial(filled, pages), partial(_all_out, live), _with_those_of_size)
            live.expect("AnonHugePages", 0, memory.smaps().anon_huge_pages)
            # all but the base page for which the header leaves no room
            live.expect("memory in swap", memory.length - live.base_page, swapped(memory))
            memory.expect_filled()


@SWAP_DEVICE.case(
    "pages of a smaller size of huge page, of any, that swap on a device has room for are swapped out as a whole,"
    " however many: each counts in swpout of its size and none in swpout_fallback, and they come back with what they"
    " held",
    f"{THP_DOC} swpout, swpout_fallback; mm/swapfile.c cluster_alloc_swap_entry(), SWP_BLKDEV",
    since="6.12",
)
def smaller_ones_whole(live: Live) -> None:
    _need_swap_of_whole_pages(live)
    need_sizes(smaller_sizes(live))
    length = _PAGES * pmd_size(live)
    swap_to_a_device(live, _ROOM * pmd_size(live))
    actors = list[Actor]()

    def filled(size: int) -> Memory:
        while actors:
            actors.pop().end()
        memory = map_aligned(live, _PAGES, pmd_size(live), advice=MADV_HUGEPAGE)
        actors.append(memory.actor)
        memory.fill()
        expect_folios(live, memory, size)
        return memory

    for size in sizes_in_turn(live):
        with live.about(f"pages of {size >> 10} kB"):
            change = dict(zip(_OF_SIZE, (length // size, 0), strict=True))
            out = partial(swap_out, live, length=length)
            memory = expect_change(live, change, partial(filled, size), out, partial(_with_those_of_size, size=size))
            memory.expect_filled()


@SWAP_DEVICE.case(
    "of a huge page of which the greater part was given back reclaim writes to swap on a device what is left alone,"
    " whichever part that is, and it comes back with what it held",
    "mm/vmscan.c shrink_folio_list() folio_test_partially_mapped(); mm/huge_memory.c deferred_split_folio()",
)
def left_parts_alone(live: Live) -> None:
    _need_swap_of_whole_pages(live)
    swap_to_a_device(live, _ROOM * pmd_size(live))
    set_policy(live, "madvise")
    group = new_group(live, "memory", Version.TWO)
    every = pmd_size(live) // live.base_page
    left = every // _LEFT_OF
    for first in (0, every // 2, every - left):
        memory = huge_pages_in(live, group, 1)
        parts = Memory(live, memory.actor, memory.address, every, live.base_page)
        for start, end in ((0, first), (first + left, every)):
            if start < end:
                parts.advise(MADV_DONTNEED, start, end - start)
        before = _written(live)
        live.host.wait_until(partial(_is_out, group, memory, left * live.base_page))
        written = _written(live) - before
        with live.about(f"base pages {first} to {first + left - 1}"):
            live.expect("memory in swap", left * live.base_page, swapped(memory))
            # what else the process has is little
            is_part = written < every // 2
            live.expect(f"whether less than a half of {every} base pages was written, found {written}", True, is_part)
            live.expect("words that changed", 0, memory.wrong(first * live.base_page, left * live.base_page))
        memory.actor.end()


def _is_out(group: ControlGroup, memory: Memory, length: int) -> bool:
    give_what_is_in_swap(group)
    return swapped(memory) == length


def _written(live: Live) -> int:
    """Return how many base pages were written to swap since the machine was booted."""
    return read_vmstat(ObservedTree(live.host))["pswpout"]


@SWAP_DEVICE.case(
    "areas of swap that have the same priority take whole huge pages in turn, and one of a lower priority none while"
    " others have room; they come back with what they held",
    "swapon(2) Priority; mm/swapfile.c swap_alloc_slow(), get_swap_pages()",
)
def areas_in_turn(live: Live) -> None:
    _need_swap_of_whole_pages(live)
    size = pmd_size(live)
    # each with room for more than the case has in swap
    devices = [each.device for each in swap_devices(live, _ROOM * size, (5, 5, 3))]
    memory = huge_pages(live, _PAGES * _PAGES)
    swap_out(live, memory, memory.length)
    used = read_swaps(ObservedTree(live.host))
    with live.about(f"of which is used {used}"):
        live.expect("whether each area is used", [True, True, False], [used[device] > 0 for device in devices])
    memory.expect_filled()


def _need_swap_of_whole_pages(live: Live) -> None:
    if live.host.kernel_option("THP_SWAP") is False:  # powerpc's never have it
        raise CannotRun("this kernel swaps huge pages out in pieces: it has no CONFIG_THP_SWAP")


def _all_out(live: Live, memory: Memory) -> None:
    whole = [(0, memory.length)]
    live.host.wait_until(partial(parts_out, live, memory, whole, lambda: not memory.smaps().anon_huge_pages))


def _with_those_of_size(live: Live, size: int | None = None) -> dict[str, int]:
    """Return all counters, and those of one size, by default of a PMD, where the kernel has them (since Linux 6.11)."""
    directory = f"{DIRECTORY}/{size_name(size or pmd_size(live))}/stats"
    tree = ObservedTree(live.host)
    of_size = {name: read_integer(tree, f"{directory}/{file}") for name, file in _OF_SIZE.items()}
    return read_counters(live) | {name: value for name, value in of_size.items() if value is not None}


class ThpSwapDevice(LiveTest):
    def test_swap_device(self) -> None:
        self.run_area(SWAP_DEVICE)
