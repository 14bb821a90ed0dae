"""What control groups are charged for, and what they may not have."""

from tests.unit.oracle.pool.machines import SMALL, counters, pool_machine, run

from hugepage_qa.oracle.pool.pool_machine import PoolMachine
from hugepage_qa.oracle.pool.pool_setup import (
    Allocate,
    JoinGroup,
    LimitGroup,
    MakeGroup,
    MakeMemfd,
    PunchHole,
)
from hugepage_qa.oracle.pool.pool_use import (
    Exit,
    Fork,
    MapAnonymous,
    MapFile,
    Read,
    Unmap,
    Write,
)


def grouped(pages: int, used: int | None = None, reserved: int | None = None) -> PoolMachine:
    """Return a machine whose process is in a group with limits in pages."""
    machine = pool_machine(pages=pages)
    run(machine, MakeGroup("g"), JoinGroup("a", "g"))
    run(machine, LimitGroup("g", SMALL, None if used is None else used * SMALL, False))
    run(machine, LimitGroup("g", SMALL, None if reserved is None else reserved * SMALL, True))
    return machine


def charges(machine: PoolMachine, group: str = "g") -> tuple[int, int]:
    """Return the pages that a group is charged for: used, reserved."""
    found = machine.groups[group]
    return found.used.usage(SMALL) // SMALL, found.reserved.usage(SMALL) // SMALL


def test_use_is_charged_at_the_touch_and_reservation_at_the_mapping() -> None:
    machine = grouped(4)
    run(machine, MapAnonymous("a", 1, SMALL, 3, False, False))
    assert charges(machine) == (0, 3)
    run(machine, Write("a", 1, SMALL, 0, 7))
    assert charges(machine) == (1, 3)
    run(machine, Unmap("a", 1, SMALL, 0, 2))
    assert charges(machine) == (0, 1)


def test_a_touch_without_reservation_charges_both() -> None:
    machine = grouped(4)
    run(machine, MapAnonymous("a", 1, SMALL, 3, False, True), Write("a", 1, SMALL, 0, 7))
    assert charges(machine) == (1, 1)
    run(machine, Exit("a"))
    assert charges(machine) == (0, 0)


def test_above_the_limit_an_access_fails() -> None:
    machine = grouped(4, used=1)
    run(machine, MapAnonymous("a", 1, SMALL, 3, False, False), Write("a", 1, SMALL, 0, 7))
    assert run(machine, Read("a", 1, SMALL, 1)) == "SIGBUS"
    assert charges(machine) == (1, 3)
    assert counters(machine) == (4, 3, 2, 0)


def test_above_the_limit_of_reservations_nothing_is_mapped() -> None:
    machine = grouped(4, reserved=2)
    assert run(machine, MapAnonymous("a", 1, SMALL, 3, True, False)) == "ENOMEM"
    assert charges(machine) == (0, 0)
    assert run(machine, MapAnonymous("a", 1, SMALL, 2, True, False)) == "ok"
    run(machine, MapAnonymous("a", 2, SMALL, 1, False, True))
    assert run(machine, Read("a", 2, SMALL, 0)) == "SIGBUS"
    run(machine, MakeMemfd("a", "f", SMALL))
    assert run(machine, Allocate("a", "f", SMALL, 0, 1, False)) == "ENOSPC"
    assert charges(machine) == (0, 2)


def test_charges_stay_with_the_group_that_a_process_leaves() -> None:
    machine = grouped(4)
    run(machine, MapAnonymous("a", 1, SMALL, 2, False, False), Write("a", 1, SMALL, 0, 7))
    run(machine, MakeGroup("h"), JoinGroup("a", "h"), Write("a", 1, SMALL, 1, 7))
    assert charges(machine) == (1, 2)
    assert charges(machine, "h") == (1, 0)
    run(machine, Exit("a"))
    assert charges(machine) == charges(machine, "h") == (0, 0)


def test_a_child_is_in_the_group_of_its_parent() -> None:
    machine = grouped(4)
    run(machine, MapAnonymous("a", 1, SMALL, 1, False, False), Write("a", 1, SMALL, 0, 7), Fork("a", "b"))
    run(machine, Write("b", 1, SMALL, 0, 8))
    assert charges(machine) == (2, 2)
    run(machine, Exit("b"))
    assert charges(machine) == (1, 1)


def test_the_pages_of_a_file_are_charged_to_who_reserved_them() -> None:
    machine = grouped(4)
    run(machine, MakeMemfd("a", "f", SMALL), MapFile("a", 1, SMALL, "f", 0, 2, True, False))
    run(machine, MakeGroup("h"), JoinGroup("a", "h"), MapFile("a", 2, SMALL, "f", 0, 3, True, False))
    assert (charges(machine), charges(machine, "h")) == ((0, 2), (0, 1))
    run(machine, Write("a", 2, SMALL, 0, 7), PunchHole("a", "f", SMALL, 0, 1))
    assert (charges(machine), charges(machine, "h")) == ((0, 1), (0, 1))


def test_no_limit_below_what_is_charged() -> None:
    machine = grouped(4)
    run(machine, MapAnonymous("a", 1, SMALL, 2, False, False))
    assert run(machine, LimitGroup("g", SMALL, SMALL, True)) == "EBUSY"
    # it is rounded down to pages
    assert run(machine, LimitGroup("g", SMALL, 3 * SMALL - 1, True)) == "ok"
    assert run(machine, MapAnonymous("a", 2, SMALL, 1, False, False)) == "ENOMEM"
    assert run(machine, LimitGroup("g", SMALL, None, True), MapAnonymous("a", 2, SMALL, 1, False, False)) == "ok"
