"""Comparisons with a baseline that is made up, checked against their schema."""

import json
from typing import Any

from tests.unit.gate.documents import measured, sample_set

from hugepage_gate.compare_suites import Terms, baseline_from_samples, compare
from hugepage_gate.comparison import Comparison, MetricResult, as_json
from hugepage_gate.samples import SampleSet
from hugepage_qa.schema import find_violation

BASELINE = sample_set(measured(10))
TERMS = Terms()


def judge(new: SampleSet, baseline: SampleSet = BASELINE, terms: Terms = TERMS) -> Comparison:
    """Return how ``new`` compares with ``baseline``; as JSON it is of its schema."""
    comparison = compare(baseline_from_samples(baseline, terms.policy), new, terms)
    document = json.loads(json.dumps(as_json(comparison), allow_nan=False))
    assert find_violation(document, "hugepage_gate", "comparison") is None
    return comparison


def result(comparison: Comparison, estimand: str) -> MetricResult:
    """Return the result on what is estimated of the only metric."""
    return next(one for one in comparison.results if one.estimand == estimand)


def new_samples(change: float = 0.0, blocks: int = 3, seed: int = 2, **facts: Any) -> SampleSet:
    """Return new samples of that metric, ``change`` (a share) away from the baseline."""
    return sample_set(measured(blocks, change, seed, day=20), source="new", **facts)
