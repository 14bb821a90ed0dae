"""Machines for the tests of the pool model, and what they show."""

from collections.abc import Iterable

from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.pool.pool_counters import PageSize
from hugepage_qa.oracle.pool.pool_kernel import PoolKernel
from hugepage_qa.oracle.pool.pool_machine import PoolMachine
from hugepage_qa.oracle.pool.pool_operation import Operation, Outcome, carry_out
from hugepage_qa.sizes import GIB, MIB
from hugepage_qa.version import KernelVersion

SMALL, LARGE = 2 * MIB, GIB


def pool_machine(
    version: str = "7.2", pages: int = 0, overcommit: int = 0, follow: Iterable[Quirk] = ()
) -> PoolMachine:
    """Return an x86 machine with one process ``a`` and ``pages`` of 2M; its kernel follows the quirks named."""
    kernel = PoolKernel(KernelVersion.parse(version), follow)
    machine = PoolMachine(kernel, (PageSize(SMALL, False, False, 1 << 30), PageSize(LARGE, True, True, 1 << 39)))
    machine.pools[SMALL].set_count(pages)
    machine.pools[SMALL].overcommit = overcommit
    machine.start_process("a")
    return machine


def run(machine: PoolMachine, *operations: Operation) -> Outcome:
    """Carry out operations, of which all but the last have to succeed; return what came of the last."""
    outcome: Outcome = "ok"
    for operation in operations:
        assert outcome == "ok" or isinstance(outcome, int)
        outcome = carry_out(operation, machine)
    return outcome


def counters(machine: PoolMachine, size: int = SMALL) -> tuple[int, int, int, int]:
    """Return nr_hugepages, free_hugepages, resv_hugepages and surplus_hugepages."""
    pool = machine.pools[size]
    return pool.nr, pool.free, pool.resv, pool.surplus
