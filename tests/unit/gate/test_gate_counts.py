"""Counts have exact rules."""

import pytest

from hugepage_gate.gate_policy import CountRule, decide_count
from hugepage_gate.samples import Direction, Verdict

EXACT = CountRule()


@pytest.mark.parametrize(
    ("new", "verdict"),
    [
        ([100.0], Verdict.PASS),
        ([101.0], Verdict.PASS),
        ([102.0], Verdict.UNDECIDED),
        ([102.0, 102.0], Verdict.REGRESSED),
        ([102.0, 100.0, 100.0], Verdict.UNDECIDED),
        ([99.0, 99.0], Verdict.IMPROVED),
        ([99.0], Verdict.PASS),
    ],
)
def test_exact(new: list[float], verdict: Verdict) -> None:
    assert decide_count([100, 101, 100], new, Direction.LOWER, EXACT).verdict is verdict


def test_a_floor_is_absolute_or_a_share() -> None:
    for rule in (CountRule(absolute=4), CountRule(relative=0.04)):
        assert decide_count([100], [104, 104], Direction.LOWER, rule).verdict is Verdict.PASS
        assert decide_count([100], [105, 105], Direction.LOWER, rule).verdict is Verdict.REGRESSED


def test_fewer_is_worse_where_higher_is_better() -> None:
    assert decide_count([512], [511, 511], Direction.HIGHER, EXACT).verdict is Verdict.REGRESSED
    assert decide_count([512], [513, 513], Direction.HIGHER, EXACT).verdict is Verdict.IMPROVED


def test_any_other_number_is_wrong_where_it_has_to_be_equal() -> None:
    assert decide_count([512], [513, 511], Direction.EQUAL, EXACT).verdict is Verdict.REGRESSED
    assert decide_count([512], [512], Direction.EQUAL, EXACT).verdict is Verdict.PASS
