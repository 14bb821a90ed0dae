"""Comparisons of measurements: what became worse."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.unit.gate.comparisons import BASELINE, TERMS, judge, new_samples, result
from tests.unit.gate.documents import levels_of, measured, rows_of, sample_set, series_of

from hugepage_gate.gate_policy import MetricPolicy, Policy
from hugepage_gate.samples import SampleSet, Verdict


@pytest.mark.parametrize(
    ("change", "verdict", "exit_code"),
    [(0.0, Verdict.PASS, 0), (0.03, Verdict.REGRESSED, 1), (-0.03, Verdict.IMPROVED, 0)],
)
def test_verdict_and_exit_code(change: float, verdict: Verdict, exit_code: int) -> None:
    comparison = judge(new_samples(change))
    assert comparison.verdict is verdict
    assert comparison.exit_code == exit_code
    found = result(comparison, "level").change
    assert found is not None
    assert found.lower < change < found.upper


def test_rates_are_better_high() -> None:
    facts: dict[str, Any] = {"unit": "tps", "direction": "higher"}
    baseline = sample_set(measured(10, **facts))
    slower = sample_set(measured(3, -0.03, 2, day=20, **facts))
    assert judge(slower, baseline).verdict is Verdict.REGRESSED


def sessions_of_two(levels: Sequence[float], day: int) -> SampleSet:
    """Return a session for every two of ``levels``."""
    series = series_of(rows_of(levels, seed=day), day=day)
    for place, block in enumerate(series["blocks"]):
        block.update(session=f"{day}-{place // 2}", order=place % 2)
    return sample_set(series)


@pytest.mark.parametrize("burst", [1.25, 1.5])
def test_bursts_in_one_of_the_two_blocks_of_each_session_are_no_regression(burst: float) -> None:
    baseline = sessions_of_two(levels_of(20, seed=1), day=1)
    slow = sessions_of_two(levels_of(6, change=burst - 1, seed=2), day=40)
    assert judge(slow, baseline).verdict is Verdict.REGRESSED
    levels = [level * (burst if place % 2 else 1) for place, level in enumerate(levels_of(6, seed=2))]
    assert judge(sessions_of_two(levels, day=40), baseline).verdict is Verdict.UNDECIDED


def test_a_cpu_hog_in_one_block_is_no_regression() -> None:
    for place in range(3):
        levels = levels_of(3, seed=2)
        levels[place] *= 1.5
        assert judge(sample_set(series_of(rows_of(levels, 2), day=20))).verdict is Verdict.UNDECIDED


def with_sentinels(sample: SampleSet, sentinels: list[float]) -> SampleSet:
    series = sample.series[0]
    blocks = tuple(replace(one, sentinel=value) for one, value in zip(series.blocks, sentinels, strict=True))
    return replace(sample, series=(replace(series, blocks=blocks),))


def test_a_disturbed_session_decides_nothing() -> None:
    usual = list(np.random.default_rng(1).normal(10, 0.05, 10))
    baseline = with_sentinels(BASELINE, usual)
    assert judge(with_sentinels(new_samples(0.03), [10.0, 10.02, 9.97]), baseline).verdict is Verdict.REGRESSED
    disturbed = judge(with_sentinels(new_samples(0.03), [10.0, 12.0, 9.97]), baseline)
    assert disturbed.verdict is Verdict.DISTURBED
    assert disturbed.exit_code == 2


def test_quiet_sessions_are_seldom_called_disturbed_however_many_configurations_they_have() -> None:
    names = [f"c{place}" for place in range(40)]
    random = np.random.default_rng(1)

    def samples(sessions: int, day: int) -> SampleSet:
        sets = [measured(sessions, 0, day + i, day, samples=5, configuration=one) for i, one in enumerate(names)]
        for place, one in enumerate(sets):
            for session, block in enumerate(one["blocks"]):
                block.update(session=f"{day}-{session}", order=place, sentinel=float(random.normal(10, 0.05)))
        return sample_set(*sets, reference="c0")

    comparisons = [judge(samples(1, 20 + time), samples(8, 0)) for time in range(20)]
    disturbed = [one for one in comparisons if any(found.verdict is Verdict.DISTURBED for found in one.results)]
    assert len(disturbed) <= 2


def test_a_disturbed_session_counts_right() -> None:
    def counts(level: float, blocks: int, day: int, sentinels: list[float]) -> SampleSet:
        rows = [[level] * 5 for _ in range(blocks)]
        return with_sentinels(
            sample_set(series_of(rows, day=day, kind="count", unit="faults", direction="lower")), sentinels
        )

    usual = list(np.random.default_rng(1).normal(10, 0.05, 10))
    baseline = counts(7.0, 10, 0, usual)
    assert judge(counts(7.0, 3, 20, [10.0, 12.0, 9.97]), baseline).verdict is Verdict.PASS
    assert judge(counts(9.0, 3, 20, [10.0, 12.0, 9.97]), baseline).verdict is Verdict.REGRESSED


def test_a_run_that_never_settles_decides_nothing() -> None:
    stairs = [[100 * (1 + place // 20 / 5) + place % 3 for place in range(100)] for _ in range(3)]
    for number, row in enumerate(stairs):
        row[0] += number
    comparison = judge(sample_set(series_of(stairs, day=20)))
    assert comparison.verdict is Verdict.UNDECIDED
    assert "steady" in result(comparison, "level").reason


def test_blocks_of_warm_up_are_left_out() -> None:
    series = measured(4, 0.0, 2, day=20)
    series["blocks"][0]["samples"] = [160.0, 161.0, 163.0]
    series["blocks"][0]["warmup"] = True
    comparison = judge(sample_set(series))
    assert result(comparison, "level").new_blocks == 3
    assert comparison.verdict is Verdict.PASS


def test_a_metric_without_baseline_of_its_configuration_is_undecided() -> None:
    other = measured(3, seed=3, day=20, configuration="shp-2M", block={"order": 1})
    comparison = judge(sample_set(measured(3, seed=2, day=20, configuration="thp"), other, reference="thp"))
    assert comparison.verdict is Verdict.UNDECIDED
    assert comparison.exit_code == 2


@pytest.mark.parametrize(("change", "verdict"), [(0.0, Verdict.PASS), (0.03, Verdict.REGRESSED)])
def test_a_metric_that_is_newer_than_the_baseline_leaves_the_verdict_to_the_others(
    change: float, verdict: Verdict
) -> None:
    comparison = judge(sample_set(measured(3, change, 2, day=20), measured(3, seed=3, day=20, metric="other")))
    assert comparison.verdict is verdict
    new = next(one for one in comparison.results if one.metric == "other")
    assert (new.verdict, new.gates) == (Verdict.UNDECIDED, False)
    assert "older than the metric" in new.reason


def test_a_metric_that_does_not_gate_is_only_reported() -> None:
    policy = Policy([("walk", MetricPolicy(gates=False))])
    comparison = judge(new_samples(0.03), terms=replace(TERMS, policy=policy))
    assert result(comparison, "level").verdict is Verdict.REGRESSED
    assert comparison.verdict is Verdict.UNDECIDED


def test_a_margin_is_the_metrics_own() -> None:
    policy = Policy([("walk", MetricPolicy(margin=0.05))])
    assert judge(new_samples(0.02), terms=replace(TERMS, policy=policy)).verdict is Verdict.PASS


def with_slow_runs(sample: SampleSet, factor: float, share: float) -> SampleSet:
    """Return ``sample`` with the ``share`` of the runs ``factor`` times as slow."""
    random = np.random.default_rng(3)
    series = sample.series[0]
    blocks = tuple(
        replace(one, samples=np.where(random.random(len(one.samples)) < share, factor * one.samples, one.samples))
        for one in series.blocks
    )
    return replace(sample, series=(replace(series, blocks=blocks),))


@pytest.mark.parametrize(("factor", "share"), [(1.3, 0.3), (2.0, 0.1)])
def test_slow_runs_regress_although_the_usual_run_is_as_fast(factor: float, share: float) -> None:
    baseline = sample_set(measured(10, samples=25))
    new = sample_set(measured(3, 0.0, 2, day=20, samples=25))
    assert [one.estimand for one in judge(new, baseline).results] == ["level"]
    slow = judge(with_slow_runs(new, factor, share), baseline)
    assert slow.verdict is Verdict.REGRESSED


def test_slow_runs_are_told_beside_the_usual_run() -> None:
    baseline = sample_set(measured(10, samples=25))
    slow = judge(with_slow_runs(sample_set(measured(3, 0.0, 2, day=20, samples=25)), 2.0, 0.1), baseline)
    first, usual = slow.results
    assert (first.name, first.verdict, first.margin) == ("walk slow runs", Verdict.REGRESSED, 0.05)
    assert (usual.estimand, usual.verdict) == ("level", Verdict.PASS)
    assert first.change is not None
    assert first.change.estimate > 0.05


def test_slow_runs_in_the_only_block_leave_it_open() -> None:
    baseline = sample_set(measured(10, samples=25))
    new = sample_set(measured(1, 0.0, 2, day=20, samples=25))
    assert judge(with_slow_runs(new, 2.0, 0.2), baseline).verdict is Verdict.UNDECIDED


def test_a_burst_in_one_of_three_blocks_is_none() -> None:
    baseline = sample_set(measured(10, samples=25))
    new = sample_set(measured(3, 0.0, 2, day=20, samples=25))
    series = with_slow_runs(new, 2.0, 0.2).series[0]
    blocks = (*new.series[0].blocks[:2], series.blocks[2])
    assert judge(replace(new, series=(replace(series, blocks=blocks),)), baseline).verdict is not Verdict.REGRESSED


def test_a_level_that_regressed_tells_of_its_slow_runs_too() -> None:
    assert [one.estimand for one in judge(new_samples(0.2)).results] == ["level"]


def many(changes: Sequence[float], blocks: int, day: int, between: float = 0.001, **facts: Any) -> list[dict[str, Any]]:
    """Return a metric for each of ``changes``."""
    return [
        series_of(
            rows_of(levels_of(blocks, change, 100 * day + place, between), 100 * day + place),
            f"m{place:03}",
            day,
            **facts,
        )
        for place, change in enumerate(changes)
    ]


def test_a_metric_that_cannot_see_its_margin_is_listed_and_leaves_the_verdict_to_the_others() -> None:
    noisy: dict[str, Any] = {"metric": "noisy"}
    baseline = sample_set(*many([0.0] * 8, 8, 0), series_of(rows_of(levels_of(8, between=0.02)), **noisy))
    new = sample_set(*many([0.0] * 8, 3, 20), series_of(rows_of(levels_of(3, seed=9, between=0.02)), day=20, **noisy))
    comparison = judge(new, baseline)
    assert comparison.verdict is Verdict.PASS
    assert "1 blind" in comparison.reason
    blind = next(one for one in comparison.results if one.metric == "noisy")
    assert blind.verdict is Verdict.BLIND
    assert blind.sees is not None
    assert 0.02 < blind.sees < 0.1
    assert "more" in blind.reason


def test_most_metrics_have_to_see_their_margins() -> None:
    noisy = [0.0] * 8
    comparison = judge(sample_set(*many(noisy, 3, 20, 0.02)), sample_set(*many(noisy, 8, 0, 0.02)))
    assert comparison.verdict is Verdict.UNDECIDED
    assert "blind" in comparison.reason


def test_the_worst_comes_first() -> None:
    changes = [0.0, 0.03, -0.03, 0.08, 0.0]
    comparison = judge(sample_set(*many(changes, 3, 20)), sample_set(*many([0.0] * 5, 8, 0)))
    assert [one.metric for one in comparison.results][:3] == ["m003", "m001", "m002"]


def test_a_change_has_the_sign_of_its_unit() -> None:
    facts: dict[str, Any] = {"unit": "tps", "direction": "higher"}
    comparison = judge(sample_set(*many([-0.05], 3, 20, **facts)), sample_set(*many([0.0], 8, 0, **facts)))
    found = comparison.results[0]
    assert found.change is not None
    assert found.own_change is not None
    assert found.change.estimate == pytest.approx(0.0526, abs=0.003)
    assert found.own_change.lower < found.own_change.estimate < found.own_change.upper < 0
    assert found.own_change.estimate == pytest.approx(-0.05, abs=0.003)


def test_what_is_computed_from_another_metric_counts_once() -> None:
    def both(blocks: int, change: float, day: int) -> SampleSet:
        time = series_of(rows_of(levels_of(blocks, change, day + 1)), day=day)
        rate = {**time, "metric": "walk:MB/s", "unit": "MB/s", "direction": "higher", "same_as": "walk"}
        rate["blocks"] = [
            {**one, "order": 1, "samples": [1e5 / sample for sample in one["samples"]]} for one in time["blocks"]
        ]
        return sample_set(time, rate)

    comparison = judge(both(3, 0.03, 20), both(8, 0.0, 0))
    assert comparison.reason == "1 of 1: walk"
    (rate,) = [one for one in comparison.results if one.metric == "walk:MB/s"]
    assert not rate.gates
    assert rate.notes == ("the same measurement as walk, which counts",)


def counts(levels: Sequence[float], day: int) -> SampleSet:
    rows = [[level] * 3 for level in levels]
    return sample_set(series_of(rows, day=day, kind="count", unit="faults"))


def test_a_count_that_has_noise_is_judged_as_what_is_measured() -> None:
    random = np.random.default_rng(1)
    alarms = 0
    for _ in range(60):
        levels = random.normal(1000, 30, 8).round().tolist()
        alarms += judge(counts(levels[5:], 20), counts(levels[:5], 0)).verdict is Verdict.REGRESSED
    assert alarms <= 1
    usual = [1000.0, 1003, 998, 1001, 999, 1002, 1000]
    assert judge(counts([1001, 999, 1002], 20), counts(usual, 0)).verdict is Verdict.PASS
    assert judge(counts([1101, 1099, 1102], 20), counts(usual, 0)).verdict is Verdict.REGRESSED
