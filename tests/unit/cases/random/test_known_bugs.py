"""Random programs on kernels with known bugs, and on machines that are short of memory."""

from dataclasses import replace
from functools import partial

import pytest
from tests.unit.cases.random.targets import (
    LARGE,
    LARGE_SCALE,
    SMALL,
    SMALL_SCALE,
    Starts,
    first_failed,
    machine,
    programs,
)

from hugepage_qa.cases.random.random_drawing import Scale
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.pool.known_pool_issues import POOL_ISSUES
from hugepage_qa.oracle.pool.pool_machine import PoolMachine
from hugepage_qa.oracle.pool.pool_operation import Operation
from hugepage_qa.oracle.pool.pool_setup import CreateFile, MountPool, SetCount
from hugepage_qa.oracle.pool.pool_use import Fork, MapAnonymous, MapFile, Move, Read, Write
from hugepage_qa.version import KernelVersion

every_scale = pytest.mark.parametrize("scale", [SMALL_SCALE, LARGE_SCALE], ids=["2M", "1G"])


@pytest.mark.parametrize("version", ["6.12", "6.18"])
def test_a_kernel_with_the_bugs_of_its_version_is_known(version: str) -> None:
    quirks = {issue.quirk for issue in POOL_ISSUES.values() if issue.applies_to(KernelVersion.parse(version))}
    starts = Starts(partial(machine, version, quirks), partial(machine, version, quirks))
    drawn = programs(starts, "known", 200, replace(SMALL_SCALE, steps=40))
    program = next(one for one in drawn if one.known or one.differences)
    assert program.differences == ()
    assert program.known <= quirks


@every_scale
def test_a_kernel_with_fixes_is_right(scale: Scale) -> None:
    """Which backports a kernel has its version does not tell for sure."""
    starts = Starts(partial(machine, "6.12"), partial(machine, "6.12", POOL_ISSUES))
    for program in programs(starts, "fixed", 8, scale):
        assert program.differences == ()
        assert program.known == frozenset()


def test_a_bug_that_its_version_does_not_have_is_a_failure() -> None:
    starts = Starts(partial(machine, "7.2", {Quirk.UNMAP_RESERVES_PAGE_IN_USE}))
    assert "resv_hugepages" in str(first_failed(starts, "unknown")[1])


def test_what_would_leave_traces_is_not_done() -> None:
    model = partial(machine, "7.2", {Quirk.MOVE_FORGETS_RESERVATION})
    starts = Starts(model, model)
    assert any(program.avoided for program in programs(starts, "traces", 400))
    for target in starts.targets:
        for pool in target.machine.pools.values():
            assert pool.counters() == dict.fromkeys(pool.counters(), 0)


def test_what_would_never_come_back_is_not_done() -> None:
    follow = {Quirk.COPY_NEVER_ENDS}
    run = Starts(partial(machine, "7.2", follow), partial(machine, "7.2", follow))()
    steps: tuple[Operation, ...] = (
        SetCount(SMALL, 1),
        MapAnonymous("a", 1, SMALL, 1, False, False),
        Write("a", 1, SMALL, 0, 7),
        Fork("a", "b"),
        Move("a", 1, SMALL, 0, 1, 2),
    )
    for operation in steps:
        assert run.take(operation) == []
    assert run.avoided == 0
    assert run.take(Write("a", 2, SMALL, 0, 8)) == []
    assert run.avoided == 1
    assert run.finish() == []


def test_a_fix_that_shows_late_is_found_out() -> None:
    """After a partial move nothing differs, only when the rest is unmapped: until then both kernels are possible."""
    follow = {Quirk.MOVE_FORGETS_RESERVATION}
    steps: tuple[Operation, ...] = (
        SetCount(SMALL, 3),
        MapAnonymous("a", 1, SMALL, 2, False, False),
        Read("a", 1, SMALL, 1),
        Move("a", 1, SMALL, 0, 1, 2),
        Fork("a", "b"),
    )
    # without a reservation it is the child's page as much as the parent's
    late: tuple[Operation, ...] = (
        MapAnonymous("a", 3, SMALL, 1, False, False),
        SetCount(SMALL, 0),
        Write("a", 1, SMALL, 1, 7),
    )
    for has_bug in (False, True):
        starts = Starts(partial(machine, "7.2", follow if has_bug else ()), partial(machine, "7.2", follow))
        run = starts()
        for operation in steps:
            assert run.take(operation) == []
        assert len(run.models) == 2
        assert run.known == frozenset()
        for last in late:
            assert run.take(last) == []
        assert len(run.models) == 1
        assert run.known == (follow if has_bug else frozenset())


def test_a_bug_that_shows_by_chance_is_known_only_where_it_may_show() -> None:
    follow = {Quirk.FORK_LOSES_PAGES}
    losing = partial(machine, "7.2", follow, follow)
    starts = Starts(losing, partial(machine, "7.2", follow))
    known: set[Quirk] = set()
    for program in programs(starts, "chance", 12, LARGE_SCALE):
        assert program.differences == ()
        known |= program.known
    assert known == follow
    run = Starts(losing)()
    for operation in (SetCount(LARGE, 1), MapAnonymous("a", 1, LARGE, 1, False, False), Write("a", 1, LARGE, 0, 7)):
        assert run.take(operation) == []
    assert run.take(Fork("a", "b"))[0].rule.name == "live-process-mapped"


def short_of_memory() -> PoolMachine:
    """Return a machine that has one page to give."""
    found = machine()
    found.memory.limit(1)
    return found


def test_gigantic_pages_may_not_be_had() -> None:
    run = Starts(short_of_memory)()
    assert run.take(SetCount(LARGE, 3)) == []
    assert run.machine.pools[LARGE].nr == 1
    assert run.take(MapAnonymous("a", 1, LARGE, 2, False, False)) == []
    assert not run.succeeded


def test_small_pages_have_to_be_had() -> None:
    run = Starts(short_of_memory)()
    for pools in (run.machine.pools, run.target.machine.pools):  # type: ignore[attr-defined]
        del pools[LARGE]
    assert run.take(SetCount(SMALL, 3))[0].subject == "hugepages-2048kB/nr_hugepages"


def test_what_would_leave_traces_on_a_kernel_with_a_fix_is_not_done() -> None:
    """The mount is never given up, and so leaves nothing, unless the other bug is fixed."""
    dropped, lost = Quirk.SUBPOOL_RESERVE_DROPPED, Quirk.SUBPOOL_USE_LOST_AT_MMAP
    run = Starts(partial(machine, "6.18", {dropped}), partial(machine, "6.18", {dropped, lost}))()
    for operation in (
        SetCount(SMALL, 1),
        MountPool("m1", SMALL, least=SMALL, most=2 * SMALL),
        CreateFile("a", "f1", "m1"),
        MapFile("a", 1, SMALL, "f1", 0, 2, shared=False, noreserve=False),
    ):
        assert run.take(operation) == []
    assert run.avoided == 1
    assert run.finish() == []


def test_what_is_left_is_a_difference_even_if_it_was_predicted() -> None:
    run = Starts()()
    run.before = {size: {**counters, "resv_hugepages": 1} for size, counters in run.before.items()}
    assert {one.rule.name for one in run.finish()} == {"nothing-left"}
