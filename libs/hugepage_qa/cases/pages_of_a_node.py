"""Pages of one node: what a case needs of its pool, memory that is bound to it, processes that are kept to it."""

from collections.abc import Sequence

from hugepage_qa.cases.control_group import ControlGroup, Version, new_group
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import bind
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.sizes import MIB

#: memory that must stay for others, the kernel's own reserves among them
_MARGIN = 256 * MIB


def reserve_on_all(live: Live, pages: int) -> None:
    """Have ``pages`` pages on each node. Raises CannotRun or Failed as ``Live.reserve`` does."""
    for node in live.nodes:
        live.reserve(pages, node)


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


def cpuset_of(live: Live, node: int) -> ControlGroup:
    """Return a new group whose processes get memory of ``node`` alone. Raises CannotRun without cpusets."""
    version_1 = live.host.read("sys/fs/cgroup/cpuset/cpuset.mems") is not None
    group = new_group(live, "cpuset", Version.ONE if version_1 else Version.TWO)
    if version_1:  # where a new group has no CPUs
        group.write("cpuset.cpus", live.host.read("sys/fs/cgroup/cpuset/cpuset.cpus") or "0")
    group.write("cpuset.mems", str(node))
    return group
