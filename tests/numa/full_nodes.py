"""Memory that is to be on a node that has no more: the rest goes to swap, and none elsewhere, and huge pages split."""

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragments import join_free_pages
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import FRAME, Memory
from hugepage_qa.cases.memory_policy import MOVES, Mode, base_pages_of, bind, nodes_of, prefer, set_policy
from hugepage_qa.cases.pages_of_a_node import cpuset_of
from hugepage_qa.cases.pinned_pages import pipe_with
from hugepage_qa.cases.swapped import need_swap, zswap_knob
from hugepage_qa.cases.thp_memory import MIN_FREE, map_aligned, mapped_huge, pmd_size
from hugepage_qa.cases.thp_policy import fill_in_huge_pages, give_on_advice
from hugepage_qa.kernel.counters import read_vmstat
from hugepage_qa.kernel.log import tells_of_trouble
from hugepage_qa.kernel.proc_tables import read_swaps
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_POPULATE_WRITE
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor, Refused
from hugepage_qa.sizes import GIB, KIB, MIB

FULL_NODES = Area("numa/full-nodes", sizes=Sizes.DEFAULT)

_DOCUMENT = "Documentation/admin-guide/mm/numa_memory_policy.rst"
#: what the pool leaves of the node, and how much more than is free then a process has; what the kernel keeps of the
#: machine meanwhile, for to swap as much as it keeps by itself takes an emulated processor minutes
_LEFT, _MORE, _KEPT = 32 * MIB, 16 * MIB, 8 * MIB
#: how much more a process asks for that is to be killed: the kernel may make some free
_TOO_MUCH = 256 * MIB
#: of an emulated machine it takes seconds to fill as much, and machines of this size are made for tests
_MOST, _LARGE = 256 * MIB, 8 * GIB
#: one of so many base pages
_LOOKED_AT = 16
_KILLED = re.compile(r"Out of memory.*: Killed process (\d+) ")
#: a CPU that others have, too, takes so long to fill all of it
_SECONDS = 120.0
#: of what the pool has left: so much is scattered, and so many huge pages are to move there; blocks that others free
_SCATTERED, _MOVED, _SPARE = 20 * MIB, 2, 16
#: one part of so many of a block is enough for it to be free as a whole again
_PARTS = 8
_SWAPPINESS, _READ_AHEAD = "proc/sys/vm/swappiness", "proc/sys/vm/page-cluster"


@dataclass(frozen=True)
class Way:
    """What has memory come from a node, and whether it comes from no other one."""

    name: str
    alone: bool
    shared: bool
    advice: int
    #: gets the process before it has memory, and the memory before it is touched
    of_process: Callable[[Live, Actor, int], None] | None = None
    of_memory: Callable[[Memory, int], None] | None = None


def _bind_process(_live: Live, actor: Actor, node: int) -> None:
    set_policy(actor, Mode.BIND, [node])


def _prefer_for_process(_live: Live, actor: Actor, node: int) -> None:
    set_policy(actor, Mode.PREFERRED, [node])


def _put_into_cpuset(live: Live, actor: Actor, node: int) -> None:
    cpuset_of(live, node).add(actor)


def _bind_memory(memory: Memory, node: int) -> None:
    bind(memory, [node])


_BASE, _HUGE = MADV_NOHUGEPAGE, MADV_HUGEPAGE
_WAYS = (
    Way("bound process", True, False, _BASE, of_process=_bind_process),
    Way("bound process, huge pages", True, False, _HUGE, of_process=_bind_process),
    Way("bound process, shared memory", True, True, _BASE, of_process=_bind_process),
    Way("bound memory", True, False, _BASE, of_memory=_bind_memory),
    Way("bound shared memory", True, True, _BASE, of_memory=_bind_memory),
    Way("process in a cpuset", True, False, _BASE, of_process=_put_into_cpuset),
    Way("process that prefers the node", False, False, _BASE, of_process=_prefer_for_process),
    Way("memory that prefers the node", False, False, _BASE, of_memory=prefer),
)


@FULL_NODES.case(
    "a process that asks a node for more than that has free, because it or its memory is bound to it, or for its"
    " cpuset, has none of it on another node, in huge pages or base pages, private or shared: some of it goes to swap;"
    " one that only prefers the node has the rest on others; nothing is lost",
    f"{_DOCUMENT} MPOL_BIND, MPOL_PREFERRED; Documentation/admin-guide/cgroup-v2.rst cpuset.mems; mm/page_alloc.c"
    " __alloc_pages_slowpath()",
    nodes=2,
)
def more_than_is_free(live: Live) -> None:
    node, length = _fill_node(live)
    need_swap(live, 2 * length)
    live.set_knob_if_there(zswap_knob("enabled"), "N")
    live.set_knob(_SWAPPINESS, "100")
    # what others read ahead from swap comes by their policy
    live.set_knob(_READ_AHEAD, "0")
    for way in _WAYS:
        with live.about(way.name):
            memory = _memory_of(live, way, node, length)
            # a word of each base page, of which some are looked at: an emulated machine takes minutes for all
            memory.actor.fill(memory.address, memory.length, live.base_page, 1)
            _expect_nodes(live, memory, node, alone=way.alone)
            wrong = memory.actor.check(memory.address, memory.length, _LOOKED_AT * live.base_page, 1)
            live.expect("words that changed", 0, wrong)
            # what was read from swap came to it again
            _expect_nodes(live, memory, node, alone=way.alone)
            memory.actor.end()


@FULL_NODES.case(
    "a process that may have memory of a node alone, and asks for more than that has free, is killed where there is no"
    " swap, and nobody else is, whatever others have free; what another one has there stays",
    f"{_DOCUMENT} MPOL_BIND; Documentation/admin-guide/cgroup-v2.rst cpuset.mems; mm/oom_kill.c constrained_alloc(),"
    " oom_cpuset_eligible()",
    nodes=2,
    since="5.14",  # MADV_POPULATE_WRITE
)
def killed(live: Live) -> None:
    if read_swaps(live.host):
        raise CannotRun("this machine has swap")
    live.set_knob("proc/sys/vm/panic_on_oom", "0")
    node, length = _fill_node(live)
    other = live.actor()
    set_policy(other, Mode.BIND, [node])
    beside = map_aligned(live, 1, pmd_size(live), actor=other, advice=MADV_NOHUGEPAGE)
    beside.fill()
    live.host.new_kernel_log()
    for way in _WAYS:
        if way.alone:
            with live.about(way.name):
                _expect_killed(live, _memory_of(live, way, node, length + _TOO_MUCH))
    beside.expect_filled()


def _expect_killed(live: Live, memory: Memory) -> None:
    """Have a process ask for all of its memory, and expect it to be killed for that, and nobody else."""
    process, lines = memory.actor.pid, list[str]()
    live.host.write(f"proc/{process}/oom_score_adj", "1000")
    memory.actor.threads.attempt("madvise", memory.address, memory.length, MADV_POPULATE_WRITE)

    def killed_ones() -> set[int]:
        lines.extend(live.host.new_kernel_log(judged=True))
        return {int(found[1]) for found in map(_KILLED.search, lines) if found}

    found = live.host.last_look(killed_ones, bool, _SECONDS)
    if not found:
        # each of the others would be waited for as long
        live.fail("processes killed", {process}, found)
    live.expect("processes killed", {process}, found)
    live.expect("lines of the kernel log that tell of trouble", [], [*filter(tells_of_trouble, lines)])


@FULL_NODES.case(
    "huge pages, anonymous or of a tmpfs, that are to move to a node without a block for them, and with room for their"
    " base pages, are split, which is counted, and all of these are there then, by whichever call, and hold what they"
    " held",
    "Documentation/mm/page_migration.rst THP_MIGRATION_SPLIT; mm/migrate.c migrate_pages(), try_split_folio()",
    nodes=2,
    since="6.1",
)
def split_where_they_move(live: Live) -> None:
    # what is given back is on no list of a CPU, where it counts as free nowhere
    join_free_pages(live)
    here, (node, _length) = live.nodes[0], _fill_node(live)
    _leave_no_block(live, node)
    split = 0
    for shared, by in product((False, True), MOVES):
        with live.about(f"shared {shared}, by {by}"):
            # somebody may have a hold of one for a moment
            move = partial(_moved_at_once, live, here, node, shared, by)
            found, of_call = live.host.last_attempt(move, lambda seen: seen[0] == (0, {node}))
            live.expect("errno, and nodes of the base pages", (0, {node}), found)
            split += of_call
    if not split:
        raise CannotRun(f"node {node} had blocks for all of them")


def _leave_no_block(live: Live, node: int) -> None:
    """Have the free memory that the pool has left of ``node`` lie around pages that nobody can move.

    Raises CannotRun where there is too little of it then.
    """
    size, actor = pmd_size(live), live.actor()
    if _SCATTERED // size <= _MOVED:
        raise CannotRun(f"huge pages of {size >> 20} MiB are as large as what is left")
    memory = map_aligned(live, _SCATTERED // size, size, actor=actor, advice=MADV_NOHUGEPAGE)
    bind(memory, [node])
    actor.fill(memory.address, memory.length, live.base_page, 1)
    blocks = defaultdict[int, list[int]](list)
    for page, entry in enumerate(memory.whole_pagemap()):
        blocks[(entry & FRAME) * live.base_page // size].append(memory.address + page * live.base_page)
    for pages in blocks.values():
        if len(pages) > size // live.base_page // _PARTS:
            pipe_with(live, Memory(live, actor, pages[0], 1, live.base_page))
    memory.unmap()
    path = live.pool_file("nr_hugepages", node=node)
    live.host.write(path, str(int(live.host.read(path) or 0) + _SPARE))
    if live.node_meminfo(node)["MemFree"] < 2 * _MOVED * size:
        raise CannotRun(f"node {node} has no room for base pages either")


def _moved_at_once(live: Live, here: int, node: int, shared: bool, by: str) -> tuple[tuple[int, set[int]], int]:
    """Have huge pages on ``here`` move by one call.

    Returned are its errno, 0 for none, with the nodes of their base pages then, and how many were split.
    """
    memory = map_aligned(live, _MOVED, pmd_size(live), shared=shared, advice=MADV_HUGEPAGE)
    bind(memory, [here])
    fill_in_huge_pages(live, memory, here)
    live.expect("bytes in huge pages", memory.length, mapped_huge(memory))
    counted = read_vmstat(ObservedTree(live.host))["thp_migration_split"]
    number = 0
    try:
        MOVES[by](live, memory, here, node)
    except Refused as refusal:
        number = refusal.errno or 0
    counted = read_vmstat(ObservedTree(live.host))["thp_migration_split"] - counted
    split = memory.pages - mapped_huge(memory) // memory.size
    live.expect(f"whether {split} pages at least count as split: {counted}", True, counted >= split)
    # what a file has of a page that was split is not mapped until it is touched
    memory.expect_filled()
    nodes = set(nodes_of(memory.actor, base_pages_of(live, memory)))
    memory.actor.end()
    return (number, nodes), split


def _fill_node(live: Live) -> tuple[int, int]:
    """Have the pool leave little of a node; return that one, and how many bytes are more than it has free.

    Raises CannotRun where others use the machine, it is too large, has much left, or huge pages are as large.
    """
    if not live.host.is_thrown_away():
        raise CannotRun("no node of a machine that others use is filled")
    node = live.nodes[-1]
    if live.node_meminfo(node)["MemTotal"] > _LARGE:
        raise CannotRun(f"a node has more than {_LARGE >> 30} GiB, all of which would be taken")
    let_nobody_else_act(live)
    give_on_advice(live)
    live.set_knob(MIN_FREE, str(min(int(live.host.read(MIN_FREE) or 0), _KEPT // KIB)))
    live.make_room()
    # it need not have all: memory may be in pieces
    pages = max(0, live.node_meminfo(node)["MemFree"] - _LEFT) // live.size
    live.host.write(live.pool_file("nr_hugepages", node=node), str(pages))
    size = pmd_size(live)
    length = -(-(live.node_meminfo(node)["MemFree"] + _MORE) // size) * size
    if length > _MOST:
        raise CannotRun(f"to have more than is left of node {node} takes {length >> 20} MiB")
    return node, length


def _memory_of(live: Live, way: Way, node: int, length: int) -> Memory:
    actor, size = live.actor(), pmd_size(live)
    if way.of_process:
        way.of_process(live, actor, node)
    memory = map_aligned(live, length // size, size, actor=actor, shared=way.shared, advice=way.advice)
    if way.of_memory:
        way.of_memory(memory, node)
    return memory


def _expect_nodes(live: Live, memory: Memory, node: int, *, alone: bool) -> None:
    nodes = memory.numa_maps().nodes
    here = nodes.get(node, 0) * live.base_page
    elsewhere = sum(pages for other, pages in nodes.items() if other != node) * live.base_page
    if alone:
        live.expect("bytes on other nodes", 0, elsewhere)
        if here == memory.length:
            raise CannotRun(f"node {node} had room for {here >> 20} MiB: the kernel made some free")
    else:
        live.expect(f"whether bytes are on other nodes: {elsewhere}", True, elsewhere > 0)


class FullNodes(LiveTest):
    def test_full_nodes(self) -> None:
        self.run_area(FULL_NODES)
