"""The end of a program: how everything is given back, and what a kernel keeps all the same."""

from collections.abc import Mapping
from copy import deepcopy

from hugepage_qa.model.hugetlb_pool.machine import PoolMachine
from hugepage_qa.model.hugetlb_pool.operation import Operation, carry_out
from hugepage_qa.model.hugetlb_pool.setup import SetCount, SetOvercommit, Unlink, Unmount
from hugepage_qa.model.hugetlb_pool.use import Exit

Before = Mapping[int, Mapping[str, int]]


def persistent(before: Before, size: int) -> int:
    """Return the pages that were asked for as nr_hugepages and were there: size -> ``Pool.counters()``."""
    return before[size]["nr_hugepages"] - before[size]["surplus_hugepages"]


def settings_of(before: Before, node: int | None) -> list[Operation]:
    """Return the operations that make the pools what they were, as pages of ``node``."""
    return [
        operation
        for size, was in before.items()
        for operation in (
            SetOvercommit(size, was["nr_overcommit_hugepages"]),
            SetCount(size, persistent(before, size), node),
        )
    ]


def closing_operations(machine: PoolMachine, before: Before, node: int | None) -> list[Operation]:
    """Return the operations that end all that is there and make the pools what they were ``before``."""
    any_process = next(iter(machine.processes), "")
    segments = [name for name, file in machine.files.items() if file.is_segment and file.is_linked]
    return [
        *(Unlink(any_process, name) for name in segments),
        *(Exit(name) for name in machine.processes),
        *(Unmount(name) for name in machine.mounts),
        *settings_of(before, node),
    ]


def traces_left(machine: PoolMachine, before: Before, node: int | None) -> list[str]:
    """Return what a kernel with the quirks that it has would keep, if all ended now, until the machine is rebooted."""
    ended = deepcopy(machine)
    for operation in closing_operations(ended, before, node):
        carry_out(operation, ended)
    return [
        f"hugepages-{size // 1024}kB/{name} {value}"
        for size, pool in ended.pools.items()
        for name, value in pool.counters().items()
        if value != before[size][name]
    ]
