"""Kernels that do one thing wrong: each carries out an operation on its own machine."""

from tests.unit.cases.random.targets import SMALL

from hugepage_qa.oracle.pool.pool_machine import PoolMachine
from hugepage_qa.oracle.pool.pool_operation import Operation, Outcome, carry_out
from hugepage_qa.oracle.pool.pool_setup import MountPool
from hugepage_qa.oracle.pool.pool_use import Exit, Fork, Read, Unmap, Write


def loses_free_page(operation: Operation, machine: PoolMachine) -> Outcome:
    """munmap() loses a free page."""
    outcome = carry_out(operation, machine)
    if isinstance(operation, Unmap):
        machine.pools[SMALL].free -= bool(machine.pools[SMALL].free)
    return outcome


def forgets_reservation(operation: Operation, machine: PoolMachine) -> Outcome:
    """fork() ends the reservation of a page."""
    outcome = carry_out(operation, machine)
    if isinstance(operation, Fork):
        machine.pools[SMALL].resv -= bool(machine.pools[SMALL].resv)
    return outcome


def writes_through(operation: Operation, machine: PoolMachine) -> Outcome:
    """A write to a page that fork() has shared changes the page of the other process, too."""
    if not isinstance(operation, Write):
        return carry_out(operation, machine)
    address = operation.address_of(operation.page)
    mapping = machine.processes[operation.process].find(address)
    page = mapping.present.get(mapping.index(address)) if mapping else None
    outcome = carry_out(operation, machine)
    if page is not None and outcome == "ok":
        page.value = operation.value
    return outcome


def counts_too_much(operation: Operation, machine: PoolMachine) -> Outcome:
    """A mount with size= has a page less than that."""
    outcome = carry_out(operation, machine)
    if isinstance(operation, MountPool) and outcome == "ok":
        subpool = machine.mounts[operation.mount].subpool
        if subpool and subpool.most:
            subpool.used += 1
    return outcome


def forgets_charge(operation: Operation, machine: PoolMachine) -> Outcome:
    """A page that a process in a group touches is not charged to it."""
    if not isinstance(operation, Read | Write):
        return carry_out(operation, machine)
    group = machine.processes[operation.process].group
    before = group.used.usage(SMALL)
    outcome = carry_out(operation, machine)
    if outcome == "ok" or isinstance(outcome, int):
        group.used.uncharge(SMALL, (group.used.usage(SMALL) - before) // SMALL)
    return outcome


def never_kills(operation: Operation, machine: PoolMachine) -> Outcome:
    """A read where nothing can be had gives zeros, and a write is lost."""
    outcome = carry_out(operation, machine)
    is_killed = isinstance(outcome, str) and outcome.startswith("SIG")
    return (0 if isinstance(operation, Read) else "ok") if is_killed else outcome


def keeps_reservation(operation: Operation, machine: PoolMachine) -> Outcome:
    """The last process that ends leaves a reservation."""
    outcome = carry_out(operation, machine)
    if isinstance(operation, Exit):
        machine.pools[SMALL].resv += not machine.processes
    return outcome
