"""Nodes that huge pages are made on: each on the one that has most of its own base pages, whatever the others have."""

from collections.abc import Iterator, Sequence
from functools import partial

from hugepage_qa.cases import memory_policy
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import compact_if_short, expect_no_node_short
from hugepage_qa.cases.khugepaged_clock import PATIENT_SCANS, await_khugepaged, let_rest, quicken
from hugepage_qa.cases.khugepaged_work import put_to_work
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.madv_collapse import collapse_memory
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import Mode, nodes_of
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.cases.thp_memory import map_aligned, mapped_huge, pmd_size
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.plugins.avocado_test import LiveTest

ON_NODES = Area("thp/collapsed-on-nodes", sizes=Sizes.ONCE)

DOC = "mm/khugepaged.c hpage_collapse_find_target_node(), hpage_collapse_scan_pmd(), hpage_collapse_scan_file()"
#: which of two nodes has most of each huge page to be: whatever was counted before, a sum that is carried on from one
#: to the next favours the wrong one of them for one at least
_ROW = (0, 0, 1, 1, 1, 0)
#: parts of each that the other node has, in sixteenths: none, some at the start, and almost half, strewn
_OF_THE_OTHER: Sequence[tuple[int, ...]] = ((), (0, 1, 2), (0, 3, 5, 8, 11, 13, 15))
_PARTS = 16


@ON_NODES.case(
    "khugepaged makes each of several huge pages, one after the other, on the node that has most of the base pages of"
    " that one, whatever nodes those before it were on; anonymous memory and shared",
    DOC,
    nodes=2,
)
def by_khugepaged(live: Live) -> None:
    for memory, majority in _rows(live):
        quicken(live)
        await_khugepaged(live, partial(_is_huge, live, memory), PATIENT_SCANS)
        _expect_nodes(live, memory, majority)
        let_rest(live)


@ON_NODES.case(
    "MADV_COLLAPSE makes each of the huge pages of its range on the node that has most of the base pages of that one,"
    " whatever nodes those before it were on; anonymous memory and shared",
    f"madvise(2) MADV_COLLAPSE; {DOC}, madvise_collapse()",
    since="6.1",
    nodes=2,
)
def by_advice(live: Live) -> None:
    for memory, majority in _rows(live):
        collapse_memory(live, memory)
        _expect_nodes(live, memory, majority)


def _rows(live: Live) -> Iterator[tuple[Memory, list[int]]]:
    """Yield memory in base pages of two nodes, and which of them has most of each huge page to be."""
    nodes = live.nodes[:2]
    need_memory(live, nodes, len(_ROW) * pmd_size(live))
    put_to_work(live)
    let_rest(live)
    let_only_pmd_inherit(live)
    # otherwise memory of nodes that are far apart is left as it is (collapse_scan_abort() in mm/khugepaged.c)
    live.set_knob_if_there("proc/sys/vm/zone_reclaim_mode", "0")
    for shared in (False, True):
        for others in _OF_THE_OTHER:
            live.set_knob(f"{DIRECTORY}/shmem_enabled", "never")
            compact_if_short(live, pmd_size(live), 2 * len(_ROW))
            memory = map_aligned(live, len(_ROW), pmd_size(live), shared=shared, advice=MADV_NOHUGEPAGE)
            _fill(memory, nodes, others)
            live.set_knob(f"{DIRECTORY}/shmem_enabled", "advise")
            with live.about(f"shared {shared}, {len(others)} of {_PARTS} parts of each on the other node"):
                live.expect("bytes in huge pages before", 0, mapped_huge(memory))
                # shared memory is looked at with the flags that the mapping had before (mm/shmem.c): one more puts the
                # process on the list of khugepaged
                for _time in range(2):
                    memory.advise(MADV_HUGEPAGE)
                yield memory, [nodes[which] for which in _ROW]
            memory.actor.end()


def _fill(memory: Memory, nodes: Sequence[int], others: Sequence[int]) -> None:
    """Fill ``memory`` as _ROW says but for the parts ``others`` of each page, which come from the other node."""
    part = memory.size // _PARTS
    for which, node in enumerate(nodes):
        memory_policy.set_policy(memory.actor, Mode.BIND, [node])
        for page, number in ((page, number) for page in range(memory.pages) for number in range(_PARTS)):
            if (_ROW[page] == which) != (number in others):
                memory.fill_part(page * memory.size + number * part, part)
    memory_policy.set_policy(memory.actor, Mode.DEFAULT, [])


def _is_huge(live: Live, memory: Memory) -> bool:
    # khugepaged leaves it to the next access to map what it made of shared memory
    for page in range(memory.pages):
        live.expect("the first word", 1 + page * memory.size, memory.read(page))
    return mapped_huge(memory) == memory.length


def _expect_nodes(live: Live, memory: Memory, majority: Sequence[int]) -> None:
    """Expect all to be huge, each page on its node. Raises CannotRun where a node is too fragmented for that."""
    if not _is_huge(live, memory):
        expect_no_node_short(live, memory.size, memory.pages)
    live.expect("bytes in huge pages", memory.length, mapped_huge(memory))
    found = nodes_of(memory.actor, [memory.at(page) for page in range(memory.pages)])
    if found != [*majority]:
        # a block of another node is taken where the right one has none
        expect_no_node_short(live, memory.size, memory.pages)
    live.expect("nodes of the huge pages", [*majority], found)
    memory.expect_filled()


class ThpCollapsedOnNodes(LiveTest):
    def test_collapsed_on_nodes(self) -> None:
        self.run_area(ON_NODES)
