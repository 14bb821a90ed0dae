"""What cases on transparent huge pages need of nodes: room for them, pages of one, and counts that are right."""

from hugepage_qa.cases.fragmentation import compact_if_short, expect_no_shortage
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import Mode, migrate
from hugepage_qa.cases.memory_policy import set_policy as set_memory_policy
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.cases.thp_policy import fill_in_huge_pages, give_on_advice
from hugepage_qa.kernel.counters import read_vmstat
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.process.actor import Actor


def two_nodes_with_room(live: Live, pages: int) -> tuple[int, int]:
    """Return two nodes, each with free blocks for ``pages`` pages, which memory gets on advice, shared or not.

    Raises CannotRun where memory does not suffice, or is too fragmented: what finds no free block is base pages, or is
    split when it moves.
    """
    nodes = here, there = live.nodes[:2]
    need_memory(live, nodes, pages * pmd_size(live))
    give_on_advice(live)
    compact_if_short(live, pmd_size(live), 2 * pages)
    for node in nodes:
        expect_no_shortage(live, pmd_size(live), pages, node)
    return here, there


def filled_on(live: Live, actor: Actor, node: int, pages: int) -> Memory:
    """Return advised memory of ``actor`` that was filled while its policy binds it to ``node``, as it does still.

    Raises CannotRun where that has no free blocks.
    """
    set_memory_policy(actor, Mode.BIND, [node])
    memory = map_aligned(live, pages, pmd_size(live), actor=actor, advice=MADV_HUGEPAGE)
    fill_in_huge_pages(live, memory, node)
    return memory


def expect_moved_between(live: Live, memory: Memory, source: int, target: int) -> None:
    """Have all of ``memory`` move from one node to another, and expect nothing of it to be left.

    The first time it may be there already. Raises CannotRun where memory is too fragmented.
    """

    def is_moved() -> bool:
        # what somebody else has a hold of is passed over
        migrate(memory.actor, source, target)
        return not memory.numa_maps().nodes.get(source, 0)

    live.host.wait_until(is_moved)
    left = memory.numa_maps().nodes.get(source, 0)
    if left:
        expect_no_shortage(live, memory.size, memory.pages, target)
    live.expect(f"base pages left on node {source}", 0, left)


def need_count_of_shared(live: Live, node: int, length: int) -> None:
    """Raise CannotRun where ShmemHugePages of ``node`` is below 0 without the ``length`` bytes that are in use there.

    Below 0 it reads 0. With a known bug it is so after shared huge pages have moved there and gone.
    """
    if not live.has_bug(Quirk.MOVED_SHARED_PAGE_OFF_NODES):
        return
    found = live.node_meminfo(node)["ShmemHugePages"]
    if found < length and read_vmstat(ObservedTree(live.host)).get("thp_migration_success"):
        raise CannotRun(f"ShmemHugePages of node {node} is {found} with {length} in use: moved pages are out of it")
