"""Comparisons of measurements: the same machine, a baseline that is good enough, and what became worse."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from tests.unit.gate.documents import MACHINE, levels_of, measured, rows_of, sample_set, series_of

from hugepage_gate.compare_suites import Terms, baseline_from_samples, compare
from hugepage_gate.comparison import Comparison, MetricResult, as_json
from hugepage_gate.gate_policy import MetricPolicy, Policy
from hugepage_gate.samples import SampleSet, Verdict
from hugepage_qa.schema import find_violation

BASELINE = sample_set(measured(10))
TERMS = Terms()


def judge(new: SampleSet, baseline: SampleSet = BASELINE, terms: Terms = TERMS) -> Comparison:
    comparison = compare(baseline_from_samples(baseline, terms.policy), new, terms)
    document = json.loads(json.dumps(as_json(comparison), allow_nan=False))
    assert find_violation(document, "hugepage_gate", "comparison") is None
    return comparison


def result(comparison: Comparison, estimand: str) -> MetricResult:
    return next(one for one in comparison.results if one.estimand == estimand)


def new_samples(change: float = 0.0, blocks: int = 3, seed: int = 2, **facts: Any) -> SampleSet:
    return sample_set(measured(blocks, change, seed, day=20), source="new", **facts)


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


@pytest.mark.parametrize("key", ["cpu_model", "microcode", "thp.enabled"])
def test_another_machine_is_never_compared(key: str) -> None:
    for seed in range(2, 22):
        comparison = judge(new_samples(0.0, seed=seed, environment={**MACHINE, key: "Xeon 8124M"}))
        assert comparison.verdict is Verdict.NOT_COMPARABLE
        assert comparison.exit_code == 2
        assert key in comparison.reason
        assert not comparison.results


def test_several_machines_on_one_side_are_never_compared() -> None:
    for baseline, new in ((BASELINE, new_samples()), (new_samples(blocks=10), sample_set(measured(3, seed=3, day=40)))):
        mixed = frozenset({"cpu_model"})
        for sides in ((replace(baseline, mixed=mixed), new), (baseline, replace(new, mixed=mixed))):
            comparison = judge(sides[1], sides[0])
            assert comparison.verdict is Verdict.NOT_COMPARABLE
            assert "several" in comparison.reason


def test_what_a_benchmark_was_told_is_never_soft() -> None:
    """sysbench has an option of the name of a soft fact."""
    baseline = sample_set(measured(10), environment={**MACHINE, "benchmark.parameters.time": 60})
    comparison = judge(new_samples(environment={**MACHINE, "benchmark.parameters.time": 500}), baseline)
    assert comparison.verdict is Verdict.NOT_COMPARABLE


def test_what_is_soft_may_differ_and_is_shown() -> None:
    environment = {**MACHINE, "uptime": 7, "host": {"bios": "2"}}
    comparison = judge(new_samples(environment=environment))
    assert comparison.verdict is Verdict.PASS
    assert {one.key: one.kind for one in comparison.differences} == {"uptime": "soft", "host.bios": "soft"}


def test_one_thing_is_under_test() -> None:
    baseline = sample_set(measured(10), subject={"kernel": "6.12", "qemu": "9"})
    both = new_samples(subject={"kernel": "6.13", "qemu": "10"})
    assert judge(both, baseline).verdict is Verdict.NOT_COMPARABLE
    assert judge(both, baseline, replace(TERMS, subject="kernel")).verdict is Verdict.NOT_COMPARABLE
    assert judge(both, baseline, Terms(subject="kernel", allowed=frozenset({"qemu"}))).verdict is Verdict.PASS
    assert judge(new_samples(subject={"kernel": "6.13", "qemu": "9"}), baseline).verdict is Verdict.PASS


def test_the_configuration_of_a_kernel_follows_it() -> None:
    baseline = sample_set(measured(10), environment={**MACHINE, "kernel_config": "a"}, subject={"kernel": "1"})
    new = new_samples(environment={**MACHINE, "kernel_config": "b"}, subject={"kernel": "2"})
    assert judge(new, baseline).verdict is Verdict.NOT_COMPARABLE
    assert judge(new, baseline, replace(TERMS, subject="kernel")).verdict is Verdict.PASS


def on_hosts(hosts: str, seed: int, day: int, spread: float = 0.03) -> SampleSet:
    """Return a block per host, which differ by ``spread``."""
    levels = [100 * np.exp(spread * np.random.default_rng(ord(host)).normal()) for host in hosts]
    series = series_of(rows_of(levels, seed), day=day)
    for block, host in zip(series["blocks"], hosts, strict=True):
        block["host"] = host
    return sample_set(series, source="hosts")


def test_another_host_needs_a_baseline_of_three() -> None:
    baseline = sample_set(measured(10), environment={**MACHINE, "hostname": "a"})
    comparison = judge(new_samples(environment={**MACHINE, "hostname": "b"}), baseline)
    assert comparison.verdict is Verdict.NOT_COMPARABLE
    assert "host" in comparison.reason
    assert judge(on_hosts("xyz", 2, 20), on_hosts("abcdef", 1, 0)).verdict is Verdict.UNDECIDED


def test_many_blocks_of_one_other_host_are_one_replicate() -> None:
    comparison = judge(on_hosts("xxxxx", 2, 20), on_hosts("aabbccddeeff", 1, 0))
    assert result(comparison, "level").new_blocks == 1
    assert comparison.verdict is Verdict.UNDECIDED


def test_a_host_is_compared_with_its_own_blocks() -> None:
    comparison = judge(on_hosts("aaa", 2, 20), on_hosts("aaaaaabbbbbbcccccc", 1, 0))
    assert result(comparison, "level").baseline_blocks == 6
    assert comparison.verdict is Verdict.PASS


def test_thousands_of_samples_in_one_block_are_one_block() -> None:
    one = sample_set(measured(1, 0.05, 2, day=20, samples=5000))
    comparison = judge(one)
    assert result(comparison, "level").new_blocks == 1
    assert comparison.verdict is Verdict.UNDECIDED
    alone = sample_set(measured(1, samples=5000))
    thin = judge(one, alone)
    assert thin.verdict is Verdict.BASELINE_THIN
    assert result(thin, "level").change is None


def test_blocks_of_one_session_are_one_replicate() -> None:
    new = sample_set(measured(4, 0.03, 2, day=20, block={"session": "tuesday"}))
    comparison = judge(new)
    assert result(comparison, "level").new_blocks == 1
    assert comparison.verdict is Verdict.UNDECIDED


def test_thin_and_stale_baselines_decide_nothing() -> None:
    assert judge(new_samples(0.05), sample_set(measured(4))).verdict is Verdict.BASELINE_THIN
    one_boot = sample_set(measured(10, block={"boot": "the same"}))
    assert judge(new_samples(0.05), one_boot).verdict is Verdict.BASELINE_THIN
    warned = judge(new_samples(0.05), one_boot, replace(TERMS, fewest_boots=1))
    assert warned.verdict is Verdict.REGRESSED
    assert "one boot" in warned.notes[0]
    old = sample_set(measured(3, 0.05, 2, day=101), source="new")
    assert judge(old).verdict is Verdict.BASELINE_STALE
    assert judge(old, terms=replace(TERMS, oldest=timedelta(days=120))).verdict is Verdict.REGRESSED
    assert judge(old, terms=replace(TERMS, oldest=None)).verdict is Verdict.REGRESSED


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


def test_sessions_and_not_blocks_make_a_baseline() -> None:
    one_session = sample_set(measured(10, block={"session": "monday"}))
    thin = judge(new_samples(), one_session)
    assert thin.verdict is Verdict.BASELINE_THIN
    assert "1 sessions" in thin.results[0].reason


def test_what_nobody_knows_of_two_machines_is_no_agreement() -> None:
    environment = {**MACHINE, "cpu_model": "n/a"}

    def on(host: str | None, blocks: int, day: int) -> SampleSet:
        facts = environment if host is None else {**environment, "hostname": host}
        return sample_set(measured(blocks, 0.0, day + 1, day), environment=facts)

    assert judge(on("a", 3, 20), on("a", 10, 0)).verdict is Verdict.PASS
    assert judge(on("n/a", 3, 20), on("n/a", 10, 0)).verdict is Verdict.NOT_COMPARABLE
    comparison = judge(on(None, 3, 20), on(None, 10, 0))
    assert comparison.verdict is Verdict.NOT_COMPARABLE
    assert "cpu_model: n/a on both sides" in comparison.reason
    waived = judge(on(None, 3, 20), on(None, 10, 0), Terms(waivers={"cpu_model": "both are z15"}))
    assert waived.verdict is Verdict.PASS


def test_a_fact_is_waived_with_a_reason_that_is_shown() -> None:
    baseline = sample_set(measured(10), environment={**MACHINE, "microcode": "1", "dimms": 2})
    new = new_samples(environment={**MACHINE, "microcode": "2", "dimms": 2})
    assert judge(new, baseline).verdict is Verdict.NOT_COMPARABLE
    comparison = judge(new, baseline, Terms(waivers={"microcode": "what does the update cost?"}))
    assert comparison.verdict is Verdict.PASS
    (waived,) = comparison.differences
    assert (waived.kind, waived.reason) == ("waived", "what does the update cost?")
    other = new_samples(environment={**MACHINE, "microcode": "2", "dimms": 4})
    assert judge(other, baseline, Terms(waivers={"microcode": "x"})).verdict is Verdict.NOT_COMPARABLE


def fleet(blocks: int, seed: int, day: int, **facts: Any) -> SampleSet:
    """Return metrics of virtual machines that differ by 2 %."""
    rows = [measured_fleet(blocks, seed + place, day, f"m{place}") for place in range(12)]
    return sample_set(*rows, source=f"day {day}", **facts)


def measured_fleet(blocks: int, seed: int, day: int, metric: str) -> dict[str, Any]:
    return series_of(rows_of(levels_of(blocks, seed=seed, between=0.02), seed), metric, day)


def test_it_is_said_that_hosts_are_not_recorded() -> None:
    (note,) = [one for one in judge(fleet(3, 50, 40), fleet(10, 1, 0)).notes if "hosts" in one]
    assert "the usual metric differs by 2." in note or "the usual metric differs by 1." in note
    recorded = {"environment": {**MACHINE, "hostname": "lab7"}}
    comparison = judge(fleet(3, 50, 40, **recorded), fleet(10, 1, 0, **recorded))
    assert not [one for one in comparison.notes if "hosts" in one]
    assert not [one for one in judge(new_samples()).notes if "hosts" in one]
