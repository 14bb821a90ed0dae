"""What is in the pages, whose they are, and when an access fails."""

import pytest
from tests.unit.oracle.pool.machines import SMALL, counters, pool_machine, run

from hugepage_qa.oracle.pool.pool_machine import PoolMachine
from hugepage_qa.oracle.pool.pool_setup import (
    Allocate,
    MakeMemfd,
    SetCount,
    Truncate,
)
from hugepage_qa.oracle.pool.pool_use import (
    Discard,
    Exit,
    Fork,
    MapAnonymous,
    MapFile,
    Read,
    Unmap,
    Write,
)


def private(pages: int, version: str = "7.2", noreserve: bool = False) -> PoolMachine:
    """Return a machine whose process has one page mapped and written to."""
    machine = pool_machine(version, pages=pages)
    run(machine, MapAnonymous("a", 1, SMALL, 1, False, noreserve), Write("a", 1, SMALL, 0, 7))
    return machine


def test_the_one_who_writes_gets_a_copy() -> None:
    machine = private(3)
    run(machine, Fork("a", "b"), Write("b", 1, SMALL, 0, 8))
    assert counters(machine) == (3, 1, 0, 0)
    assert run(machine, Read("a", 1, SMALL, 0)) == 7
    assert run(machine, Read("b", 1, SMALL, 0)) == 8
    # the page is the parent's alone again
    run(machine, Write("a", 1, SMALL, 0, 9))
    assert counters(machine) == (3, 1, 0, 0)


def test_the_last_one_writes_without_a_copy() -> None:
    machine = private(1)
    run(machine, Fork("a", "b"), Exit("a"))
    assert run(machine, Write("b", 1, SMALL, 0, 8)) == "ok"
    assert counters(machine) == (1, 0, 0, 0)


def test_the_owner_takes_its_page_from_the_child_when_there_is_none() -> None:
    machine = private(1)
    run(machine, Fork("a", "b"))
    assert run(machine, Write("a", 1, SMALL, 0, 8)) == "ok"
    assert run(machine, Read("b", 1, SMALL, 0)) == "SIGBUS"
    run(machine, SetCount(SMALL, 5))
    # its mapping is lost even with free pages: what it held must not turn into zeros
    assert run(machine, Read("b", 1, SMALL, 0)) == "SIGBUS"
    # its own child is not marked
    run(machine, Fork("b", "c"))
    assert run(machine, Read("c", 1, SMALL, 0)) == 0


def test_a_child_without_a_page_dies_and_the_owner_keeps_it() -> None:
    machine = private(1)
    run(machine, Fork("a", "b"))
    assert run(machine, Write("b", 1, SMALL, 0, 8)) == "SIGBUS"
    assert run(machine, Read("b", 1, SMALL, 0)) == 7
    assert run(machine, Read("a", 1, SMALL, 0)) == 7


def test_nobody_owns_a_mapping_without_reservation() -> None:
    machine = private(1, noreserve=True)
    run(machine, Fork("a", "b"))
    assert run(machine, Write("a", 1, SMALL, 0, 8)) == "SIGBUS"
    assert run(machine, Read("b", 1, SMALL, 0)) == 7


def test_a_private_mapping_shows_the_file_until_it_is_written_to() -> None:
    machine = pool_machine(pages=4)
    run(machine, MakeMemfd("a", "f", SMALL), MapFile("a", 1, SMALL, "f", 0, 1, True, False), Write("a", 1, SMALL, 0, 7))
    run(machine, MapFile("a", 2, SMALL, "f", 0, 1, False, False))
    assert run(machine, Read("a", 2, SMALL, 0)) == 7
    assert counters(machine) == (4, 3, 1, 0)
    run(machine, Write("a", 2, SMALL, 0, 8))
    assert counters(machine) == (4, 2, 0, 0)
    assert run(machine, Read("a", 1, SMALL, 0)) == 7


def test_a_failed_copy_leaves_the_page_of_the_file_mapped() -> None:
    machine = pool_machine(pages=1)
    run(machine, MakeMemfd("a", "f", SMALL), Allocate("a", "f", SMALL, 0, 1, False))
    run(machine, MapFile("a", 2, SMALL, "f", 0, 1, False, True))
    assert run(machine, Write("a", 2, SMALL, 0, 8)) == "SIGBUS"
    assert machine.processes["a"].mapped_bytes == SMALL


def test_beyond_the_end_of_the_file_there_is_nothing() -> None:
    machine = pool_machine(pages=4)
    run(machine, MakeMemfd("a", "f", SMALL), MapFile("a", 1, SMALL, "f", 0, 3, True, False))
    run(machine, Truncate("a", "f", SMALL, 1))
    assert run(machine, Read("a", 1, SMALL, 0)) == 0
    assert run(machine, Read("a", 1, SMALL, 1)) == "SIGBUS"
    run(machine, MapFile("a", 2, SMALL, "f", 0, 2, True, False))
    assert run(machine, Read("a", 1, SMALL, 1)) == 0


@pytest.mark.parametrize(("version", "reserved"), [("6.8", 0), ("6.9", 1)])
def test_a_discarded_page_is_reserved_again(version: str, reserved: int) -> None:
    machine = private(2, version)
    assert run(machine, Discard("a", 1, SMALL, 0, 1)) == "ok"
    assert counters(machine) == (2, 2, reserved, 0)
    assert run(machine, Read("a", 1, SMALL, 0)) == 0
    run(machine, Unmap("a", 1, SMALL, 0, 1))
    assert counters(machine) == (2, 2, 0, 0)


def test_no_reservation_comes_back_while_there_is_surplus_or_a_child_has_the_page() -> None:
    machine = private(1)
    run(machine, SetCount(SMALL, 0), Discard("a", 1, SMALL, 0, 1))
    assert counters(machine) == (0, 0, 0, 0)
    machine = private(2)
    run(machine, Fork("a", "b"), Discard("a", 1, SMALL, 0, 1))
    assert counters(machine) == (2, 1, 0, 0)
    run(machine, Exit("b"))
    assert counters(machine) == (2, 2, 0, 0)


def test_what_cannot_be_discarded() -> None:
    machine = private(2, "5.17")
    assert run(machine, Discard("a", 1, SMALL, 0, 1)) == "EINVAL"
    machine = private(2)
    assert run(machine, Discard("a", 1, SMALL, 0, 2)) == "ENOMEM"
    # what is mapped goes all the same
    assert counters(machine) == (2, 2, 1, 0)


@pytest.mark.parametrize(("version", "mapped"), [("5.19", SMALL), ("6.0", 0)])
def test_shared_page_tables_are_filled_by_faults(version: str, mapped: int) -> None:
    machine = pool_machine(version, pages=1)
    run(machine, MapAnonymous("a", 1, SMALL, 1, True, False), Write("a", 1, SMALL, 0, 7), Fork("a", "b"))
    assert machine.processes["b"].mapped_bytes == mapped
    assert run(machine, Read("b", 1, SMALL, 0)) == 7


@pytest.mark.parametrize(("version", "mapped"), [("6.9", 0), ("6.10", SMALL)])
def test_a_failed_fault_makes_a_mapping_anonymous(version: str, mapped: int) -> None:
    """It decides whether fork() copies what the file shows there."""
    machine = pool_machine(version, pages=1)
    run(machine, MakeMemfd("a", "f", SMALL), Allocate("a", "f", SMALL, 0, 1, False), Truncate("a", "f", SMALL, 2))
    run(machine, Allocate("a", "f", SMALL, 0, 1, False), MapFile("a", 1, SMALL, "f", 0, 2, False, True))
    run(machine, Read("a", 1, SMALL, 0))
    assert run(machine, Read("a", 1, SMALL, 1)) == "SIGBUS"
    run(machine, Fork("a", "b"))
    assert machine.processes["b"].mapped_bytes == mapped
