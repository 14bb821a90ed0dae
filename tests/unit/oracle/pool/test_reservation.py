"""Who has pages reserved, and for how long (Documentation/mm/hugetlbfs_reserv.rst)."""

from tests.unit.oracle.pool.machines import SMALL, counters, pool_machine, run

from hugepage_qa.oracle.pool.pool_machine import PoolMachine
from hugepage_qa.oracle.pool.pool_setup import (
    Close,
    MakeMemfd,
    MakeSegment,
    Unlink,
)
from hugepage_qa.oracle.pool.pool_use import (
    Attach,
    Exit,
    Fork,
    Grow,
    MapAnonymous,
    MapFile,
    Move,
    Read,
    Unmap,
    Write,
)


def with_memfd(pages: int) -> PoolMachine:
    machine = pool_machine(pages=pages)
    run(machine, MakeMemfd("a", "f", SMALL))
    return machine


def test_a_mapping_reserves_and_a_touch_uses_the_reservation_up() -> None:
    machine = pool_machine(pages=4)
    run(machine, MapAnonymous("a", 1, SMALL, 3, False, False))
    assert counters(machine) == (4, 4, 3, 0)
    assert run(machine, Read("a", 1, SMALL, 0)) == 0
    assert counters(machine) == (4, 3, 2, 0)
    run(machine, Unmap("a", 1, SMALL, 0, 3))
    assert counters(machine) == (4, 4, 0, 0)


def test_more_than_is_available_cannot_be_mapped() -> None:
    machine = pool_machine(pages=4)
    run(machine, MapAnonymous("a", 1, SMALL, 3, False, False))
    assert run(machine, MapAnonymous("a", 2, SMALL, 2, True, False)) == "ENOMEM"
    assert run(machine, MapAnonymous("a", 2, SMALL, 2, True, True)) == "ok"


def test_reserved_pages_are_not_for_others() -> None:
    machine = pool_machine(pages=2)
    run(machine, MapAnonymous("a", 1, SMALL, 2, False, False), MapAnonymous("a", 2, SMALL, 1, False, True))
    assert run(machine, Read("a", 2, SMALL, 0)) == "SIGBUS"
    assert run(machine, Read("a", 1, SMALL, 1)) == 0


def test_parts_give_back_what_they_did_not_touch() -> None:
    machine = pool_machine(pages=4)
    run(machine, MapAnonymous("a", 1, SMALL, 4, False, False), Write("a", 1, SMALL, 1, 7))
    run(machine, Unmap("a", 1, SMALL, 1, 2))
    assert counters(machine) == (4, 4, 2, 0)
    assert run(machine, Read("a", 1, SMALL, 1)) == "SIGSEGV"
    assert run(machine, Read("a", 1, SMALL, 3)) == 0
    assert counters(machine) == (4, 3, 1, 0)


def test_a_file_is_reserved_once_and_as_long_as_it_lives() -> None:
    machine = with_memfd(4)
    run(machine, MapFile("a", 1, SMALL, "f", 0, 2, True, False), MapFile("a", 2, SMALL, "f", 1, 2, True, False))
    assert counters(machine) == (4, 4, 3, 0)
    run(machine, Unmap("a", 1, SMALL, 0, 2), Unmap("a", 2, SMALL, 0, 2))
    assert counters(machine) == (4, 4, 3, 0)
    run(machine, Close("a", "f"))
    assert counters(machine) == (4, 4, 0, 0)


def test_each_private_mapping_of_a_file_reserves() -> None:
    machine = with_memfd(4)
    run(machine, MapFile("a", 1, SMALL, "f", 0, 2, False, False), MapFile("a", 2, SMALL, "f", 0, 2, False, False))
    assert counters(machine) == (4, 4, 4, 0)
    run(machine, Unmap("a", 1, SMALL, 0, 2))
    assert counters(machine) == (4, 4, 2, 0)


def test_a_segment_is_reserved_before_it_is_attached_and_until_nobody_has_it() -> None:
    machine = pool_machine(pages=2)
    run(machine, MakeSegment("a", "s", SMALL, 2))
    assert counters(machine) == (2, 2, 2, 0)
    assert run(machine, MakeSegment("a", "t", SMALL, 1)) == "ENOMEM"
    run(machine, Attach("a", 1, SMALL, "s"), Unlink("a", "s"), Write("a", 1, SMALL, 0, 7))
    assert counters(machine) == (2, 1, 1, 0)
    run(machine, Unmap("a", 1, SMALL, 0, 2))
    assert counters(machine) == (2, 2, 0, 0)


def test_a_child_has_no_private_reservation_and_leaves_that_of_its_parent() -> None:
    machine = pool_machine(pages=2)
    run(machine, MapAnonymous("a", 1, SMALL, 2, False, False), Fork("a", "b"))
    assert run(machine, Read("b", 1, SMALL, 0)) == "SIGBUS"
    run(machine, Exit("b"))
    assert counters(machine) == (2, 2, 2, 0)
    assert run(machine, Read("a", 1, SMALL, 0)) == 0


def test_a_child_uses_the_reservation_of_a_shared_mapping() -> None:
    machine = pool_machine(pages=2)
    run(machine, MapAnonymous("a", 1, SMALL, 2, True, False), Fork("a", "b"), Write("b", 1, SMALL, 0, 7))
    assert counters(machine) == (2, 1, 1, 0)
    assert run(machine, Read("a", 1, SMALL, 0)) == 7
    run(machine, Exit("a"))
    assert counters(machine) == (2, 1, 1, 0)
    run(machine, Exit("b"))
    assert counters(machine) == (2, 2, 0, 0)


def test_a_move_takes_pages_and_reservation_along() -> None:
    machine = pool_machine(pages=2)
    run(machine, MapAnonymous("a", 1, SMALL, 2, False, False), Write("a", 1, SMALL, 0, 7))
    assert run(machine, Move("a", 1, SMALL, 0, 2, 5)) == "ok"
    assert counters(machine) == (2, 1, 1, 0)
    assert run(machine, Read("a", 5, SMALL, 0)) == 7
    assert run(machine, Read("a", 1, SMALL, 0)) == "SIGSEGV"
    run(machine, Unmap("a", 5, SMALL, 0, 2))
    assert counters(machine) == (2, 2, 0, 0)


def test_a_part_is_moved_and_the_rest_stays_reserved() -> None:
    machine = pool_machine(pages=3)
    run(machine, MapAnonymous("a", 1, SMALL, 3, False, False), Move("a", 1, SMALL, 1, 1, 5))
    assert counters(machine) == (3, 3, 3, 0)
    run(machine, Unmap("a", 1, SMALL, 0, 3))
    assert counters(machine) == (3, 3, 1, 0)


def test_what_cannot_be_moved() -> None:
    machine = pool_machine(pages=2)
    run(machine, MapAnonymous("a", 1, SMALL, 2, False, False))
    assert run(machine, Grow("a", 1, SMALL, 0, 2)) == "EINVAL"
    assert run(machine, Grow("a", 2, SMALL, 0, 2)) == "EFAULT"
    assert run(machine, Move("a", 2, SMALL, 0, 2, 5)) == "EFAULT"
    assert run(machine, Move("a", 1, SMALL, 1, 2, 5)) == "EFAULT"
    old = pool_machine("5.15", pages=2)
    assert run(old, MapAnonymous("a", 1, SMALL, 2, False, False), Move("a", 1, SMALL, 0, 2, 5)) == "EINVAL"
