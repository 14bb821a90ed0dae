"""Every rule of running pools catches a machine that breaks it; nothing else than the model expects passes."""

from dataclasses import replace

import pytest
from tests.unit.oracle.pool.machines import LARGE, SMALL, pool_machine, run
from tests.unit.oracle.right_machine import right_observations

from hugepage_qa.oracle.compare import compare
from hugepage_qa.oracle.pool.pool_expectations import (
    NODE_POOL,
    NODES_TOGETHER,
    OUTCOME,
    POOL_RULES,
    expectations,
)
from hugepage_qa.oracle.pool.pool_machine import PoolMachine
from hugepage_qa.oracle.pool.pool_setup import (
    CreateFile,
    JoinGroup,
    MakeGroup,
    MountPool,
    SetCount,
    SetOvercommit,
)
from hugepage_qa.oracle.pool.pool_use import MapAnonymous, MapFile, Write
from hugepage_qa.oracle.prediction import (
    Exactly,
    Expectation,
    Prediction,
    SumOf,
    Value,
)

NODES = (0, 1)


def busy_machine(home: int | None = 0) -> PoolMachine:
    """Return a machine on which something of everything is in use."""
    machine = pool_machine(pages=4)
    machine.home = home
    run(
        machine,
        SetOvercommit(SMALL, 2),
        SetCount(LARGE, 1),
        MakeGroup("g"),
        JoinGroup("a", "g"),
        MountPool("m", SMALL, most=3 * SMALL, inodes=3),
        CreateFile("a", "f", "m"),
        MapFile("a", 1, SMALL, "f", 0, 2, True, False),
        Write("a", 1, SMALL, 0, 7),
        MapAnonymous("a", 2, SMALL, 3, False, False),
        Write("a", 2, SMALL, 0, 8),
        SetCount(SMALL, 1),
    )
    return machine


def predicted(machine: PoolMachine) -> tuple[Prediction, dict[str, Value]]:
    """Return what is expected of a machine and what a right one shows."""
    prediction = Prediction("", tuple(expectations(machine, NODES)))
    observations = right_observations(prediction)
    for expectation in prediction.expectations:
        if isinstance(expectation.expected, SumOf):
            # where pages lie is open: all on the first node
            for (subject, _), value in zip(
                expectation.expected.terms, (observations[expectation.subject], 0), strict=True
            ):
                observations.setdefault(subject, value)
    return prediction, observations


@pytest.mark.parametrize("home", [0, 1, None])
def test_right_machines_pass(home: int | None) -> None:
    prediction, observations = predicted(busy_machine(home))
    assert compare(prediction, observations, []) == []


@pytest.mark.parametrize("home", [0, None])
def test_every_number_that_is_wrong_is_caught(home: int | None) -> None:
    prediction, observations = predicted(busy_machine(home))
    for subject, value in observations.items():
        assert isinstance(value, int)
        for wrong in (value + 1, value - 1):
            differences = compare(prediction, {**observations, subject: wrong}, [])
            assert differences, f"{subject} {wrong} for {value} is not caught"
            assert subject in str(differences[0])
        missing = {name: found for name, found in observations.items() if name != subject}
        assert compare(prediction, missing, [])


def test_every_rule_can_be_broken() -> None:
    prediction, _ = predicted(busy_machine())
    assert {one.rule.name for one in prediction.expectations} | {OUTCOME.name} == set(POOL_RULES)
    for rule in POOL_RULES.values():
        assert rule.statement
        assert rule.source


def test_pages_that_move_between_nodes_are_caught_where_all_lie_on_one() -> None:
    prediction, observations = predicted(busy_machine(home=0))
    first, second = (f"node{node}/hugepages-2048kB/nr_hugepages" for node in NODES)
    observations[first], observations[second] = observations[second], observations[first]
    assert {one.rule for one in compare(prediction, observations, [])} == {NODE_POOL}
    prediction, _ = predicted(busy_machine(home=None))
    assert compare(prediction, observations, []) == []
    observations[first] = 1
    assert {one.rule for one in compare(prediction, observations, [])} == {NODES_TOGETHER}


def test_a_kernel_without_nodes_shows_none() -> None:
    expected = expectations(busy_machine(), ())
    assert not [one for one in expected if "node" in one.subject]


def test_reservations_below_zero_are_shown_as_the_kernel_does() -> None:
    machine = busy_machine()
    machine.pools[SMALL].resv = -1
    expected = next(one for one in expectations(machine, ()) if one.subject == "hugepages-2048kB/resv_hugepages")
    assert expected.expected == Exactly(2**64 - 1)


def test_mounts_without_limits_show_zeros_and_half_limited_ones_minus_one() -> None:
    machine = pool_machine(pages=4)
    run(machine, MountPool("m", SMALL), MountPool("n", SMALL, least=SMALL))
    values = {one.subject: one.expected for one in expectations(machine, ())}
    assert [values[f"mount m/{name}"] for name in ("blocks", "free_blocks", "files", "free_files")] == [Exactly(0)] * 4
    assert [values[f"mount n/{name}"] for name in ("blocks", "free_blocks", "files", "free_files")] == [Exactly(-1)] * 4


def test_a_complaint_of_the_kernel_is_caught() -> None:
    prediction, observations = predicted(busy_machine())
    line = "WARNING: CPU: 0 PID: 7 at mm/hugetlb.c:1700 free_huge_folio+0x1/0x2"
    assert compare(prediction, observations, [line])


def test_an_outcome_is_compared_like_all_else() -> None:
    expectation = Expectation("outcome", Exactly("SIGBUS"), OUTCOME)
    prediction = replace(Prediction("", ()), expectations=(expectation,))
    assert compare(prediction, {"outcome": "SIGBUS"}, []) == []
    assert compare(prediction, {"outcome": "ok"}, [])
