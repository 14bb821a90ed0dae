"""What may be compared: measurements of the same machine, with a baseline that is good enough."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from tests.unit.gate.comparisons import BASELINE, TERMS, judge, new_samples, result
from tests.unit.gate.documents import MACHINE, levels_of, measured, rows_of, sample_set, series_of

from hugepage_gate.compare_suites import Terms
from hugepage_gate.samples import SampleSet, Verdict


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
