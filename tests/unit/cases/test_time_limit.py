"""What comes first where time is short, and when it is over."""

import time

import pytest
from tests.unit.cases.areas import read_areas

from hugepage_qa.cases import time_limit
from hugepage_qa.cases.time_limit import TimeLimit, seconds_by_name, step_of


def test_a_limit_is_over_when_its_seconds_are(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    limit = TimeLimit(60)
    quarter = limit.share(0.25)
    for at, over in ((114.9, (False, False)), (115.0, (True, False)), (160.0, (True, True))):
        now[0] = at
        assert (quarter.is_over, limit.is_over) == over
    # of nothing there is no share
    assert limit.share(1).is_over


def test_without_seconds_it_is_never_over() -> None:
    assert not TimeLimit(None).share(0.001).is_over


def test_what_takes_up_to_twice_as_long_comes_in_one_step() -> None:
    assert [step_of(seconds) for seconds in (0, 0.99, 1, 1.9, 2, 3.9, 4, 7, 41)] == [0, 0, 1, 1, 2, 2, 3, 3, 6]


def test_what_the_last_run_took_counts_then_what_was_measured_then_the_case_on_another_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        time_limit, "_measured", lambda: {"/pool/grow": 3.0, "/pool/grow/2M": 0.5, "/pool/grow/1G": 3.0}
    )
    seconds = seconds_by_name({"/pool/grow/2M": 7.0})
    names = ("/pool/grow/2M", "/pool/grow/1G", "/pool/grow/64K", "/pool/shrink/2M")
    assert [seconds(name) for name in names] == [7.0, 3.0, 3.0, 1.0]


def test_what_was_measured_is_of_cases_that_there_are() -> None:
    cases = {f"/{area.name}/{case.name}" for area in read_areas() for case in area.cases}
    measured = time_limit._measured()
    assert not [name for name in measured if name not in cases and name.rpartition("/")[0] not in cases]
    assert len(cases & measured.keys()) > len(cases) // 2
