"""Huge pages on NUMA nodes: which node they come from, are collapsed and moved to, and what nodes show of them."""

import errno
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import pairwise, product

from hugepage_qa.cases import memory_policy
from hugepage_qa.cases.added_up import add_up_counters
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import expect_change
from hugepage_qa.cases.fragmentation import compact_if_short, expect_no_shortage
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.madv_collapse import collapse_memory
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import Mode
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.cases.thp_memory import map_aligned, need_blocks, pmd_size
from hugepage_qa.cases.thp_nodes import need_count_of_shared
from hugepage_qa.cases.thp_policy import advised, expect_all_huge, set_policy
from hugepage_qa.cases.thp_shared_memory import expect_mapped_whole, let_only_pmd_inherit
from hugepage_qa.kernel.counters import read_meminfo, read_vmstat
from hugepage_qa.kernel.nodes import node_directories
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor, Refused

NODES = Area("thp/nodes", sizes=Sizes.ONCE)

_PAGES = 4
_NEW_VALUE = 77
_SHARED = "ShmemHugePages", "ShmemPmdMapped"
_MIGRATED, _NOT_MIGRATED = "thp_migration_success", "thp_migration_fail"


@NODES.case(
    "huge pages of a process that is bound to a node come from it, and its AnonHugePages has them",
    "set_mempolicy(2) MPOL_BIND; mm/mempolicy.c alloc_pages_mpol(), vma_alloc_folio()",
    nodes=2,
)
def bound(live: Live) -> None:
    need_memory(live, live.nodes[:2], _PAGES * pmd_size(live))
    set_policy(live, "madvise")
    for node in live.nodes[:2]:
        compact_if_short(live, pmd_size(live), _PAGES)
        counted = {_of(node): _PAGES * pmd_size(live), "thp_fault_alloc": _PAGES} | dict.fromkeys(_shared_of(node), 0)
        fill = partial(_fill, live, [node])
        memory = expect_change(live, counted, partial(_bound, live, node), fill, _read_counters)
        _expect_nodes(live, memory, {node: _PAGES})
        memory.expect_filled()


@NODES.case(
    "huge pages of a process that prefers a node come from it, on whichever node its processor is",
    "set_mempolicy(2) MPOL_PREFERRED; mm/mempolicy.c alloc_pages_mpol(), vma_alloc_folio()",
    nodes=2,
)
def preferred(live: Live) -> None:
    def prefer(node: int, actor: Actor) -> None:
        memory_policy.set_policy(actor, Mode.PREFERRED, [node])
        _expect_filled_on(live, node, advised(live, _PAGES, actor=actor))

    _from_each_node(live, prefer)


@NODES.case(
    "huge pages that several nodes are preferred for come from one of them, and from the home node if there is one, on"
    " whichever node the processor is",
    "set_mempolicy(2) MPOL_PREFERRED_MANY; set_mempolicy_home_node(2); mm/mempolicy.c alloc_pages_preferred_many()",
    since="5.17",
    nodes=2,
)
def preferred_of_several(live: Live) -> None:
    def prefer_several(node: int, actor: Actor) -> None:
        memory_policy.set_policy(actor, Mode.PREFERRED_MANY, [node])
        _expect_filled_on(live, node, advised(live, _PAGES, actor=actor))
        at_home = advised(live, _PAGES, actor=actor)
        memory_policy.prefer(at_home, *live.nodes[:2])
        memory_policy.set_home_node(at_home, node)
        with live.about("home node"):
            _expect_filled_on(live, node, at_home)

    _from_each_node(live, prefer_several)


@NODES.case(
    "shared huge pages of a process that is bound to a node are in its ShmemHugePages and ShmemPmdMapped alone",
    f"{THP_DOC} ShmemHugePages; Documentation/filesystems/proc.rst ShmemHugePages, ShmemPmdMapped",
    nodes=2,
)
def bound_shared(live: Live) -> None:
    length = _PAGES * pmd_size(live)
    need_memory(live, live.nodes[:2], length)
    let_only_pmd_inherit(live)
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "advise")
    for node, other in pairwise([*live.nodes[:2], live.nodes[0]]):
        compact_if_short(live, pmd_size(live), _PAGES)

        def mapped(node: int = node) -> Memory:
            actor = live.actor()
            memory_policy.set_policy(actor, Mode.BIND, [node])
            return map_aligned(live, _PAGES, pmd_size(live), shared=True, actor=actor, advice=MADV_HUGEPAGE)

        def fill(memory: Memory, node: int = node) -> None:
            memory.fill()
            expect_mapped_whole(live, memory, _PAGES, "shmem_enabled=advise")
            need_count_of_shared(live, node, memory.length)

        counted = dict.fromkeys(_shared_of(node), length) | dict.fromkeys((*_shared_of(other), _of(node)), 0)
        expect_change(live, counted, mapped, fill, _read_counters).expect_filled()


@NODES.case(
    "huge pages of interleaved memory come from the nodes in turn",
    "mbind(2) MPOL_INTERLEAVE; mm/mempolicy.c interleave_nid(), alloc_pages_mpol()",
    nodes=2,
)
def interleaved(live: Live) -> None:
    need_memory(live, live.nodes[:2], _PAGES * pmd_size(live))
    set_policy(live, "madvise")
    compact_if_short(live, pmd_size(live), _PAGES)
    memory = advised(live, _PAGES)
    first, second = live.nodes[:2]
    memory_policy.interleave(memory, [first, second])
    _fill(live, [first, second], memory)
    _expect_nodes(live, memory, {first: _PAGES // 2, second: _PAGES // 2})
    found = [memory_policy.node_of(memory, page) for page in range(_PAGES)]
    alternate = all(one != other for one, other in pairwise(found))
    live.expect("each huge page is on another node than the one before", True, alternate)
    memory.expect_filled()


@NODES.case(
    "base pages are collapsed into a huge page of the node that they, or most of them, are on, be it not the first's",
    "madvise(2) MADV_COLLAPSE; mm/khugepaged.c hpage_collapse_find_target_node()",
    since="6.1",
    nodes=2,
)
def collapsed(live: Live) -> None:
    need_memory(live, live.nodes[:2], _PAGES * pmd_size(live))
    # with it base pages of nodes that are far from each other are not collapsed (hpage_collapse_scan_abort())
    live.set_knob_if_there("proc/sys/vm/zone_reclaim_mode", "0")
    for node, first in product(live.nodes[:2], repeat=2):
        set_policy(live, "never")
        compact_if_short(live, pmd_size(live), _PAGES)
        memory = _bound(live, first)
        for page in range(memory.pages):
            memory.touch(page)
        memory_policy.set_policy(memory.actor, Mode.BIND, [node])
        memory.fill()
        memory.expect_huge(0, about="before")
        memory_policy.set_policy(memory.actor, Mode.DEFAULT, [])
        collapse_memory(live, memory, node)
        _expect_nodes(live, memory, {node: _PAGES})
        memory.expect_filled()
        memory.actor.end()


@NODES.case(
    "huge pages that move to another node are in its AnonHugePages and no longer in that of the old one, and counted",
    f"{THP_DOC} thp_migration_success; mm/migrate.c migrate_pages()",
    since="5.9",
    nodes=2,
)
def moved(live: Live) -> None:
    old, new = _with_room(live)
    length = _PAGES * pmd_size(live)
    counted = {_of(old): -length, _of(new): length, _MIGRATED: _PAGES, _NOT_MIGRATED: 0}

    def filled() -> Memory:
        memory = _bound(live, old)
        _fill(live, [old], memory)
        return memory

    def move(memory: Memory) -> None:
        try:
            memory_policy.bind(memory, [new], memory_policy.MOVE_STRICTLY)
        except Refused as refusal:
            if refusal.errno == errno.EIO:
                expect_no_shortage(live, memory.size, memory.pages, new)
            raise
        # what finds no free block is split, and moved as base pages
        need_blocks(live, memory, new)

    memory = expect_change(live, counted, filled, move, _read_counters)
    _expect_nodes(live, memory, {new: _PAGES})
    memory.expect_filled()


@NODES.case(
    "migrate_pages(2) moves the huge pages of a process to another node as a whole, and counts them",
    f"migrate_pages(2); {THP_DOC} thp_migration_success; mm/mempolicy.c do_migrate_pages()",
    since="5.9",
    nodes=2,
)
def migrated(live: Live) -> None:
    old, new = _with_room(live)
    length = _PAGES * pmd_size(live)

    def filled() -> Memory:
        memory = _bound(live, old)
        _fill(live, [old], memory)
        memory_policy.set_policy(memory.actor, Mode.DEFAULT, [])
        return memory

    def migrate(memory: Memory) -> None:
        memory_policy.migrate(memory.actor, old, new)
        if memory.smaps().anon_huge_pages != memory.length or memory.numa_maps().nodes.keys() != {new}:
            # what finds no free block is split, and moved as base pages
            expect_no_shortage(live, memory.size, memory.pages, new)

    # all that the process has moves, base pages of its program, too
    counted = {_of(old): -length, _of(new): length, _MIGRATED: _PAGES, _NOT_MIGRATED: 0}
    memory = expect_change(live, counted, filled, migrate, _read_counters)
    _expect_nodes(live, memory, {new: _PAGES})
    memory.expect_filled()


@NODES.case(
    "a huge page that moves to another node while a child has it, too, is the same for both until one of them writes,"
    " whom the other does not see",
    "move_pages(2) MPOL_MF_MOVE_ALL; fork(2); mm/huge_memory.c set_pmd_migration_entry(), remove_migration_pmd()",
    since="5.9",
    nodes=2,
)
def moved_with_a_child(live: Live) -> None:
    old, new = _with_room(live)
    parent = _bound(live, old)
    _fill(live, [old], parent)
    child = parent.fork()
    child.actor.call("move_pages", *memory_policy.moving(parent, new, by_another=True))
    if parent.numa_maps().nodes.keys() != {new}:
        expect_no_shortage(live, parent.size, parent.pages, new)
    _expect_nodes(live, parent, {new: _PAGES})
    for writer, other, page in ((parent, child, 0), (child, parent, 1)):
        writer.actor.write(writer.at(page) + live.base_page, _NEW_VALUE)
        live.expect("words of the other process that changed", 0, other.wrong(page * other.size, other.size))
        live.expect("what its writer reads", _NEW_VALUE, writer.actor.read(writer.at(page) + live.base_page))
    parent.expect_filled(first=2)
    child.expect_filled(first=2)


@NODES.case(
    "a locked huge page that moves to another node stays counted as locked and unevictable, until it is unlocked",
    "mlock(2); move_pages(2); Documentation/filesystems/proc.rst Mlocked; mm/huge_memory.c remove_migration_pmd()",
    since="5.9",
    nodes=2,
)
def moved_though_locked(live: Live) -> None:
    old, new = _with_room(live)
    length = _PAGES * pmd_size(live)

    def locked() -> Memory:
        memory = _bound(live, old)
        _fill(live, [old], memory)
        memory.lock()
        return memory

    def moved() -> Memory:
        memory = locked()
        move(memory)
        return memory

    def move(memory: Memory) -> None:
        memory.actor.call("move_pages", *memory_policy.moving(memory, new))
        # what finds no free block is split, and moved as base pages
        expect_all_huge(live, memory, "when they have moved", new)

    def unlock(memory: Memory) -> None:
        memory.unlock()

    unmoved = {"Mlocked": 0, "Unevictable": 0, _MIGRATED: _PAGES}
    known = {Quirk.MOVED_HUGE_PAGE_UNLOCKED: {"Mlocked": -length, "Unevictable": -length}}
    memory = expect_change(live, unmoved, locked, move, known=known)
    _expect_nodes(live, memory, {new: _PAGES})
    memory.expect_filled()
    for release in (unlock, Memory.unmap):
        expect_change(live, {"Mlocked": -length, "Unevictable": -length}, moved, release)


@NODES.case(
    "shared huge pages that move to another node are in its Shmem, ShmemHugePages and ShmemPmdMapped, all of them, and"
    " no longer in those of the old one",
    "move_pages(2); Documentation/filesystems/proc.rst Shmem; mm/migrate.c folio_migrate_mapping(), since 0b52c420350e",
    since="5.9",
    nodes=2,
)
def moved_shared(live: Live) -> None:
    let_only_pmd_inherit(live)
    old, new = _with_room(live)
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "advise")
    length = _PAGES * pmd_size(live)

    def filled() -> Memory:
        actor = live.actor()
        memory_policy.set_policy(actor, Mode.BIND, [old])
        memory = map_aligned(live, _PAGES, pmd_size(live), shared=True, actor=actor, advice=MADV_HUGEPAGE)
        memory.fill()
        expect_mapped_whole(live, memory, _PAGES, "shmem_enabled=advise")
        return memory

    def move(memory: Memory) -> None:
        memory.actor.call("move_pages", *memory_policy.moving(memory, new))
        # what finds no free block is split, and moved as base pages
        need_blocks(live, memory, new)

    names = "Shmem", "ShmemHugePages", "ShmemPmdMapped"
    counted = {f"node{old} {name}": -length for name in names} | {f"node{new} {name}": length for name in names}
    stays = {f"node{node} ShmemHugePages": 0 for node in (old, new)}
    known = {Quirk.MOVED_SHARED_PAGE_OFF_NODES: stays}
    memory = expect_change(live, counted, filled, move, _read_counters, known=known)
    live.expect("ShmemPmdMapped", length, memory.smaps().shmem_pmd_mapped)
    memory.expect_filled()


def _from_each_node(live: Live, act: Callable[[int, Actor], None]) -> None:
    """Call ``act`` for each of two nodes with an actor that keeps to the processors of each of them."""
    both = live.nodes[:2]
    nears = memory_policy.processors_near(live, both)
    need_memory(live, both, 2 * _PAGES * pmd_size(live))
    set_policy(live, "madvise")
    for node, near in product(both, nears):
        compact_if_short(live, pmd_size(live), 2 * _PAGES)
        actor = live.actor()
        memory_policy.run_on_node(actor, near, nears[near])
        with live.about(f"processor on node {near}"):
            act(node, actor)
        actor.end()


def _expect_filled_on(live: Live, node: int, memory: Memory) -> None:
    _fill(live, [node], memory)
    _expect_nodes(live, memory, {node: _PAGES})
    memory.expect_filled()


def _with_room(live: Live) -> tuple[int, int]:
    """Return two nodes with room for huge pages, which advised memory gets. Raises CannotRun where one has none."""
    need_memory(live, live.nodes[:2], _PAGES * pmd_size(live))
    set_policy(live, "madvise")
    compact_if_short(live, pmd_size(live), 2 * _PAGES)
    old, new = live.nodes[:2]
    return old, new


def _bound(live: Live, node: int) -> Memory:
    actor = live.actor()
    memory_policy.set_policy(actor, Mode.BIND, [node])
    return advised(live, _PAGES, actor=actor)


def _fill(live: Live, nodes: Iterable[int], memory: Memory) -> None:
    """Fill memory that belongs on ``nodes``. Raises CannotRun where one of them is too fragmented for it."""
    memory.fill()
    if memory.smaps().anon_huge_pages != memory.length or memory.numa_maps().nodes.keys() != set(nodes):
        for node in nodes:
            expect_no_shortage(live, memory.size, memory.pages, node)


def _expect_nodes(live: Live, memory: Memory, expected: Mapping[int, int]) -> None:
    """Expect huge pages alone, as many on each node. Raises CannotRun where memory is too fragmented for them."""
    need_blocks(live, memory)
    memory.expect_huge()
    base_pages = {node: pages * memory.size // live.base_page for node, pages in expected.items()}
    live.expect("base pages of each node in numa_maps", base_pages, memory.numa_maps().nodes)


def _of(node: int) -> str:
    return f"node{node} AnonHugePages"


def _shared_of(node: int) -> tuple[str, ...]:
    return tuple(f"node{node} {name}" for name in _SHARED)


def _read_counters(live: Live) -> dict[str, int]:
    """Return what huge pages each node shows, in bytes, and the counters of /proc/vmstat."""
    add_up_counters(live)
    tree = ObservedTree(live.host)
    shown = {node: read_meminfo(tree, f"{node_directories(live.host)[node]}/meminfo") for node in live.nodes}
    names = ("AnonHugePages", "Shmem", *_SHARED)
    return {f"node{node} {name}": shown[node][name] for node in shown for name in names} | read_vmstat(tree)


class ThpNodes(LiveTest):
    def test_nodes(self) -> None:
        self.run_area(NODES)
