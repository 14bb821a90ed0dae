"""What numastat of each node counts of memory as it is allocated: by who wanted it where, got it where, ran where."""

import mmap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from hugepage_qa.cases.added_up import add_up_counters
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import Mode, give_policy, run_on_node, set_policy
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.cases.thp_memory import map_aligned, need_blocks, pmd_size
from hugepage_qa.cases.thp_policy import set_policy as set_thp_policy
from hugepage_qa.kernel.counters import read_vmstat
from hugepage_qa.kernel.memory_layout import read_zones
from hugepage_qa.kernel.nodes import node_directories, read_nodes
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

STATISTICS = Area("accounting/node-statistics", sizes=Sizes.ONCE)

RULE = "Documentation/admin-guide/numastat.rst; mm/page_alloc.c zone_statistics()"
#: of numastat of a node, with the names that /proc/vmstat has for the sums
_SUMS = {
    "numa_hit": "numa_hit",
    "numa_miss": "numa_miss",
    "numa_foreign": "numa_foreign",
    "interleave_hit": "numa_interleave",
    "local_node": "numa_local",
    "other_node": "numa_other",
}
_MACHINE = "/proc/vmstat"
#: of a node, in /proc/zoneinfo
_ZONES = "zones of"
#: zones for what can be moved alone, and of devices
_NO_TABLES = "Movable", "Device"
_SWITCH = "proc/sys/vm/numa_stat"
#: base pages that are filled at once, and huge pages that are filled and given back so often
_BASE_PAGES, _HUGE_PAGES, _ROUNDS = 4096, 4, 32
_ATTEMPTS = 3
#: what nr_hugepages can hold, an unsigned long
_LARGEST = 2**64 - 1
#: what counts, by name -> counter -> count
Counted = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class _Way:
    """How memory comes to its nodes: by a policy of its own, or by that of its process."""

    name: str
    mode: Mode
    nodes: Sequence[int]
    of_process: bool = False


@dataclass(frozen=True)
class _Kind:
    """``pages`` pages of ``size`` bytes that are filled so often, and whether each comes with a page table."""

    size: int
    pages: int
    rounds: int
    advice: int
    has_tables: bool

    def make(self, live: Live, actor: Actor) -> Memory:
        """Return memory that nobody has touched."""
        return map_aligned(live, self.pages, self.size, actor=actor, advice=self.advice)


@STATISTICS.case(
    "base pages are counted by the node that they came from: as a hit, since they were wanted there by whichever"
    " policy, as local where the process ran there, as of another node where it did not, and as interleaved where they"
    " were; nothing else counts them, and /proc/zoneinfo and /proc/vmstat have their sums",
    RULE,
    nodes=2,
)
def base_pages(live: Live) -> None:
    _expect_each_way(live, _Kind(live.base_page, _BASE_PAGES, 1, MADV_NOHUGEPAGE, has_tables=False))


@STATISTICS.case(
    "a transparent huge page is counted once by the node that it came from, and as what a base page is counted",
    f"{RULE}, rmqueue()",
    nodes=2,
)
def huge_pages(live: Live) -> None:
    _expect_each_way(live, _Kind(pmd_size(live), _HUGE_PAGES, _ROUNDS, MADV_HUGEPAGE, has_tables=True))


@STATISTICS.case(
    "base pages that a process wanted from a full node are counted as missed by the node that they came from, and as"
    " foreign by the full one, and what it still had as hits; as local and as of another node they are counted by where"
    " the process runs",
    f"{RULE} numa_miss, numa_foreign",
    nodes=2,
    sizes=Sizes.BUDDY,
)
def pages_of_a_full_node(live: Live) -> None:
    if not live.host.is_thrown_away():
        raise CannotRun("no node of a machine that others use is filled")
    _need_counting(live)
    set_thp_policy(live, "madvise")
    other, *_rest, full = live.nodes
    nodes = read_nodes(live.host)
    live.make_room()
    live.host.write(live.pool_file("nr_hugepages", node=full), str(_LARGEST))
    for near in (node for node in (other, full) if nodes.each[node].cpus):
        length = live.node_meminfo(full)["MemFree"] + _BASE_PAGES * live.base_page
        need_memory(live, [other], length)
        actor = live.actor()
        run_on_node(actor, near, nodes.each[near].cpus)
        set_policy(actor, Mode.DEFAULT, [])
        memory = map_aligned(live, length // live.base_page, live.base_page, actor=actor, advice=MADV_NOHUGEPAGE)
        give_policy(memory, Mode.PREFERRED, [full])
        found = _risen(live, partial(_fill_again_and_again, memory, 1))
        came = memory.numa_maps().nodes
        missed = {node: pages for node, pages in came.items() if node != full}
        if sum(missed.values()) < _BASE_PAGES:
            raise CannotRun(f"node {full} has given all but {sum(missed.values())} pages: it was not full")
        of_nodes = _hits(live, {full: came.get(full, 0)}, near)
        for node, pages in missed.items():
            counts = of_nodes[_name(node)]
            counts["numa_miss"] = counts["local_node" if node == near else "other_node"] = pages
        of_nodes[_name(full)]["numa_foreign"] = sum(missed.values())
        least = _with_sums(of_nodes)
        with live.about(f"processor on node {near}, node {full} full"):
            wrong = _outside(least, _more(least, _BASE_PAGES), found)
            live.expect(f"counters that rose by other than they must, of pages on nodes {came}", {}, wrong)
        actor.end()
    live.set_nr(0, full)


def _expect_each_way(live: Live, kind: _Kind) -> None:
    _need_counting(live)
    set_thp_policy(live, "madvise")
    both, nodes = live.nodes[:2], read_nodes(live.host)
    for near in (node for node in both if nodes.each[node].cpus):
        for way in _ways(both, near):
            need_memory(live, both, kind.pages * kind.size)
            with live.about(f"processor on node {near}, {way.name}"):
                _expect_counted(live, kind, way, near, nodes.each[near].cpus)


def _need_counting(live: Live) -> None:
    if (live.host.read(_SWITCH) or "1").strip() == "0":
        raise CannotRun("vm.numa_stat is 0: nothing is counted")


def _ways(both: Sequence[int], near: int) -> Iterable[_Way]:
    """Yield each way in which memory of a process on ``near`` comes to one of two nodes, or both in turn."""
    yield _Way("no policy", Mode.DEFAULT, (near,), of_process=True)
    for node in both:
        yield _Way(f"bound to {node}", Mode.BIND, (node,))
        yield _Way(f"of a process bound to {node}", Mode.BIND, (node,), of_process=True)
        yield _Way(f"preferring {node}", Mode.PREFERRED, (node,))
    yield _Way("interleaved", Mode.INTERLEAVE, both)


def _expect_counted(live: Live, kind: _Kind, way: _Way, near: int, cpus: Iterable[int]) -> None:
    """Expect what counts memory to rise by it, and by less than as much again, which others may have allocated.

    Where it does not, it is tried again. Raises CannotRun where others allocate as much with nothing done, where it
    is something else each time, and where a node lacks the memory.
    """
    each = kind.pages * kind.rounds // len(way.nodes)
    least = _least(live, way, near, each)
    tables = each * len(way.nodes) if kind.has_tables else 0
    most = _most(least, _sources_of_tables(live, way, near), near, tables, each)
    wrong: list[dict[str, str]] = []
    for _attempt in range(_ATTEMPTS):
        actor = live.actor()
        run_on_node(actor, near, cpus)
        set_policy(actor, Mode.DEFAULT, [])
        memory = kind.make(live, actor)
        _give(way, memory)
        began = live.host.clock()
        found = _risen(live, partial(_fill_again_and_again, memory, kind.rounds))
        took = live.host.clock() - began
        _need_its_nodes(live, memory, way)
        actor.end()
        wrong.append(_outside(least, most, found))
        if not wrong[-1]:
            return
        idle = _risen(live, partial(live.host.pause, took))
        if any(count >= each // 2 for counts in idle.values() for count in counts.values()):
            raise CannotRun("others allocate as much memory")
    always = {name: told for name, told in wrong[-1].items() if all(name in once for once in wrong)}
    if not always:
        raise CannotRun(f"counters rise otherwise each time: {wrong}")
    live.expect(f"counters that rose by other than they must, of {each} pages of each node", {}, always)


def _give(way: _Way, memory: Memory) -> None:
    nodes = () if way.mode is Mode.DEFAULT else way.nodes
    if way.of_process:
        set_policy(memory.actor, way.mode, nodes)
    else:
        give_policy(memory, way.mode, nodes)


def _fill_again_and_again(memory: Memory, rounds: int) -> None:
    """Fill it and give it back, ``rounds`` times; the last time it is kept."""
    for number in range(rounds):
        if number:
            memory.advise(mmap.MADV_DONTNEED)
        memory.actor.fill(memory.address, memory.length, memory.size, 1)


def _need_its_nodes(live: Live, memory: Memory, way: _Way) -> None:
    """Raise CannotRun where memory is not in pages of its kind, or not on its nodes, which have too little of it."""
    if memory.size > live.base_page:
        need_blocks(live, memory)
    pages = memory.length // live.base_page // len(way.nodes)
    if memory.numa_maps().nodes != dict.fromkeys(way.nodes, pages):
        raise CannotRun("a node that has memory free gave none of it: other cases judge that")


def _least(live: Live, way: _Way, near: int, each: int) -> Counted:
    """Return by how much counters rise at least with ``each`` pages of each node of ``way``."""
    least = _hits(live, dict.fromkeys(way.nodes, each), near)
    if way.mode is Mode.INTERLEAVE:
        for node in way.nodes:
            least[_name(node)]["interleave_hit"] = each
    return _with_sums(least)


def _hits(live: Live, pages: Mapping[int, int], near: int) -> dict[str, dict[str, int]]:
    """Return what each node counts of pages of nodes that were wanted there by a process on the node ``near``."""
    hits = {_name(node): dict.fromkeys(_SUMS, 0) for node in live.nodes}
    for node, count in pages.items():
        counts = hits[_name(node)]
        counts["numa_hit"] = counts["local_node" if node == near else "other_node"] = count
    return hits


def _with_sums(of_nodes: Counted) -> Counted:
    """Return the counts of the zones of each node, and of the machine, with those of nodes."""
    sums = {name: sum(counts[name] for counts in of_nodes.values()) for name in _SUMS}
    return {**of_nodes, **{f"{_ZONES} {name}": counts for name, counts in of_nodes.items()}, _MACHINE: sums}


def _most(least: Counted, sources: Iterable[int], near: int, tables: int, others: int) -> Counted:
    """Return what each counter must stay below, with so many page tables from any of the nodes ``sources``."""
    most = _more(least, others)
    places = {source: "local_node" if source == near else "other_node" for source in sources}
    for source, place in places.items():
        for name in (_name(source), f"{_ZONES} {_name(source)}"):
            most[name]["numa_hit"] += tables
            most[name][place] += tables
    for counter in {"numa_hit", *places.values()}:
        most[_MACHINE][counter] += tables
    return most


def _sources_of_tables(live: Live, way: _Way, near: int) -> list[int]:
    """Return the nodes that page tables may come from: as other memory of the process does, where that can be."""
    zones = [zone for zone in read_zones(live.host) if zone.present and zone.name not in _NO_TABLES]
    able = [node for node in live.nodes if any(zone.node == node for zone in zones)]
    source = way.nodes[0] if way.of_process else near
    # it is bound to no node for what none of its nodes can have (mm/mempolicy.c apply_policy_zone())
    return [source] if source in able else able


def _more(least: Counted, others: int) -> dict[str, dict[str, int]]:
    return {name: {counter: count + others for counter, count in counts.items()} for name, counts in least.items()}


def _outside(least: Counted, most: Counted, found: Counted) -> dict[str, str]:
    """Return the counters that rose by less than the least, or by as much as the most, and by how much."""
    return {
        f"{counter} of {name}": f"{count}, not {least[name][counter]}"
        for name, counts in found.items()
        for counter, count in counts.items()
        if not least[name][counter] <= count < most[name][counter]
    }


def _risen(live: Live, act: Callable[[], object]) -> Counted:
    """Return by how much each counter of each node, and of the machine, rises while ``act`` is called."""
    before = _counters(live)
    act()
    after = _counters(live)
    return {
        name: {counter: count - before[name][counter] for counter, count in counts.items()}
        for name, counts in after.items()
    }


def _counters(live: Live) -> Counted:
    add_up_counters(live)
    tree = ObservedTree(live.host)
    # the other files have processors add up what each has counted for itself, and then zoneinfo has it in any case
    zones = read_zones(tree)
    places = node_directories(live.host)
    machine = read_vmstat(tree)
    of_nodes = {_name(node): read_vmstat(tree, f"{places[node]}/numastat") for node in live.nodes}
    of_zones = {
        f"{_ZONES} {_name(node)}": {
            name: sum(zone.allocated.get(of_machine, 0) for zone in zones if zone.node == node)
            for name, of_machine in _SUMS.items()
        }
        for node in live.nodes
    }
    return {**of_nodes, **of_zones, _MACHINE: {name: machine[of_machine] for name, of_machine in _SUMS.items()}}


def _name(node: int) -> str:
    return f"node {node}"


class NodeStatistics(LiveTest):
    def test_node_statistics(self) -> None:
        self.run_area(STATISTICS)
