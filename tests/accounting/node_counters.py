"""What the vmstat of each node counts of huge pages: those that lie there, and together what /proc/vmstat counts."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from operator import eq

from hugepage_qa.cases.added_up import add_up_counters, tells_of_pages_in_use
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import bind, run_on_node
from hugepage_qa.cases.movable_kinds import movable_memory
from hugepage_qa.cases.thp_memory import mapped_huge, pmd_size
from hugepage_qa.cases.thp_policy import huge_pages
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, shared_huge_pages
from hugepage_qa.kernel.counters import read_vmstat
from hugepage_qa.kernel.nodes import node_directories, read_nodes
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest

NODE_COUNTERS = Area("accounting/node-counters", sizes=Sizes.ONCE)

#: but nr_file_hugepages, which folio_migrate_mapping() leaves on the node that a page of a file has moved from
_OF_HUGE_PAGES = re.compile(r"nr_(anon_transparent_hugepages|shmem_(hugepages|pmdmapped)|file_pmdmapped)")
#: pages of all pools that are in use, in base pages
_OF_POOLS = "nr_hugetlb"
#: kinds of memory, as movable_memory() names them, and what counts its huge pages
_COUNTED_AS = {
    "anonymous huge pages": ("nr_anon_transparent_hugepages",),
    "huge pages of a file": ("nr_shmem_hugepages", "nr_shmem_pmdmapped"),
}
#: of the machine, and of all nodes, by counter
Counted = tuple[dict[str, int], dict[str, int]]
#: others have and give back huge pages while all nodes are read
_SECONDS = 10.0


@NODE_COUNTERS.case(
    "what vmstat counts of huge pages, anonymous ones and shared, is the same for the machine and for all of its nodes"
    " together, in the same unit",
    "Documentation/ABI/stable/sysfs-devices-node vmstat; drivers/base/node.c node_read_vmstat(); mm/vmstat.c"
    " vmstat_start()",
)
def added_up(live: Live) -> None:
    let_only_pmd_inherit(live)
    if not node_directories(live.host):
        raise CannotRun("this kernel has no NUMA nodes")
    kinds: list[Callable[[Live], Memory]] = [huge_pages, shared_huge_pages]
    for make in kinds:
        memory = make(live)
        live.expect("memory that is mapped in huge pages", memory.length, mapped_huge(memory))
        with live.about(make.__name__.replace("_", " ")):
            counted = live.host.last_look(partial(_counted, live), _adds_up, _SECONDS)
            live.expect("counters of all nodes together", *counted)
        memory.actor.end()


@NODE_COUNTERS.case(
    "vmstat of a node counts the huge pages that lie there, anonymous ones and shared, on whichever node the process"
    " runs that takes them and gives them back, and that of no other node does; none counts base pages as such",
    "Documentation/ABI/stable/sysfs-devices-node vmstat; mm/memcontrol.c lruvec_stat_mod_folio()",
    nodes=2,
)
def on_the_node_of_the_pages(live: Live) -> None:
    _need_no_others(live)
    for (near, cpus), node in product(_nodes_with_cpus(live).items(), live.nodes):
        before = _of_nodes(live)
        for name, memory in movable_memory(live, node, partial(run_on_node, node=near, cpus=cpus)):
            with live.about(f"{name} of node {node}, taken on node {near}"):
                pages = memory.length // pmd_size(live)
                _expect_risen(live, before, {(node, counter): pages for counter in _COUNTED_AS.get(name, ())})
                memory.actor.end()
                _expect_risen(live, before, {})


@NODE_COUNTERS.case(
    "nr_hugetlb of a node counts the pages of a pool that are in use and lie there, private ones and shared, on"
    " whichever node the process runs that takes them and gives them back, and that of no other node does",
    "Documentation/ABI/stable/sysfs-devices-node vmstat; mm/hugetlb.c alloc_hugetlb_folio(), free_huge_folio():"
    " NR_HUGETLB, since 05d4532b60e3; mm/memcontrol.c lruvec_stat_mod_folio()",
    since="6.13",
    nodes=2,
    sizes=Sizes.BUDDY,
)
def on_the_node_of_pool_pages(live: Live) -> None:
    _need_no_others(live)
    nodes = _nodes_with_cpus(live)
    for node in nodes:
        live.reserve(2, node)
    for node in nodes:
        _page_taken_on(live, node, node)
    before = _of_nodes(live)
    if not tells_of_pages_in_use(live, (before[node, _OF_POOLS] for node in nodes)):
        raise CannotRun(f"{_OF_POOLS} reads 0 with a page in use: pages that were not had, or moved, are out of it")
    for near, node, shared in product(nodes, nodes, (False, True)):
        with live.about(f"node {node}, taken on node {near}, shared {shared}"):
            memory = _page_taken_on(live, near, node, shared=shared)
            _expect_risen(live, before, {(node, _OF_POOLS): live.size // live.base_page})
            memory.actor.end()
            _expect_risen(live, before, {})


def _page_taken_on(live: Live, near: int, node: int, *, shared: bool = False) -> Memory:
    """Return a page of the pool of ``node`` that a process has taken which runs on node ``near``."""
    actor = live.actor()
    run_on_node(actor, near, read_nodes(live.host).each[near].cpus)
    memory = live.map(1, actor, shared=shared)
    bind(memory, [node])
    memory.touch()
    live.expect("node in numa_maps", {node: 1}, memory.numa_maps().nodes)
    return memory


def _need_no_others(live: Live) -> None:
    if live.host.has_others:
        raise CannotRun("others may have huge pages, and give them back meanwhile")


def _nodes_with_cpus(live: Live) -> dict[int, Sequence[int]]:
    nodes = read_nodes(live.host)
    return {node: nodes.each[node].cpus for node in live.nodes if nodes.each[node].cpus}


def _of_nodes(live: Live) -> dict[tuple[int, str], int]:
    """Return what each node counts of huge pages, by node and counter."""
    add_up_counters(live)
    tree = ObservedTree(live.host)
    names = _judged(live, read_vmstat(tree)) | {_OF_POOLS}
    return {
        (node, name): count
        for node, at in node_directories(tree).items()
        for name, count in read_vmstat(tree, f"{at}/vmstat").items()
        if name in names
    }


def _expect_risen(live: Live, before: Mapping[tuple[int, str], int], expected: Mapping[tuple[int, str], int]) -> None:
    """Expect these counters alone to have risen since ``before``, by as much."""
    wanted = {key: count for key, count in expected.items() if key in before}

    def risen() -> dict[tuple[int, str], int]:
        now = _of_nodes(live)
        return {key: now[key] - count for key, count in before.items() if now[key] != count}

    live.expect("how counters of nodes rose", wanted, live.host.last_look(risen, partial(eq, wanted), _SECONDS))


def _adds_up(counted: Counted) -> bool:
    of_machine, of_nodes = counted
    return of_machine == of_nodes


def _counted(live: Live) -> Counted:
    """Return what is counted of huge pages for the machine, and for all of its nodes, by counter."""
    add_up_counters(live)
    tree = ObservedTree(live.host)
    of_machine = read_vmstat(tree)
    nodes = [read_vmstat(tree, f"{at}/vmstat") for at in node_directories(tree).values()]
    names = _judged(live, of_machine)
    return {name: of_machine[name] for name in names}, {name: sum(node[name] for node in nodes) for name in names}


def _judged(live: Live, of_machine: Mapping[str, int]) -> set[str]:
    """Return the names of counters of huge pages but those that a known bug makes wrong."""
    names = {name for name in of_machine if _OF_HUGE_PAGES.fullmatch(name)}
    moved = of_machine.get("thp_migration_success")
    if moved and live.has_bug(Quirk.MOVED_SHARED_PAGE_OFF_NODES):
        # it may be below 0 on a node, which shows 0 then, since such a page has moved
        live.notes.append("nr_shmem_hugepages is not judged: huge pages have moved")
        names.discard("nr_shmem_hugepages")
    return names


class NodeCounters(LiveTest):
    def test_node_counters(self) -> None:
        self.run_area(NODE_COUNTERS)
