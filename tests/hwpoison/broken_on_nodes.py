"""Memory that breaks on one of several nodes, and surplus pages that break: what nodes and pools count afterwards."""

from collections.abc import Callable
from functools import partial
from itertools import permutations, product

from hugepage_qa.cases.broken_memory import break_in_use, hard_offline, need_memory_failure, out_of_use
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import bind
from hugepage_qa.cases.pages_of_a_node import filled_page_on, need_memory, require_no_free_page
from hugepage_qa.cases.thp_memory import map_aligned, mapped_huge, need_blocks, pmd_size
from hugepage_qa.cases.thp_policy import set_policy
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit
from hugepage_qa.kernel.nodes import node_directories
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.plugins.avocado_test import LiveTest

ON_NODES = Area("hwpoison/broken-on-nodes", sizes=Sizes.BUDDY)

RULE = "Documentation/ABI/testing/sysfs-memory-page-offline, sysfs-devices-node memory_failure; mm/memory-failure.c"
_STATS = "memory_failure"
_OUTCOMES = ("recovered", "ignored", "failed", "delayed")
_STATS_SINCE = "6.4"


@ON_NODES.case(
    "a page of a pool that breaks on a node is counted by that node, as recovered and in its total, and by no other"
    " one; the pool of that node has one less, and one base page is out of use",
    f"{RULE} action_result(), update_per_node_mf_stats(), me_huge_page()",
    nodes=2,
    since=_STATS_SINCE,
)
def pages_of_a_pool(live: Live) -> None:
    for node in live.nodes[:2]:
        require_no_free_page(live, node)
    for node, place in product(live.nodes[:2], (0, live.size // live.base_page - 1)):
        with live.about(f"node {node}, base page {place}"):
            live.reserve(1, node)
            _expect_counted(live, partial(filled_page_on, live, node), node, place)
            live.expect_pool(nr=0, free=0)
            live.expect_pool(nr=0, free=0, node=node)


@ON_NODES.case(
    "the same of memory of no pool: a base page, one of a huge page, and one of a shared huge page",
    f"{RULE} action_result(), update_per_node_mf_stats(), try_to_split_thp_page()",
    nodes=2,
    sizes=Sizes.ONCE,
    since=_STATS_SINCE,
)
def other_memory(live: Live) -> None:
    set_policy(live, "madvise")
    let_only_pmd_inherit(live)
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "advise")
    for shared, advice in ((False, MADV_NOHUGEPAGE), (False, MADV_HUGEPAGE), (True, MADV_HUGEPAGE)):
        for node in live.nodes[:2]:
            need_memory(live, [node], pmd_size(live))
            with live.about(f"node {node}, shared: {shared}, huge: {advice == MADV_HUGEPAGE}"):

                def make(node: int = node, shared: bool = shared, advice: int = advice) -> Memory:
                    memory = map_aligned(live, 1, pmd_size(live), shared=shared, advice=advice)
                    bind(memory, [node])
                    memory.fill()
                    if advice == MADV_HUGEPAGE:
                        need_blocks(live, memory, node)
                        live.expect("bytes in huge pages", memory.length, mapped_huge(memory))
                    return memory

                _expect_counted(live, make, node, 1)


@ON_NODES.case(
    "a page in use that breaks while its pool has a surplus is taken from the surplus, whichever of both breaks: the"
    " pool keeps its persistent pages, and grows again by another page, on its node, too",
    "Documentation/admin-guide/mm/hugetlbpage.rst nr_overcommit_hugepages, surplus_hugepages; mm/hugetlb.c"
    " free_huge_folio(), remove_hugetlb_folio(); mm/memory-failure.c me_huge_page()",
    since="6.1",  # a page that breaks in use is given back before it is taken away
)
def surplus_pages(live: Live) -> None:
    need_memory_failure(live)
    node = live.nodes[0] if live.nodes else None
    for persistent, breaks in ((0, 0), (1, 0), (1, 1)):
        with live.about(f"{persistent} persistent, number {breaks} breaks"):
            if node is not None:
                require_no_free_page(live, node)
            live.reserve(persistent, node)
            live.let_grow(1, node)
            memories = [_mapped(live, node) for _number in range(persistent + 1)]
            live.expect_pool(nr=persistent + 1, free=0, surplus=1)
            before = out_of_use(live)
            frame = memories[breaks].frames().pop()
            hard_offline(live, frame)
            live.expect_pool(nr=persistent, free=0)
            live.expect_sysctl(persistent)
            if node is not None:
                live.expect_pool(nr=persistent, free=0, node=node)
            live.expect("base pages out of use", 1, out_of_use(live) - before)
            for number, memory in enumerate(memories):
                if number != breaks:
                    memory.expect_filled()
            again = _mapped(live, node)
            live.expect_pool(nr=persistent + 1, free=0, surplus=1)
            live.expect("whether the broken page is used", False, frame in again.frames())
            for memory in (*memories, again):
                memory.actor.end()
            live.expect_pool(nr=persistent, free=persistent)
            live.overcommit(0)
            live.set_nr(0, node)
            live.expect_pool(nr=0, free=0)


@ON_NODES.case(
    "a free page that breaks is taken from the persistent ones of its node, although another node has a surplus page,"
    " which that one keeps",
    "Documentation/admin-guide/mm/hugetlbpage.rst surplus_hugepages; mm/hugetlb.c dissolve_free_hugetlb_folio()",
    nodes=2,
)
def free_page_beside_a_surplus_page(live: Live) -> None:
    need_memory_failure(live)
    for here, there in permutations(live.nodes[:2]):
        with live.about(f"node {here}"):
            for node in (here, there):
                require_no_free_page(live, node)
            live.let_grow(1, there)
            surplus = _mapped(live, there)
            live.reserve(1, here)
            memory = filled_page_on(live, here)
            frame = memory.frames().pop()
            memory.actor.end()
            live.expect_pool(nr=2, free=1, surplus=1)
            hard_offline(live, frame)
            live.expect_pool(nr=1, free=0, surplus=1)
            for node, pages in ((here, 0), (there, 1)):
                live.expect_pool(node=node, nr=pages, free=0, surplus=pages)
            surplus.expect_filled()
            surplus.actor.end()


def _mapped(live: Live, node: int | None) -> Memory:
    """Return a page that was filled, on ``node`` where there are several."""
    # a reservation would be of any node
    memory = live.map(1, noreserve=True)
    if node is not None and live.has_several_nodes:
        bind(memory, [node])
    memory.fill()
    return memory


def _expect_counted(live: Live, make: Callable[[], Memory], node: int, place: int) -> None:
    """Break a base page of what ``make`` gives, and expect its node alone to count that."""
    offset = place * live.base_page
    _memory, _frame, (stats, before) = break_in_use(live, make, offset, lambda: (_stats(live), out_of_use(live)))
    now = _stats(live)
    found = {(of, name): count - stats[of][name] for of, counts in now.items() for name, count in counts.items()}
    expected = {pair: int(pair[0] == node and pair[1] in ("recovered", "total")) for pair in found}
    live.expect("memory_failure of each node", expected, found)
    live.expect("base pages out of use", 1, out_of_use(live) - before)


def _stats(live: Live) -> dict[int, dict[str, int]]:
    """Return what each node has counted. Raises CannotRun where they count nothing."""
    need_memory_failure(live)
    tree = ObservedTree(live.host)
    found = {
        node: {
            name: count
            for name in (*_OUTCOMES, "total")
            if (count := read_integer(tree, f"{path}/{_STATS}/{name}")) is not None
        }
        for node, path in node_directories(live.host).items()
        if node in live.nodes
    }
    if not all(found.values()):
        raise CannotRun("the nodes of this kernel do not count memory that broke")
    return found


class BrokenOnNodes(LiveTest):
    def test_on_nodes(self) -> None:
        self.run_area(ON_NODES)
