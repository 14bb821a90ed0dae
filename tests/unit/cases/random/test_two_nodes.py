"""On two nodes a program changes the one that it is bound to, whoever acts, and whatever was there before."""

import errno
from contextlib import ExitStack

import pytest
from tests.unit.cases.random.two_nodes import PROGRAM, SIZE, TwoNodes

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.random.random_run import RandomResult, run_saved_program
from hugepage_qa.cases.random.random_surroundings import AS_MODELLED
from hugepage_qa.cases.result import Verdict
from hugepage_qa.machine.host import Host


def run_on(machine: TwoNodes) -> RandomResult:
    return run_saved_program(Host(machine), SIZE, PROGRAM)


def test_the_surplus_page_of_a_mount_comes_from_the_node_that_the_program_is_bound_to() -> None:
    machine = TwoNodes()
    judgement = run_on(machine)
    assert judgement.verdict is Verdict.PASS, judgement.reason
    assert machine.pools == TwoNodes().pools


def test_a_kernel_that_takes_it_from_another_node_does_wrong() -> None:
    judgement = run_on(TwoNodes(surplus_from=1))
    assert judgement.verdict is Verdict.FAIL
    assert "node1/hugepages-2048kB/surplus_hugepages: expected 0, found 1" in judgement.reason


@pytest.mark.parametrize(
    "before",
    [
        {"free": (2, 0)},
        {"free": (1, 3), "used": (2, 1)},
        {"used": (1, 0), "surplus": (2, 0), "overcommit": 4},
        {"free": (2, 0), "surplus": (0, 1), "overcommit": 1},
        {"overcommit": 9},
    ],
)
def test_what_was_in_the_pools_changes_no_verdict_and_is_there_again_at_the_end(before: dict[str, int]) -> None:
    machine = TwoNodes(**before)  # type: ignore[arg-type]
    was = machine.pools
    judgement = run_on(machine)
    assert judgement.verdict is Verdict.PASS, judgement.reason
    assert machine.pools == was


def test_pages_of_others_that_may_come_from_any_node_are_no_machine_to_test_on() -> None:
    machine = TwoNodes(free=(1, 3))
    machine.reserved = 2
    judgement = run_on(machine)
    assert judgement.verdict is Verdict.SKIP, judgement.reason
    assert "3 are free beside node 0" in judgement.reason


def test_a_case_gets_the_pages_that_it_asks_for_where_surplus_pages_are_in_use() -> None:
    machine = TwoNodes(used=(1, 0), surplus=(2, 0), overcommit=4)
    with ExitStack() as stack:
        live = Live(Host(machine), SIZE, AS_MODELLED, stack)
        live.put_aside()
        live.reserve(2, 0)
        live.expect_pool(nr=2, free=2)
        assert live.differences == []
        live.expect_errno(errno.ENOMEM, live.map, 3, shared=True)
        assert live.differences == []
