"""Locked memory in huge pages that are split: what its base pages are then, and whether they can be moved."""

from collections.abc import Callable
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.debugfs import expect_split
from hugepage_qa.cases.fragmentation import expect_no_shortage
from hugepage_qa.cases.frames import MLOCKED, UNEVICTABLE
from hugepage_qa.cases.hugetlb_segments import IPC_CREAT, IPC_RMID, SHM_LOCK, SHM_REMAP, segment_number
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.locked_flags import expect_locked_pages
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import MOVES
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.cases.thp_memory import pmd_size, room_for
from hugepage_qa.cases.thp_policy import huge_pages, set_policy
from hugepage_qa.cases.thp_shared_memory import expect_mapped_whole
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.plugins.avocado_test import LiveTest

SPLIT = Area("mlock/split-when-locked", sizes=Sizes.ONCE)

_PAGES = 2
#: somebody may have a hold of a page for a moment, which is long on a busy machine
_SECONDS = 60.0


@SPLIT.case(
    "base pages of huge pages that are split while mlock(2) locks them, or SHM_LOCK their segment, stay unevictable,"
    " hold what they held, and move to another node, all of them, and back",
    "Documentation/mm/unevictable-lru.rst; mlock(2); shmctl(2) SHM_LOCK; mm/huge_memory.c lru_add_split_folio()",
    since="5.13",
    nodes=2,
)
def parts_move(live: Live) -> None:
    let_nobody_else_act(live)
    need_memory(live, live.nodes[:2], 2 * _PAGES * pmd_size(live))
    kinds: tuple[tuple[Callable[[Live], Memory], int], ...] = (
        (_locked, MLOCKED | UNEVICTABLE),
        (_locked_segment, UNEVICTABLE),
    )
    for make, flags in kinds:
        with live.about(make.__name__.strip("_").replace("_", " ")):
            memory = make(live)
            expect_split(live, f"{memory.actor.pid},{memory.address:#x},{memory.address + memory.length:#x}", _PAGES)
            # what is shared is mapped when it is used
            memory.expect_filled()
            expect_locked_pages(live, "that were split", memory, flags)
            first, second = live.nodes[:2]
            for source, node in ((second, first), (first, second), (second, first)):
                live.host.wait_until(partial(_are_moved, live, memory, source, node), _SECONDS)
                found = memory.numa_maps().nodes
                if found.keys() != {node}:
                    expect_no_shortage(live, pmd_size(live), _PAGES, node)
                    # each of the others would be waited for, too
                    live.fail("base pages of each node", {node: memory.length // live.base_page}, found)
                memory.expect_filled()
            expect_locked_pages(live, "that were moved", memory, flags)
            memory.actor.end()


def _are_moved(live: Live, memory: Memory, source: int, node: int) -> bool:
    MOVES["mbind"](live, memory, source, node)
    return memory.numa_maps().nodes.keys() == {node}


def _locked(live: Live) -> Memory:
    set_policy(live, "madvise")
    memory = huge_pages(live, _PAGES)
    memory.lock()
    return memory


def _locked_segment(live: Live) -> Memory:
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "always")
    actor, size = live.actor(), pmd_size(live)
    number = segment_number(live, actor, _PAGES * size, IPC_CREAT | 0o600)
    memory = Memory(live, actor, room_for(actor, _PAGES, size), _PAGES, size)
    actor.call("shmat", number, memory.address, SHM_REMAP)
    # it ends with its actor, and can be locked until then
    actor.call("shmctl", number, IPC_RMID, 0)
    actor.call("shmctl", number, SHM_LOCK, 0)
    memory.fill()
    expect_mapped_whole(live, memory, _PAGES, "shmem_enabled=always")
    return memory


class SplitWhenLocked(LiveTest):
    def test_split_when_locked(self) -> None:
        self.run_area(SPLIT)
