"""New samples that contradict their baseline, or are part of it, get no verdict."""

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.gate.documents import measured, sample_set, series_of

from hugepage_gate.compare_suites import Terms, baseline_from_samples, compare
from hugepage_gate.comparison import Comparison
from hugepage_gate.gate_policy import Policy
from hugepage_gate.sample_files import join
from hugepage_gate.samples import SampleSet, Verdict
from hugepage_qa.errors import InputError

BASELINE = sample_set(measured(10))
ONE_SAMPLE = [[level] for level in (2.5, 2.4, 2.6, 2.5, 2.7)]


def judge(new: SampleSet, baseline: SampleSet = BASELINE) -> Comparison:
    return compare(baseline_from_samples(baseline, Policy()), new, Terms())


def of_session(session: str, levels: list[list[float]] = ONE_SAMPLE) -> SampleSet:
    return sample_set(series_of(levels, block={"session": session}))


def test_samples_that_are_in_the_baseline_are_refused() -> None:
    with pytest.raises(InputError, match="all of the baseline"):
        judge(BASELINE)


def test_a_single_sample_is_the_same_in_the_same_session_only() -> None:
    with pytest.raises(InputError, match="all of the baseline"):
        judge(of_session("s1", ONE_SAMPLE[:1]), of_session("s1", ONE_SAMPLE[:1]))
    judge(of_session("s2", ONE_SAMPLE[:1]), of_session("s1", ONE_SAMPLE[:1]))
    judge(of_session("s1", [[2.51]]), of_session("s1"))


def test_what_another_boot_counted_to_the_last_instruction_is_no_part_of_the_baseline() -> None:
    again = sample_set(measured(3, 0.05, 2, day=20))
    (series,) = again.series
    other_boots = tuple(replace(one, boot=f"other{number}") for number, one in enumerate(series.blocks))
    comparison = judge(replace(again, series=(replace(series, blocks=other_boots),)), again)
    (level,) = [one for one in comparison.results if one.estimand == "level"]
    assert (level.baseline_blocks, level.new_blocks) == (3, 3)


def test_blocks_of_the_baseline_are_not_compared_with_themselves() -> None:
    night = sample_set(measured(1, 0.05, 2, day=20))
    baseline = join([BASELINE, night])
    comparison = judge(join([night, sample_set(measured(2, 0.05, 3, day=21), source="more")]), baseline)
    (level,) = [one for one in comparison.results if one.estimand == "level"]
    assert (level.baseline_blocks, level.new_blocks) == (10, 3)
    assert comparison.verdict is Verdict.REGRESSED


@pytest.mark.parametrize("facts", [{"unit": "ms"}, {"unit": "x", "direction": "higher"}, {"kind": "count"}])
def test_another_unit_or_direction_is_refused(facts: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="in the baseline"):
        judge(sample_set(measured(3, seed=2, day=20, **facts)))
