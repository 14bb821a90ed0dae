"""Random programs find what a kernel does wrong, and make it small."""

import re

import pytest
from tests.unit.cases.random.targets import SMALL, SMALL_SCALE, Act, ModelTarget, Starts, first_failed
from tests.unit.cases.random.wrong_kernels import (
    counts_too_much,
    forgets_charge,
    forgets_reservation,
    keeps_reservation,
    loses_free_page,
    never_kills,
    writes_through,
)

from hugepage_qa.cases.random.random_search import draw_and_run, shrink
from hugepage_qa.oracle.pool.pool_operation import Operation
from hugepage_qa.oracle.pool.pool_setup import MountPool, SetCount
from hugepage_qa.oracle.pool.pool_use import Exit, Fork, MapAnonymous, Read, Unmap, Write


@pytest.mark.parametrize(
    ("act", "rule", "last", "operations"),
    [
        (loses_free_page, "live-pool-free", Unmap, 3),
        (forgets_reservation, "live-pool-reserved", Fork, 3),
        (writes_through, "live-page-content", Write, 5),
        (counts_too_much, "live-mount-quota", MountPool, 2),
        (forgets_charge, "live-cgroup-use", Write, 6),
        (never_kills, "live-outcome", Write, 3),
    ],
)
def test_what_a_kernel_does_wrong_is_found_and_made_small(
    act: Act, rule: str, last: type[Operation], operations: int
) -> None:
    starts = Starts(act=act)
    name, failed = first_failed(starts, act.__name__)
    assert rule in {one.rule.name for one in failed.differences}
    smallest = shrink(SMALL_SCALE, starts, name, failed.differences[0].rule.name)
    assert smallest.differences[0].rule == failed.differences[0].rule
    assert isinstance(smallest.operations[-1], last)
    assert len(smallest.operations) <= operations, str(smallest)
    assert all(target.is_closed for target in starts.targets)


@pytest.mark.parametrize(
    ("subject", "rule"),
    [
        ("hugepages-2048kB/nr_hugepages", "live-pool-total"),
        ("hugepages-2048kB/resv_hugepages", "live-pool-reserved"),
        ("hugepages-2048kB/surplus_hugepages", "live-pool-surplus"),
        ("hugepages-1048576kB/free_hugepages", "live-pool-free"),
        ("process a/HugetlbPages", "live-process-mapped"),
        (r"mount m\d+/free_blocks", "live-mount-quota"),
        (r"group g\d+/2048kB/used", "live-cgroup-use"),
        (r"group g\d+/2048kB/reserved", "live-cgroup-reservation"),
    ],
)
def test_a_wrong_number_is_found(subject: str, rule: str) -> None:
    def falsify(_target: ModelTarget, found: dict[str, int | str]) -> None:
        for name, value in found.items():
            if re.fullmatch(subject, name):
                found[name] = int(value) + 1

    _name, failed = first_failed(Starts(falsify=falsify), "wrong")
    assert {one.rule.name for one in failed.differences} == {rule}
    assert all(re.fullmatch(subject, one.subject) for one in failed.differences)


def test_wrong_content_is_found() -> None:
    def falsify(_target: ModelTarget, found: dict[str, int | str]) -> None:
        for subject in found:
            if subject.startswith("process p") and "/0x" in subject:
                found[subject] = 77

    _name, failed = first_failed(Starts(falsify=falsify), "content")
    assert {one.rule.name for one in failed.differences} == {"live-page-content"}


def test_what_is_left_at_the_end_is_found() -> None:
    _name, failed = first_failed(Starts(act=keeps_reservation), "end")
    assert isinstance(failed.operations[-1], Exit)
    assert failed.differences[0].rule.name == "live-pool-reserved"


def test_a_complaint_in_the_kernel_log_is_found() -> None:
    def complain(target: ModelTarget, _found: dict[str, int | str]) -> None:
        if isinstance(target.program[-1], Fork):
            target.log = ["WARNING: CPU: 0 PID: 7 at mm/hugetlb.c:1700 free_huge_folio+0x1/0x2"]

    _name, failed = first_failed(Starts(falsify=complain), "log")
    assert [one.subject for one in failed.differences] == ["kernel log"]


def test_a_program_that_fails_only_once_has_failed() -> None:
    failures = iter([True])

    def falsify(target: ModelTarget, found: dict[str, int | str]) -> None:
        if len(target.program) == 10 and next(failures, False):
            found["hugepages-2048kB/free_hugepages"] = -1

    starts = Starts(falsify=falsify)
    failed = draw_and_run(SMALL_SCALE, starts, "once/1")
    assert failed.differences
    assert len(failed.operations) == 10
    assert shrink(SMALL_SCALE, starts, "once/1", failed.differences[0].rule.name).differences == ()


def test_what_is_read_is_compared() -> None:
    run = Starts()()
    for operation in (SetCount(SMALL, 1), MapAnonymous("a", 1, SMALL, 1, False, False), Read("a", 1, SMALL, 0)):
        assert run.take(operation) == []
    run.target.machine.processes["a"].mappings[0].present[0].value = 5  # type: ignore[attr-defined]
    assert "outcome" in {one.subject for one in run.take(Read("a", 1, SMALL, 0))}
