"""The pools of the running machine as what a random program acts on and is compared with."""

from collections.abc import Sequence
from typing import Protocol

from hugepage_qa.cases.control_group import ControlGroup
from hugepage_qa.cases.hugetlb_segments import IPC_RMID
from hugepage_qa.cases.random.random_actions import PoolActions, hugetlb_files
from hugepage_qa.kernel.hugetlb_cgroup import RESERVATIONS, file_prefix
from hugepage_qa.kernel.pools import Pool, read_node_pools, read_pools
from hugepage_qa.kernel.process_status import read_process_status
from hugepage_qa.kernel.tree import parse_integer
from hugepage_qa.machine.host import Host, ObservedTree
from hugepage_qa.oracle.compare import Observations
from hugepage_qa.oracle.pool.pool_expectations import content_subject, group_subject, mapped_subject, mount_subject
from hugepage_qa.oracle.pool.pool_machine import PoolMachine
from hugepage_qa.oracle.pool.pool_operation import Operation, Outcome
from hugepage_qa.oracle.prediction import Value, pool_subject
from hugepage_qa.process.actor import Actor, Fault

_SHOWN = ("nr_hugepages", "free_hugepages", "resv_hugepages", "surplus_hugepages", "nr_overcommit_hugepages")


class PoolTarget(Protocol):
    """What a random program runs on."""

    def perform(self, operation: Operation) -> Outcome:
        """Carry out an operation and return what came of it: ok, an errno, a signal, or what was read."""

    def observe(self, machine: PoolMachine) -> Observations:
        """Return what is seen of all that is in ``machine``: read only what is mapped there, to change nothing."""

    def new_kernel_log(self) -> list[str]:
        """Return the lines that the kernel logged since the last call."""

    def close(self) -> None:
        """End and remove what is still there."""


class RealPools:
    """The pools of the machine behind ``host``.

    ``anchor`` has nothing mapped and outlives all others: it mounts, and the first process, named ``process``, is
    forked from it. ``settings`` are the operations that put the pools back.
    """

    def __init__(
        self, host: Host, anchor: Actor, process: str, parent: ControlGroup | None, settings: Sequence[Operation]
    ) -> None:
        self._host = host
        self._tree = ObservedTree(host)
        self._anchor = anchor
        self._settings = settings
        self._actions = PoolActions(host, anchor, process, parent)
        host.skip_kernel_log()

    def perform(self, operation: Operation) -> Outcome:
        """Carry out an operation and return what came of it: ok, an errno, a signal, or what was read."""
        return self._actions.perform(operation)

    def observe(self, machine: PoolMachine) -> Observations:
        """Return what the machine shows of pools, mounts, groups, processes and pages that are in the model."""
        return {
            **_pools(read_pools(self._tree), None),
            **{
                subject: value
                for node, pools in read_node_pools(self._tree).items()
                for subject, value in _pools(pools, node).items()
            },
            **self._quotas(),
            **self._charges(machine),
            **self._memory(machine),
        }

    def _quotas(self) -> Observations:
        values = {}
        for mount, point in self._actions.points.items():
            use = self._host.file_system(point)
            for name in ("blocks", "free_blocks", "files", "free_files"):
                values[mount_subject(mount, name)] = getattr(use, name)
        return values

    def _charges(self, machine: PoolMachine) -> Observations:
        values = {}
        for name, group in self._actions.groups.items():
            files = hugetlb_files(group)
            for size in machine.pools:
                for what, kind in (("used", ""), ("reserved", RESERVATIONS)):
                    file = f"{file_prefix(size)}{kind}{files.usage}"
                    values[group_subject(name, size, what)] = parse_integer(group.read(file) or "", file)
        return values

    def _memory(self, machine: PoolMachine) -> Observations:
        values: dict[str, Value] = {}
        for name, process in machine.processes.items():
            actor = self._actions.actors[name]
            status = read_process_status(self._tree, actor.pid)
            mapped = status.hugetlb_pages if status else -1
            values[mapped_subject(name)] = mapped
            # reading what is not mapped would map it
            for mapping in process.mappings if mapped == process.mapped_bytes else ():
                for index in mapping.present:
                    address = mapping.address_of(index)
                    values[content_subject(name, address)] = _content(actor, address)
        return values

    def new_kernel_log(self) -> list[str]:
        """Return the lines that the kernel logged since the last call."""
        return self._host.new_kernel_log(judged=True)

    def close(self) -> None:
        """End the processes, remove segments, mounts and groups that a program left, and put the pools back."""
        actions = self._actions
        for actor in actions.actors.values():
            actor.exit()
        for segment in actions.segments.values():
            self._anchor.call("shmctl", segment, IPC_RMID, 0)
        for point in actions.points.values():
            self._host.unmount(point)
        for group in actions.groups.values():
            group.remove()
        self._anchor.end()
        for operation in self._settings:
            self.perform(operation)


def _pools(pools: tuple[Pool, ...], node: int | None) -> dict[str, Value]:
    return {
        pool_subject(pool.size, name, node): pool.files[name] for pool in pools for name in _SHOWN if name in pool.files
    }


def _content(actor: Actor, address: int) -> Value:
    try:
        return actor.read(address)
    except Fault as fault:
        return fault.signal.name
