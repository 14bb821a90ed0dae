"""What files, mounts, groups and processes must show of a PoolMachine."""

from collections.abc import Iterator

from hugepage_qa.model.hugetlb_pool.file import Mount
from hugepage_qa.model.hugetlb_pool.machine import PoolMachine
from hugepage_qa.model.hugetlb_pool.process import Process
from hugepage_qa.model.hugetlb_pool.rules import (
    CONTENT,
    GROUP_RESERVATION,
    GROUP_USE,
    MAPPED,
    NODE_POOL,
    NODES_TOGETHER,
    POOL_FREE,
    POOL_OVERCOMMIT,
    POOL_RESERVED,
    POOL_SURPLUS,
    POOL_TOTAL,
    QUOTA,
)
from hugepage_qa.model.prediction import Exactly, Expectation, SumOf, Value, pool_subject
from hugepage_qa.model.rules import Rule

_COUNTER_RULES = {
    "nr_hugepages": POOL_TOTAL,
    "free_hugepages": POOL_FREE,
    "resv_hugepages": POOL_RESERVED,
    "surplus_hugepages": POOL_SURPLUS,
    "nr_overcommit_hugepages": POOL_OVERCOMMIT,
}
#: reservations and limits belong to no node
_OF_A_NODE = ("nr_hugepages", "free_hugepages", "surplus_hugepages")
#: what statfs() shows of a limit that is not there, as Python's statvfs() reads it
_UNLIMITED = -1


def mount_subject(mount: str, name: str) -> str:
    """Return the subject of a number that statfs() shows: blocks, free_blocks, files, free_files."""
    return f"mount {mount}/{name}"


def group_subject(group: str, size: int, name: str) -> str:
    """Return the subject of a group's bytes in pages of ``size``: used, reserved."""
    return f"group {group}/{size // 1024}kB/{name}"


def mapped_subject(process: str) -> str:
    """Return the subject of the bytes in huge pages that a process has mapped."""
    return f"process {process}/HugetlbPages"


def content_subject(process: str, address: int) -> str:
    """Return the subject of the 8 bytes at an address."""
    return f"process {process}/{address:#x}"


def expectations(machine: PoolMachine, nodes: tuple[int, ...]) -> list[Expectation]:
    """Return all that can be seen of the machine, whose nodes are ``nodes`` (none without CONFIG_NUMA)."""
    return [
        *_pools(machine, nodes),
        *(one for name, mount in machine.mounts.items() for one in _quota(name, mount)),
        *_groups(machine),
        *(one for name, process in machine.processes.items() for one in _memory(name, process)),
    ]


def _pools(machine: PoolMachine, nodes: tuple[int, ...]) -> Iterator[Expectation]:
    for size, pool in machine.pools.items():
        counters = pool.counters()
        elsewhere = machine.elsewhere.get(size, {})
        for name, value in counters.items():
            total = value + sum(found.get(name, 0) for found in elsewhere.values())
            yield _exactly(pool_subject(size, name), total, _COUNTER_RULES[name])
        for name in _OF_A_NODE if nodes else ():
            terms = tuple((pool_subject(size, name, node), 1) for node in nodes)
            yield Expectation(pool_subject(size, name), SumOf(terms), NODES_TOGETHER)
            if machine.home is not None:
                for node in nodes:
                    value = counters[name] if node == machine.home else elsewhere.get(node, {}).get(name, 0)
                    yield _exactly(pool_subject(size, name, node), value, NODE_POOL)


def _quota(name: str, mount: Mount) -> Iterator[Expectation]:
    blocks = free_blocks = files = free_files = 0
    if mount.subpool is not None:
        limit = mount.subpool.most
        blocks = _UNLIMITED if limit is None else limit
        free_blocks = blocks - mount.subpool.used
        files = _UNLIMITED if mount.inodes is None else mount.inodes
        free_files = _UNLIMITED if mount.inodes is None else mount.free_inodes
    shown = {"blocks": blocks, "free_blocks": free_blocks, "files": files, "free_files": free_files}
    for what, value in shown.items():
        yield _exactly(mount_subject(name, what), value, QUOTA)


def _groups(machine: PoolMachine) -> Iterator[Expectation]:
    for name, group in machine.groups.items():
        for size in machine.pools:
            yield _exactly(group_subject(name, size, "used"), group.used.usage(size), GROUP_USE)
            yield _exactly(group_subject(name, size, "reserved"), group.reserved.usage(size), GROUP_RESERVATION)


def _memory(name: str, process: Process) -> Iterator[Expectation]:
    yield _exactly(mapped_subject(name), process.mapped_bytes, MAPPED)
    for mapping in process.mappings:
        for index, page in sorted(mapping.present.items()):
            yield _exactly(content_subject(name, mapping.address_of(index)), page.value, CONTENT)


def _exactly(subject: str, value: Value, rule: Rule) -> Expectation:
    return Expectation(subject, Exactly(value), rule)
