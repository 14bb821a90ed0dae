"""Random programs: a right kernel passes them all, and the same name draws the same one."""

from dataclasses import replace
from functools import partial

import pytest
from tests.unit.cases.random.targets import (
    LARGE_SCALE,
    SMALL,
    SMALL_SCALE,
    SMALLEST_SCALE,
    ModelTarget,
    Starts,
    machine,
    programs,
)

from hugepage_qa.cases.random.random_drawing import Scale
from hugepage_qa.cases.random.random_search import draw_and_run, run_again
from hugepage_qa.oracle.pool import pool_setup, pool_use
from hugepage_qa.oracle.pool.pool_operation import Operation, Outcome
from hugepage_qa.oracle.pool.pool_setup import SetCount
from hugepage_qa.oracle.pool.pool_use import Exit, MapAnonymous, Write

every_scale = pytest.mark.parametrize(
    "scale", [SMALL_SCALE, LARGE_SCALE, SMALLEST_SCALE], ids=["2M", "1G", "two pages"]
)

KINDS = {
    name
    for module in (pool_setup, pool_use)
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, Operation) and value.__module__ == module.__name__
} - {"InArea", "Operation", "Range"}


# --- a right kernel ---


@pytest.mark.parametrize("version", ["5.10", "5.18", "6.1", "6.9", "6.12", "6.18", "7.2"])
@every_scale
def test_a_right_kernel_passes_and_gives_all_back(version: str, scale: Scale) -> None:
    starts = Starts(partial(machine, version), partial(machine, version))
    for program in programs(starts, "right", 3, scale):
        assert program.differences == ()
        assert (program.known, program.avoided) == (frozenset(), 0)
    for target in starts.targets:
        assert target.is_closed
        for pool in target.machine.pools.values():
            assert pool.counters() == dict.fromkeys(pool.counters(), 0)


def test_counters_stay_in_order_on_a_right_kernel() -> None:
    def check(target: ModelTarget, _found: dict[str, int | str]) -> None:
        for pool in target.machine.pools.values():
            assert 0 <= pool.resv <= pool.free <= pool.nr
            assert 0 <= pool.surplus <= pool.nr

    assert not any(program.differences for program in programs(Starts(falsify=check), "order", 10))


def test_every_kind_of_operation_is_drawn_and_succeeds_sometimes() -> None:
    done: dict[str, set[Outcome]] = {}
    starts = Starts(watch=lambda operation, outcome: done.setdefault(type(operation).__name__, set()).add(outcome))
    for scale in (SMALL_SCALE, LARGE_SCALE):
        list(programs(starts, "kinds", 20, replace(scale, steps=40)))
    assert set(done) == KINDS
    assert {kind for kind, outcomes in done.items() if "ok" in outcomes} == KINDS - {"Grow", "Read"}
    assert {"SIGBUS", "SIGSEGV"} < done["Write"]
    assert "ENOMEM" in done["MapAnonymous"]
    assert "ENOSPC" in done["Allocate"]
    assert "EBUSY" in done["Unmount"]


def test_the_same_name_draws_the_same_program() -> None:
    first, again, other = Starts(), Starts(), Starts()
    for starts, name in ((first, "1/1"), (again, "1/1"), (other, "1/2")):
        draw_and_run(SMALL_SCALE, starts, name)
    assert first.operations == again.operations != other.operations
    assert len(first.targets) == 1


def test_a_program_is_run_again_by_its_operations() -> None:
    operations = (SetCount(SMALL, 1), MapAnonymous("a", 1, SMALL, 1, False, False), Write("a", 1, SMALL, 0, 7))
    right = run_again(Starts(), operations)
    assert right.operations[:3] == operations
    assert right.differences == ()
    starts = Starts()
    with pytest.raises(KeyError):
        run_again(starts, (*operations, Exit("nobody")))
    assert starts.operations == []
    assert starts.targets[0].is_closed
