"""The decision from numbers per block."""

import math
from dataclasses import replace

import numpy as np
import pytest

from hugepage_gate.looks import (
    ALARM_ERROR,
    LOOKS,
    PASS_ERROR,
    Decision,
    Evidence,
    decide,
)
from hugepage_gate.moderated_t import Prior
from hugepage_gate.samples import Verdict

MARGIN = math.log1p(0.01)


def evidence(*new: float, between: float = 0.002, blocks: int = 10, seed: int = 1) -> Evidence:
    """Return a baseline around 0, and new blocks at just these changes."""
    baseline = np.random.default_rng(seed).normal(0, between, blocks)
    return Evidence(baseline - baseline.mean(), np.array(new), MARGIN)


def judge(one: Evidence) -> Decision:
    return decide([one])[0]


def test_the_error_of_all_looks_is_what_is_allowed() -> None:
    assert sum(share for _, share in LOOKS) == pytest.approx(1)
    assert (ALARM_ERROR, PASS_ERROR) == (0.025, 0.02)


def test_unchanged_blocks_pass() -> None:
    assert judge(evidence(0.0, 0.001, -0.001)).verdict is Verdict.PASS


def test_absence_of_evidence_is_no_pass() -> None:
    decision = judge(evidence(0.0, between=0.03))
    assert decision.verdict is Verdict.UNDECIDED
    assert decision.more_blocks == 2


def test_a_slow_down_needs_a_second_block() -> None:
    first = judge(evidence(0.02))
    assert first.verdict is Verdict.UNDECIDED
    assert first.more_blocks == 1
    assert judge(evidence(0.02, 0.021)).verdict is Verdict.REGRESSED
    assert judge(evidence(0.02, 0.0)).verdict is Verdict.UNDECIDED


@pytest.mark.parametrize("place", range(3))
def test_one_disturbed_block_is_no_regression(place: int) -> None:
    blocks = [0.0, 0.0005, -0.0005]
    blocks[place] = 0.3
    assert judge(evidence(*blocks)).verdict is Verdict.UNDECIDED


def test_two_of_three_blocks_confirm() -> None:
    one = evidence(0.03, 0.03, 0.004)
    assert judge(one).looks[-1].alarm
    assert judge(one).verdict is Verdict.REGRESSED
    # one block far off makes an alarm with a prior that expects little, but no other confirms it
    alone = replace(evidence(0.04, 0.004, 0.004, between=0.0005), prior=Prior(20, 0.0005**2))
    assert judge(alone).looks[-1].alarm
    assert judge(alone).verdict is Verdict.UNDECIDED


def test_a_slow_down_that_is_surely_below_the_margin_passes() -> None:
    assert judge(evidence(0.006, 0.0061, 0.0059, between=0.0003)).verdict is Verdict.PASS


def test_a_slow_down_as_large_as_the_margin_regresses() -> None:
    assert judge(evidence(0.0105, 0.01, 0.0095)).verdict is Verdict.REGRESSED


def test_an_improvement_is_offered() -> None:
    assert judge(evidence(-0.02, -0.021)).verdict is Verdict.IMPROVED
    assert judge(evidence(-0.02)).verdict is Verdict.PASS


def test_blocks_between_looks_are_not_looked_at() -> None:
    decision = judge(evidence(0.0, 0.0, 0.0, 0.5, between=0.003))
    assert [look.blocks for look in decision.looks] == [1, 3]


def test_a_single_block_on_both_sides_is_undecided() -> None:
    one = Evidence(np.array([0.0]), np.array([0.5]), MARGIN)
    assert judge(one).verdict is Verdict.UNDECIDED
    assert judge(Evidence(np.zeros(5), np.array([]), MARGIN)).verdict is Verdict.UNDECIDED


def test_many_metrics_need_more_evidence_than_one() -> None:
    doubtful = evidence(0.0088, 0.0062, 0.0075, between=0.004)
    quiet = [evidence(0.0, 0.0, 0.0, between=0.003, seed=seed) for seed in range(2, 202)]
    assert judge(doubtful).looks[-1].alarm
    assert not decide([doubtful, *quiet])[0].looks[-1].alarm


@pytest.mark.parametrize("between", [0.002, 0.003, 0.03])
@pytest.mark.parametrize("blocks", [2, 3, 5])
def test_error_rates_of_the_decision(between: float, blocks: int) -> None:
    random = np.random.default_rng(1)
    runs = 1500

    def share(change: float, *verdicts: Verdict) -> float:
        found = (
            judge(Evidence(random.normal(0, between, 8), change + random.normal(0, between, blocks), MARGIN)).verdict
            for _ in range(runs)
        )
        return sum(one in verdicts for one in found) / runs

    assert share(0, Verdict.REGRESSED) <= 0.02
    assert share(MARGIN, Verdict.PASS, Verdict.IMPROVED) <= 0.02
    if between <= 0.003 and blocks > 2:
        assert share(0.01, Verdict.REGRESSED) > 0.85
        assert share(0.02, Verdict.REGRESSED) > 0.97
