"""The end of a program: how everything is given back, and what a kernel keeps all the same."""

from collections.abc import Mapping
from copy import deepcopy

from hugepage_qa.model.hugetlb_pool_machine import PoolMachine
from hugepage_qa.model.hugetlb_pool_operation import Operation, carry_out
from hugepage_qa.model.hugetlb_pool_setup import SetCount, SetOvercommit, Unlink, Unmount
from hugepage_qa.model.hugetlb_pool_use import Exit


def closing_operations(machine: PoolMachine, counts: Mapping[int, int]) -> list[Operation]:
    """Return the operations that end all that is there and leave ``counts`` (size -> nr_hugepages) as they were."""
    any_process = next(iter(machine.processes), "")
    segments = [name for name, file in machine.files.items() if file.is_segment and file.is_linked]
    return [
        *(Unlink(any_process, name) for name in segments),
        *(Exit(name) for name in machine.processes),
        *(Unmount(name) for name in machine.mounts),
        *(SetOvercommit(size, 0) for size, pool in machine.pools.items() if pool.overcommit),
        *(SetCount(size, count) for size, count in counts.items()),
    ]


def traces_left(machine: PoolMachine, counts: Mapping[int, int]) -> list[str]:
    """Return what a kernel with the quirks that it has would keep, if all ended now, until the machine is rebooted."""
    ended = deepcopy(machine)
    for operation in closing_operations(ended, counts):
        carry_out(operation, ended)
    traces = []
    for size, pool in ended.pools.items():
        right = {"nr_hugepages": counts[size], "free_hugepages": counts[size]}
        for name, value in pool.counters().items():
            if value != right.get(name, 0):
                traces.append(f"hugepages-{size // 1024}kB/{name} {value}")
    return traces
