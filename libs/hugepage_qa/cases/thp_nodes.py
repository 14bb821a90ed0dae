"""Nodes with room for transparent huge pages."""

from hugepage_qa.cases.fragmentation import compact_if_short, expect_no_shortage
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.cases.thp_memory import let_only_pmd_inherit, pmd_size
from hugepage_qa.cases.thp_policy import set_policy
from hugepage_qa.kernel.thp import DIRECTORY


def two_nodes_with_room(live: Live, pages: int) -> tuple[int, int]:
    """Return two nodes, each with free blocks for ``pages`` pages, which memory gets on advice, shared or not.

    Raises CannotRun where memory does not suffice, or is too fragmented: what finds no free block is base pages, or is
    split when it moves.
    """
    nodes = here, there = live.nodes[:2]
    need_memory(live, nodes, pages * pmd_size(live))
    set_policy(live, "madvise")
    let_only_pmd_inherit(live)
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "advise")
    compact_if_short(live, pmd_size(live), 2 * pages)
    for node in nodes:
        expect_no_shortage(live, pmd_size(live), pages, node)
    return here, there
