"""Huge pages that NUMA balancing waits for a fault on: mapped, and for nobody to use before the kernel has looked."""

from collections.abc import Callable, Mapping

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import Mode, node_of, run_on_node, set_policy
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.cases.thp_memory import allow_on_advice, pmd_size
from hugepage_qa.cases.thp_nodes import filled_on
from hugepage_qa.kernel.counters import read_vmstat
from hugepage_qa.kernel.nodes import read_nodes
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.process.actor import Actor

_BALANCING = "proc/sys/kernel/numa_balancing"
#: in /proc/vmstat: how many huge pages were marked for a fault
_MARKED = "numa_huge_pte_updates"
#: how many base pages, those of huge ones among them
_MARKED_IN_BASE_PAGES = "numa_pte_updates"
_COUNTED = (
    _MARKED,
    _MARKED_IN_BASE_PAGES,
    "numa_hint_faults",
    "numa_hint_faults_local",
    "numa_pages_migrated",
    "pgmigrate_success",
)
#: the address space of a process is looked through by what it has computed: from its second second on
#: (scan_delay_ms and scan_period_min_ms of /sys/kernel/debug/sched/numa_balancing are 1000)
_ROUNDS, _SECONDS, _SURE_SECONDS = 20, 0.5, 2.0


def waited_for(live: Live, pages: int, prepare: Callable[[Actor], object] = lambda _actor: None) -> tuple[Memory, int]:
    """Return filled huge pages that NUMA balancing has marked for a fault, and the node that they are on.

    Their process runs on another one: what is near is passed over by later kernels. It can ``prepare`` for that, and
    have more memory. Raises CannotRun where the kernel does not mark them.
    """
    memory, _near, node = far_memory(live, pages)
    prepare(memory.actor)
    await_marks(live, memory.actor, pages)
    return memory, node


def await_marks(live: Live, actor: Actor, pages: int, *, in_parts: bool = False) -> None:
    """Have NUMA balancing look through all that ``actor`` has, until it has marked ``pages`` huge pages for a fault.

    Of huge pages that are mapped ``in_parts`` these are base pages. Raises CannotRun where it does not.
    """
    counter = _MARKED_IN_BASE_PAGES if in_parts else _MARKED
    marked = read_vmstat(live.host)[counter]
    live.host.write(_BALANCING, "1")
    for _round in range(_ROUNDS):
        actor.compute(_SECONDS)
        if read_vmstat(live.host)[counter] - marked >= pages:
            # others may have been marked so far: the rest of this address space comes within its next periods
            actor.compute(_SURE_SECONDS)
            # and what is looked at is not marked once more while a case looks at it
            live.host.write(_BALANCING, "0")
            return
    raise CannotRun(f"NUMA balancing passes over huge pages of a process that ran for {_ROUNDS * _SECONDS:g} s")


def expect_hints_counted(live: Live, pages: int) -> None:
    """Expect each huge page that NUMA balancing brings to its processor to be counted: marked, touched and moved.

    That a page was marked is told by its move alone, so that no counter is believed. Raises CannotRun where none moves.
    """
    memory, near, node = far_memory(live, pages)
    each = memory.size // live.base_page
    before = _counters(live)
    moved: list[int] = []
    for _round in range(_ROUNDS):
        live.host.write(_BALANCING, "1")
        memory.actor.compute(_SURE_SECONDS)
        live.host.write(_BALANCING, "0")
        for page in (page for page in range(pages) if page not in moved):
            earlier = _counters(live)
            live.expect("first word of the page", 1 + page * memory.size, memory.read(page))
            if node_of(memory, page) == near:
                moved.append(page)
                _expect_counted_as_moved(live, _changes(earlier, _counters(live)), each)
        if moved:
            break
    else:
        raise CannotRun(f"NUMA balancing leaves huge pages on node {node}, though their process runs on node {near}")
    found = _changes(before, _counters(live))
    live.notes.append(f"{len(moved)} of {pages} huge pages moved; counted: {found}")
    huge, base = found[_MARKED], found[_MARKED_IN_BASE_PAGES]
    # all that is marked, huge or not, is counted in base pages, too
    live.expect(f"{_MARKED} is {len(moved)} at least: {huge}", True, huge >= len(moved))
    live.expect(f"{_MARKED_IN_BASE_PAGES} is {each} times that at least: {base}", True, base >= each * huge)
    memory.expect_filled()


def _expect_counted_as_moved(live: Live, found: Mapping[str, int], each: int) -> None:
    """Expect one huge page, and maybe base pages of others, to be counted as touched and moved."""
    live.expect(f"numa_hint_faults rose by 1 at least: {found}", True, found["numa_hint_faults"] >= 1)
    far = found["numa_hint_faults"] - found["numa_hint_faults_local"]
    live.expect(f"of these one at least was far: {found}", True, far >= 1)
    for name in ("numa_pages_migrated", "pgmigrate_success"):
        live.expect(f"{name} rose by {each} at least: {found}", True, found[name] >= each)


def _counters(live: Live) -> dict[str, int]:
    return read_vmstat(ObservedTree(live.host))


def _changes(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {name: after[name] - before[name] for name in _COUNTED}


def far_memory(live: Live, pages: int) -> tuple[Memory, int, int]:
    """Return filled huge pages, the node on which their process runs, and the other one that they are on.

    Nothing is balanced yet. Raises CannotRun where no memory is far from a processor.
    """
    nodes = read_nodes(live.host)
    far = [(near, node) for near in nodes.each for node in live.nodes if node != near and nodes.each[near].cpus]
    if not far:
        raise CannotRun("no node has memory that is far from a processor")
    near, node = far[0]
    need_memory(live, (node,), pages * pmd_size(live))
    allow_on_advice(live)
    live.set_knob(_BALANCING, "0")
    actor = live.actor()
    run_on_node(actor, near, nodes.each[near].cpus)
    memory = filled_on(live, actor, node, pages)
    memory.expect_huge(about="before")
    # what a policy binds is not balanced (vma_policy_mof() in mm/mempolicy.c)
    set_policy(actor, Mode.DEFAULT, [])
    return memory, near, node
