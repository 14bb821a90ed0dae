"""nr_hugepages, overcommit and demotion, as Documentation/admin-guide/mm/hugetlbpage.rst tells."""

import pytest
from tests.unit.oracle.pool.machines import LARGE, SMALL, counters, pool_machine, run

from hugepage_qa.oracle.pool.pool_setup import Demote, SetCount, SetOvercommit
from hugepage_qa.oracle.pool.pool_use import MapAnonymous, Unmap, Write


def mapped(pages: int, area: int = 1, size: int = SMALL, noreserve: bool = False) -> MapAnonymous:
    return MapAnonymous("a", area, size, pages, True, noreserve)


def test_the_pool_grows_and_shrinks() -> None:
    machine = pool_machine()
    run(machine, SetCount(SMALL, 8))
    assert counters(machine) == (8, 8, 0, 0)
    run(machine, SetCount(SMALL, 3))
    assert counters(machine) == (3, 3, 0, 0)


def test_growth_ends_with_what_memory_gives() -> None:
    machine = pool_machine(pages=2)
    machine.memory.limit(3)
    run(machine, SetCount(SMALL, 8))
    assert counters(machine) == (5, 5, 0, 0)
    assert machine.memory.asked == 6
    machine.memory.limit(None)
    run(machine, SetCount(SMALL, 8))
    assert counters(machine) == (8, 8, 0, 0)


def test_pages_in_use_become_surplus_when_the_pool_shrinks() -> None:
    machine = pool_machine(pages=4)
    run(machine, mapped(2), Write("a", 1, SMALL, 0, 7), SetCount(SMALL, 0))
    # one is in use, one is promised
    assert counters(machine) == (2, 1, 1, 2)
    run(machine, Unmap("a", 1, SMALL, 0, 2))
    assert counters(machine) == (0, 0, 0, 0)


def test_surplus_pages_are_promoted_before_new_ones_come() -> None:
    machine = pool_machine(pages=2)
    run(machine, mapped(2), SetCount(SMALL, 0))
    assert counters(machine) == (2, 2, 2, 2)
    machine.memory.limit(None)
    run(machine, SetCount(SMALL, 3))
    assert counters(machine) == (3, 3, 2, 0)
    assert machine.memory.asked == 1


def test_a_reservation_takes_surplus_pages_up_to_the_limit() -> None:
    machine = pool_machine(pages=1, overcommit=2)
    assert run(machine, mapped(3)) == "ok"
    assert counters(machine) == (3, 3, 3, 2)
    assert run(machine, mapped(1, area=2)) == "ENOMEM"
    assert counters(machine) == (3, 3, 3, 2)
    run(machine, Unmap("a", 1, SMALL, 0, 3))
    assert counters(machine) == (1, 1, 0, 0)


def test_a_reservation_fails_when_memory_gives_no_surplus_page() -> None:
    machine = pool_machine(overcommit=2)
    machine.memory.limit(1)
    assert run(machine, mapped(2)) == "ENOMEM"
    assert counters(machine) == (0, 0, 0, 0)


def test_a_fault_takes_a_surplus_page() -> None:
    machine = pool_machine(overcommit=1)
    assert run(machine, mapped(2, noreserve=True), Write("a", 1, SMALL, 0, 7)) == "ok"
    assert counters(machine) == (1, 0, 0, 1)
    assert run(machine, Write("a", 1, SMALL, 1, 7)) == "SIGBUS"


@pytest.mark.parametrize(("version", "outcome"), [("6.18", "EINVAL"), ("6.19", "ok")])
def test_gigantic_pages_are_overcommitted_late(version: str, outcome: str) -> None:
    assert run(pool_machine(version), SetOvercommit(LARGE, 1)) == outcome


def test_gigantic_pages_are_no_surplus_in_older_kernels() -> None:
    machine = pool_machine("6.12")
    assert run(machine, mapped(1, size=LARGE)) == "ENOMEM"
    run(machine, mapped(1, size=LARGE, noreserve=True))
    assert run(machine, Write("a", 1, LARGE, 0, 1)) == "SIGBUS"


@pytest.mark.parametrize(("version", "left"), [("6.12", (2, 1, 0, 2)), ("6.15", (1, 0, 0, 1))])
def test_surplus_pages_in_use_kept_free_ones_in_the_pool(version: str, left: tuple[int, int, int, int]) -> None:
    machine = pool_machine(version, overcommit=1)
    run(machine, mapped(1), Write("a", 1, SMALL, 0, 7), SetCount(LARGE, 1), Demote(LARGE, 1))
    assert counters(machine) == (513, 512, 0, 1)
    run(machine, SetCount(SMALL, 0))
    assert counters(machine) == left


def test_demotion_splits_available_pages() -> None:
    machine = pool_machine()
    run(machine, SetCount(LARGE, 2), mapped(1, size=LARGE))
    assert run(machine, Demote(LARGE, 2)) == "ok"
    assert counters(machine, LARGE) == (1, 1, 1, 0)
    assert counters(machine) == (512, 512, 0, 0)
    assert run(machine, Demote(LARGE, 1)) == "ok"
    assert counters(machine, LARGE) == (1, 1, 1, 0)


@pytest.mark.parametrize(("version", "left"), [("6.6", (512, 510, 0, 0)), ("6.12", (514, 512, 0, 2))])
def test_pages_made_by_demotion_took_the_place_of_surplus_ones(version: str, left: tuple[int, int, int, int]) -> None:
    machine = pool_machine(version, overcommit=2)
    run(machine, SetCount(LARGE, 1), mapped(2), Write("a", 1, SMALL, 0, 1), Write("a", 1, SMALL, 1, 1))
    run(machine, Demote(LARGE, 1))
    assert counters(machine) == left


@pytest.mark.parametrize(("version", "can"), [("5.15", False), ("5.16", True)])
def test_older_kernels_cannot_demote(version: str, can: bool) -> None:
    assert pool_machine(version).can_demote(LARGE) == can
    assert not pool_machine(version).can_demote(SMALL)


def test_what_would_demote_pages_of_other_nodes_is_not_tried() -> None:
    machine = pool_machine()
    machine.elsewhere = {LARGE: {1: {"nr_hugepages": 1, "free_hugepages": 0}}}
    assert machine.can_demote(LARGE)
    machine.elsewhere = {LARGE: {1: {"nr_hugepages": 1, "free_hugepages": 1}}}
    assert not machine.can_demote(LARGE)


def test_a_node_that_holds_no_pages_is_not_modelled() -> None:
    with pytest.raises(ValueError, match="node 1"):
        run(pool_machine(), SetCount(SMALL, 1, node=1))
    machine = pool_machine()
    run(machine, SetCount(SMALL, 1, node=0))
    assert counters(machine) == (1, 1, 0, 0)
