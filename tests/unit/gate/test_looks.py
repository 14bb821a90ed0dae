"""The decision from numbers per block."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import stdtrit

from hugepage_gate.evidence import of_unknown_hosts
from hugepage_gate.looks import (
    ALARM_ERROR,
    LOOKS,
    PASS_ERROR,
    RUN_ERROR,
    Decision,
    Evidence,
    alarm_limit,
    blocks_to_see,
    decide,
)
from hugepage_gate.moderated_t import NO_PRIOR, Prior
from hugepage_gate.samples import Samples, Verdict

MARGIN = math.log1p(0.01)


def evidence(*new: float, between: float = 0.002, blocks: int = 10, seed: int = 1) -> Evidence:
    """Return a baseline around 0, and new blocks at just these changes."""
    baseline = np.random.default_rng(seed).normal(0, between, blocks)
    return Evidence(baseline - baseline.mean(), np.array(new), MARGIN)


def judge(one: Evidence) -> Decision:
    return decide([one])[0]


@pytest.mark.parametrize("baseline", [5, 20, 1000])
@pytest.mark.parametrize("allowed", [ALARM_ERROR, PASS_ERROR])
def test_who_looks_after_every_block_errs_no_more_often_than_is_allowed(baseline: int, allowed: float) -> None:
    random = np.random.default_rng(1)
    runs = 100_000
    old = random.normal(0, 1, runs) / math.sqrt(baseline)
    spread = random.chisquare(baseline - 1, runs)
    new = random.normal(0, 1, (runs, LOOKS[-1][0]))
    wrong = np.zeros(runs, dtype=bool)
    for blocks, share in LOOKS:
        seen = new[:, :blocks]
        mean = seen.mean(axis=1)
        degrees = baseline + blocks - 2
        variance = (spread + ((seen - mean[:, None]) ** 2).sum(axis=1)) / degrees
        error = np.sqrt(variance * (1 / baseline + 1 / blocks))
        wrong |= (mean - old) / error > stdtrit(degrees, 1 - share * allowed)
    # three standard errors of what is drawn
    assert 0.85 * allowed < wrong.mean() <= allowed + 3 * math.sqrt(allowed / runs)


def test_unchanged_blocks_pass() -> None:
    assert judge(evidence(0.0, 0.001, -0.001)).verdict is Verdict.PASS


def test_absence_of_evidence_is_no_pass() -> None:
    decision = judge(evidence(0.0, between=0.005))
    assert decision.verdict is Verdict.BLIND
    assert decision.more_blocks == 3
    decision = judge(evidence(0.0065, between=0.002))
    assert decision.verdict is Verdict.UNDECIDED
    assert decision.more_blocks == 1


@pytest.mark.parametrize(("new", "between"), [(1, 0.005), (1, 0.007), (3, 0.007), (3, 0.009), (5, 0.009)])
def test_who_is_blind_sees_its_margin_with_as_many_more_blocks_as_it_says(new: int, between: float) -> None:
    one = evidence(*[0.004] * new, between=between)
    decision = judge(one)
    assert decision.verdict is Verdict.BLIND
    look = decision.looks[-1]
    assert look.sees > MARGIN
    deviation = look.estimate.error / math.sqrt(1 / 10 + 1 / new)
    needed = blocks_to_see(one, look)
    assert needed is not None
    more, old = needed
    assert more + old > 0
    assert needed == (decision.more_blocks, decision.more_baseline)

    def sees(baseline: int, later: int) -> float:
        sides = (np.random.default_rng(2).normal(0, 1, count) for count in (baseline, later))
        alike = [deviation * (side - side.mean()) / (side.std(ddof=1) if len(side) > 1 else 1) for side in sides]
        return judge(Evidence(alike[0], alike[1], MARGIN)).looks[-1].sees

    assert sees(10 + old, new + more) <= MARGIN
    assert (sees(10 + old - 1, new + more) if old else sees(10, new)) > MARGIN


def test_what_looks_worse_is_not_called_blind() -> None:
    one = evidence(0.01, 0.012, 0.009, between=0.006, blocks=30)
    decision = judge(one)
    assert decision.looks[-1].sees > MARGIN
    assert decision.looks[-1].lower > 0
    assert decision.verdict is not Verdict.BLIND


def test_no_number_of_blocks_shows_what_is_out_of_reach() -> None:
    one = evidence(0.0, 0.0, 0.0, between=0.5)
    assert blocks_to_see(one, judge(one).looks[-1]) is None
    assert "larger margin" in judge(one).reason


def test_slow_runs_are_an_alarm_and_never_have_to_pass() -> None:
    noisy = replace(evidence(0.0, 0.01, -0.01, between=0.03), alarm_only=True)
    assert judge(noisy).verdict is Verdict.PASS
    # some sessions have more of them than others
    wild = replace(evidence(0.03, 0.25, 0.02), alarm_only=True)
    assert judge(wild).verdict is Verdict.REGRESSED
    assert judge(replace(wild, alarm_only=False)).verdict is not Verdict.REGRESSED
    assert judge(replace(evidence(0.3), alarm_only=True)).verdict is Verdict.UNDECIDED


def test_a_slow_down_needs_a_second_block() -> None:
    first = judge(evidence(0.02))
    assert first.verdict is Verdict.UNDECIDED
    assert first.more_blocks == 1
    assert judge(evidence(0.02, 0.021)).verdict is Verdict.REGRESSED
    assert judge(evidence(0.02, 0.0)).verdict is Verdict.UNDECIDED
    assert judge(evidence(0.02, 0.0, 0.0)).verdict is not Verdict.REGRESSED


def test_each_block_up_to_the_fifth_counts() -> None:
    sight = [judge(evidence(*[0.0] * blocks)).looks[-1].sees for blocks in range(1, 6)]
    assert sight == sorted(sight, reverse=True)


@pytest.mark.parametrize("place", range(3))
def test_one_disturbed_block_is_no_regression(place: int) -> None:
    blocks = [0.0, 0.0005, -0.0005]
    blocks[place] = 0.3
    assert judge(evidence(*blocks)).verdict is Verdict.BLIND
    # as slow runs it leaves the comparison open: the others were no slower
    assert judge(replace(evidence(*blocks), alarm_only=True)).verdict is Verdict.UNDECIDED


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


def test_blocks_after_the_last_look_are_not_looked_at() -> None:
    decision = judge(evidence(*[0.0] * 5, *[0.5] * 3, between=0.003))
    assert [look.blocks for look in decision.looks] == [1, 2, 3, 4, 5]
    assert decision.verdict is Verdict.PASS


def test_a_single_block_on_both_sides_is_undecided() -> None:
    one = Evidence(np.array([0.0]), np.array([0.5]), MARGIN)
    assert judge(one).verdict is Verdict.UNDECIDED
    assert judge(Evidence(np.zeros(5), np.array([]), MARGIN)).verdict is Verdict.UNDECIDED


def test_many_noisy_metrics_need_more_evidence_than_one() -> None:
    doubtful = evidence(0.0098, 0.0072, 0.0085, between=0.005)
    noisy = [evidence(0.0, 0.0, 0.0, between=0.02, seed=seed) for seed in range(2, 202)]
    assert judge(doubtful).looks[-1].alarm
    assert not decide([doubtful, *noisy])[0].looks[-1].alarm
    # those whose noise reaches no alarm take nothing
    quiet = [evidence(0.0, 0.0, 0.0, between=0.0003, seed=seed) for seed in range(2, 202)]
    assert decide([doubtful, *quiet])[0].looks[-1].alarm


def test_unchanged_metrics_together_raise_as_many_alarms_as_are_allowed() -> None:
    assert alarm_limit([0.5] * 100) == pytest.approx(RUN_ERROR / 100)
    assert alarm_limit([0.5]) == RUN_ERROR
    assert alarm_limit([1e-9] * 100) == 1
    assert alarm_limit([]) == 1
    # two that noise seldom reaches, and one that it does
    chances = [0.02, 0.03, 0.5]
    limit = alarm_limit(chances)
    assert limit == pytest.approx(0.05)
    assert sum(min(limit, chance) for chance in chances) == pytest.approx(RUN_ERROR)


@pytest.mark.parametrize("between", [0.002, 0.003, 0.03])
@pytest.mark.parametrize("blocks", [2, 3, 4, 5])
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


def fleet(levels: Samples, seed: int = 1) -> tuple[Evidence, Evidence]:
    """Return what is asked of a metric whose starts are at ``levels`` (logarithms), of a family that differs by 2 %."""
    prior = Prior(4, 0.02**2)
    new = np.full(3, 0.05) + np.random.default_rng(seed).normal(0, 0.001, 3)
    level = Evidence(levels, new, math.log1p(0.01), prior)
    return level, replace(level, margin=math.log1p(0.05), alarm_only=True)


def test_new_blocks_of_unknown_hosts_count_as_one() -> None:
    """A quiet baseline may be of one host, and all new blocks of another."""
    level, slow = fleet(np.random.default_rng(2).normal(0, 0.002, 8))
    assert [one.verdict for one in decide([level])] == [Verdict.REGRESSED]
    level, slow = of_unknown_hosts(level, slow)
    assert level.as_one
    assert slow.as_one
    (decision,) = decide([level])
    assert decision.verdict is Verdict.BLIND
    assert "more blocks would not help" in decision.reason
    assert decide([slow])[0].verdict is Verdict.PASS
    # what no host of the fleet explains is found all the same
    far = replace(level, new=level.new + 0.2)
    assert decide([far])[0].verdict is Verdict.REGRESSED


@pytest.mark.parametrize("prior", [NO_PRIOR, Prior(4, 0.004**2)])
def test_starts_that_hardly_differ_are_what_they_are(prior: Prior) -> None:
    level, slow = (replace(one, prior=prior) for one in fleet(np.zeros(8)))
    assert of_unknown_hosts(level, slow) == (level, slow)
