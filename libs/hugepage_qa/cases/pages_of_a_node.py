"""Pages of one node: what a case needs of its pool, memory that is bound to it, processes that are kept to it."""

from collections.abc import Mapping, Sequence

from hugepage_qa.cases.control_group import ControlGroup, Version, new_group
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import bind, migrate
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.process.actor import Actor
from hugepage_qa.sizes import MIB

#: memory that must stay for others, the kernel's own reserves among them
_MARGIN = 256 * MIB


def reserve_on_all(live: Live, pages: int) -> None:
    """Have ``pages`` pages on each node. Raises CannotRun or Failed as ``Live.reserve`` does."""
    # a kernel without CONFIG_NUMA has the pool of the machine alone
    for node in live.nodes or (None,):
        live.reserve(pages, node)


def require_room(live: Live, pages: int) -> None:
    """Make sure that each node has room for ``pages`` pages. Raises CannotRun or Failed as ``Live.reserve`` does."""
    reserve_on_all(live, pages)
    live.set_nr(0)
    # what a full node has just given it may not give again
    if not live.is_gigantic:
        need_memory(live, live.nodes, pages * live.size)


def missing_node(live: Live) -> int:
    """Return the number of a node that is not there, not even one without memory."""
    return max(live.before.nodes) + 1


def need_memory(live: Live, nodes: Sequence[int], length: int) -> None:
    """Raise CannotRun where one of ``nodes`` has not ``length`` bytes, and as much again for others.

    Who is bound to it is killed for want of memory (mm/oom_kill.c CONSTRAINT_MEMORY_POLICY), or gets that of another.
    """

    def short() -> list[int]:
        return [node for node in nodes if live.node_meminfo(node).get("MemFree", 0) < 2 * length + _MARGIN]

    if short():
        live.make_room()
    if still := short():
        raise CannotRun(f"node {still[0]} has no {length >> 20} MiB free, and as much again for others")


def require_no_free_page(live: Live, node: int) -> None:
    """Raise CannotRun where ``node`` has free pages that were there before: they could be taken.

    Such pages are put aside by number, and not by node.
    """
    if read_integer(live.host, live.pool_file("free_hugepages", node=node)):
        raise CannotRun(f"node {node} has free pages that are not ours")


def filled_page_on(live: Live, node: int, *, shared: bool = False) -> Memory:
    """Return memory of one page that is bound to ``node``, filled. Raises Failed where the page lies elsewhere."""
    memory = live.map(1, shared=shared)
    bind(memory, [node])
    memory.fill()
    live.expect("node in numa_maps", {node: 1}, memory.numa_maps().nodes)
    return memory


def expect_free_pages_on(live: Live, node: int, pages: int) -> None:
    """Expect the pool to have ``pages`` free pages, all on ``node``. Raises Failed."""
    live.expect_pool(nr=pages, free=pages)
    for other in live.nodes:
        live.expect_pool(node=other, nr=pages if other == node else 0, free=pages if other == node else 0)


def expect_on_node(live: Live, memory: Memory, node: int, known: Mapping[Quirk, dict[int, int]] | None = None) -> None:
    """Expect the one page of ``memory`` to be on ``node``, and to hold what ``fill`` stored. Raises KnownBug."""
    live.expect("node in numa_maps", {node: 1}, memory.numa_maps().nodes, known)
    memory.expect_filled()


def expect_left(live: Live, actor: Actor, source: int, target: int, pages: int) -> None:
    """Move all pages of ``actor`` on one node to another, and expect ``pages`` to be left (migrate_pages(2)).

    Somebody may have a hold of base pages of the process for a moment: they are moved again.
    """
    left = [0]

    def are_as_many() -> bool:
        left[0] = migrate(actor, source, target)
        return left[0] == pages

    live.host.wait_until(are_as_many)
    live.expect("pages that migrate_pages leaves", pages, left[0])


def cpuset_of(live: Live, node: int) -> ControlGroup:
    """Return a new group whose processes get memory of ``node`` alone. Raises CannotRun without cpusets."""
    group = new_cpuset(live)
    group.write("cpuset.mems", str(node))
    return group


def new_cpuset(live: Live, version: Version | None = None) -> ControlGroup:
    """Return a new group that has all processors, and no nodes of its own. Raises CannotRun without cpusets.

    It is of the version that the machine has in use unless one is given.
    """
    if version is None:
        is_first = live.host.read("sys/fs/cgroup/cpuset/cpuset.mems") is not None
        version = Version.ONE if is_first else Version.TWO
    group = new_group(live, "cpuset", version)
    keep_processors(live, group)
    return group


def keep_processors(live: Live, group: ControlGroup) -> None:
    """Give a new cpuset all processors; in version 1 it has none."""
    if group.version is Version.ONE:
        group.write("cpuset.cpus", live.host.read("sys/fs/cgroup/cpuset/cpuset.cpus") or "0")
