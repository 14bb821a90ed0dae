"""Memory that comes back from swap: to which node it goes, then and later, and what numa_maps tells of it."""

from collections.abc import Callable, Mapping, Set
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import Version, new_group
from hugepage_qa.cases.frames import ACTIVE, ANONYMOUS, DIRTY, SWAP_CACHE, UNEVICTABLE, WRITEBACK, kpageflags
from hugepage_qa.cases.group_memory import actor_in, leave_memory
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act, let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import FRAME, PRESENT, Memory
from hugepage_qa.cases.memory_policy import Mode, bind, move_all, run_on_node, set_policy
from hugepage_qa.cases.swapped import need_swap, only_swap, page_all_out, swapped
from hugepage_qa.cases.thp_memory import let_nothing_be_balanced, map_aligned, mapped_huge, pmd_size
from hugepage_qa.cases.thp_nodes import two_nodes_with_room
from hugepage_qa.cases.thp_policy import expect_huge_bytes, fill_in_huge_pages, give_on_advice
from hugepage_qa.kernel.nodes import read_nodes
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_WILLNEED
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.sizes import MIB

NODES_OF_SWAPPED = Area("swap/nodes-of-swapped", sizes=Sizes.ONCE)

#: of a policy: mbind(2), which goes before set_mempolicy(2)
_OF_MAPPING, _OF_PROCESS = "its mapping", "its process"

#: base pages of which a part is read from swap, and of these a part is written
_FILLED, _READ, _WRITTEN = 32, range(8, 24), range(12, 16)
#: huge pages of swap: what is read from one that is half full leaves it
_ROOM = 4
#: bytes of swap for what the process has besides
_OTHERS = 32 * MIB
#: for which what others do to a page is waited for
_SECONDS = 10.0
#: what numa_maps counts -> any of the flags of a page that it counts it for (gather_stats() in fs/proc/task_mmu.c)
_COUNTED: Mapping[str, int] = {
    "anon": ANONYMOUS,
    "dirty": DIRTY,
    "swapcache": SWAP_CACHE,
    "active": ACTIVE | UNEVICTABLE,
    "writeback": WRITEBACK,
}
#: numbers of numa_maps by name, and pages in all
Told = Mapping[str, int]


@NODES_OF_SWAPPED.case(
    "a huge page, private or shared, that was swapped out comes back in memory of the node that its mapping is bound"
    " to, or else its process, though it was on another one before, on which that process runs; it holds what it held",
    "mbind(2); set_mempolicy(2); mm/swap_state.c swapin_readahead(), read_swap_cache_async(); mm/shmem.c"
    " shmem_swapin_cluster()",
    since="5.4",  # MADV_PAGEOUT
    nodes=2,
)
def from_the_node_of_the_policy(live: Live) -> None:
    # otherwise base pages that came back are made a huge page, and meanwhile are mapped no more
    let_rest(live)
    near, far = two_nodes_with_room(live, 2)
    processors = read_nodes(live.host).each[near].cpus
    if not processors:
        raise CannotRun(f"node {near} has memory and no processor")
    need_swap(live, 2 * pmd_size(live))
    # what the process has besides is in swap, too: no page is to be read with another one, by the policy of before
    live.set_knob("proc/sys/vm/page-cluster", "0")
    group = new_group(live, "memory", Version.TWO)
    for shared, policy in product((False, True), (_OF_MAPPING, _OF_PROCESS)):
        with live.about(f"shared {shared}, policy of {policy}"):
            actor = live.actor()
            run_on_node(actor, near, processors)
            group.add(actor)
            set_policy(actor, Mode.BIND, [near])
            memory = map_aligned(live, 1, pmd_size(live), shared=shared, actor=actor, advice=MADV_HUGEPAGE)
            fill_in_huge_pages(live, memory, near)
            live.expect("bytes in huge pages before", memory.length, mapped_huge(memory))
            pages = memory.length // live.base_page
            live.expect("base pages of each node before", {near: pages}, memory.numa_maps().nodes)
            leave_memory(live, memory, group)
            if policy == _OF_MAPPING:
                bind(memory, [far])
            else:
                set_policy(actor, Mode.BIND, [far])
            memory.expect_filled()
            live.expect("base pages of each node", {far: pages}, memory.numa_maps().nodes)
            actor.end()


def _want_and_read(memory: Memory) -> None:
    memory.advise(MADV_WILLNEED)
    memory.expect_filled()


def _lock_and_unlock(memory: Memory) -> None:
    memory.lock()
    memory.unlock()


#: by name, what brings memory from swap: None for swapoff(2)
_BRING_BACK: Mapping[str, Callable[[Memory], None] | None] = {
    "swapoff": None,
    "MADV_WILLNEED": _want_and_read,
    "mlock": _lock_and_unlock,
    "read": Memory.expect_filled,
}


@NODES_OF_SWAPPED.case(
    "memory that was in swap alone, of huge pages and of base pages, private and shared, and was brought back, by"
    " swapoff(2), MADV_WILLNEED, mlock(2) or who reads it, moves to another node and back, by whichever call, and goes"
    " to swap again, all of it; it holds what it held",
    "swapoff(2); madvise(2) MADV_WILLNEED, MADV_PAGEOUT; move_pages(2); mbind(2); migrate_pages(2); mm/swapfile.c"
    " unuse_pte(); mm/madvise.c swapin_walk_pmd_entry()",
    since="5.4",  # MADV_PAGEOUT
    nodes=2,
)
def moves_when_it_is_back(live: Live) -> None:
    let_rest(live)
    let_nothing_be_balanced(live)
    give_on_advice(live)
    two_nodes_with_room(live, 2)
    live.set_knob("proc/sys/vm/page-cluster", "0")
    group = new_group(live, "memory", Version.TWO)
    for shared, advice in product((False, True), (MADV_HUGEPAGE, MADV_NOHUGEPAGE)):
        for name, bring_back in _BRING_BACK.items():
            with live.about(f"shared {shared}, advice {advice}, {name}"):
                swap_off = only_swap(live, _ROOM * pmd_size(live) + _OTHERS)
                memory = map_aligned(live, 1, pmd_size(live), shared=shared, actor=actor_in(live, group), advice=advice)
                memory.fill()
                expect_huge_bytes(live, memory, memory.length if advice == MADV_HUGEPAGE else 0)
                leave_memory(live, memory, group)
                if bring_back:
                    bring_back(memory)
                else:
                    swap_off()
                    swap_off = only_swap(live, _ROOM * pmd_size(live) + _OTHERS)
                live.expect("memory in swap when it is back", 0, swapped(memory))
                # shared memory that nobody has used since is not mapped
                memory.expect_filled()
                _expect_moves(live, memory)
                page_all_out(live, memory)
                memory.expect_filled()
                memory.actor.end()
                swap_off()


def _expect_moves(live: Live, memory: Memory) -> None:
    first, second = live.nodes[:2]
    # wherever it is, after the first one it has moved
    for by, source, node in (
        ("mbind", second, first),
        ("move_pages", first, second),
        ("migrate_pages", second, first),
    ):
        with live.about(by):
            move_all(live, memory, by, source, node)


@NODES_OF_SWAPPED.case(
    "numa_maps tells of base pages, anonymous and shared, how many are anonymous, dirty, in the swap cache, active and"
    " being written back, as kpageflags does of each: when they are filled, when some were read from swap, in the cache"
    " of which these lie still, and when some of those were written; of what is in swap alone it tells nothing",
    "numa(7) /proc/pid/numa_maps anon, dirty, swapcache, active, writeback; fs/proc/task_mmu.c gather_stats(),"
    " show_numa_map(); Documentation/admin-guide/mm/pagemap.rst DIRTY, WRITEBACK, ACTIVE, SWAPCACHE",
    since="5.4",  # MADV_PAGEOUT
)
def told_of_what_came_back(live: Live) -> None:
    let_nobody_else_act(live)
    # a page that waits for a fault to tell who uses it is read as one that is not there
    let_nothing_be_balanced(live)
    need_swap(live, _ROOM * pmd_size(live))
    live.set_knob("proc/sys/vm/page-cluster", "0")
    group = new_group(live, "memory", Version.TWO)
    for shared in (False, True):
        with live.about(f"shared {shared}"):
            actor = actor_in(live, group)
            # what else it has stays out of swap
            actor.call("mlockall", live.host.uapi.mcl_current)
            mapped = map_aligned(live, 1, pmd_size(live), shared=shared, actor=actor, advice=MADV_NOHUGEPAGE)
            memory = Memory(live, actor, mapped.address, _FILLED, live.base_page)
            memory.fill()
            live.expect("bytes in huge pages", 0, mapped_huge(mapped))
            _expect_told(live, memory, {*range(_FILLED)}, "filled")
            leave_memory(live, memory, group)
            _expect_told(live, memory, set(), "in swap")
            memory.expect_filled(1, _READ.start, len(_READ))
            cached = _expect_told(live, memory, set(), "read from swap")["swapcache"]
            if not shared and not cached:
                raise CannotRun("nothing of what was read from swap stays in its cache: swap is too full")
            memory.part(_WRITTEN.start, len(_WRITTEN)).fill()
            _expect_told(live, memory, {*_WRITTEN}, "written after that")
            actor.end()


def _expect_told(live: Live, memory: Memory, written: Set[int], when: str) -> Told:
    """Expect numa_maps to tell of ``memory`` what kpageflags does, or that a page was ``written``; return that.

    Both are looked at again where a page becomes another meanwhile.
    """

    def look() -> tuple[Told, Told]:
        told = memory.numa_maps()
        pages = sum(told.nodes.values())
        # that all of them are active is not told
        counts = {name: told.counts.get(name, pages if name == "active" else 0) for name in _COUNTED}
        return _counted(live, memory, written), {"pages": pages, **counts}

    counted, told = live.host.last_look(look, lambda found: found[0] == found[1], _SECONDS)
    live.expect(f"what numa_maps tells of memory that is {when}", counted, told)
    return counted


def _counted(live: Live, memory: Memory, written: Set[int]) -> Told:
    """Return the same by what kpageflags tells of each base page that is there; ``written`` ones are dirty."""
    entries = {number: entry for number, entry in enumerate(memory.whole_pagemap()) if entry & PRESENT}
    every = kpageflags(live, memory.actor, [entry & FRAME for entry in entries.values()])
    flags = [found | (DIRTY if number in written else 0) for number, found in zip(entries, every, strict=True)]
    return {
        "pages": len(flags),
        **{name: sum(bool(found & any_of) for found in flags) for name, any_of in _COUNTED.items()},
    }


class NodesOfSwapped(LiveTest):
    def test_nodes_of_swapped(self) -> None:
        self.run_area(NODES_OF_SWAPPED)
