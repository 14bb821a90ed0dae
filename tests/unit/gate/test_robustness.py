"""Whatever is measured, the outcome is a verdict or one line that says what is wrong."""

import json
import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.gate.documents import measured, sample_set, series_of

from hugepage_gate.compare_suites import Terms, baseline_from_samples, compare
from hugepage_gate.comparison import as_json
from hugepage_gate.gate_policy import Policy
from hugepage_gate.samples import Verdict
from hugepage_qa.errors import InputError
from hugepage_qa.schema import find_violation

SAMPLE = (
    st.floats(0, 1e300)
    | st.floats(1, 1000)
    | st.sampled_from([0.0, 5e-324, 1e-100, 1.0 + 1e-15, 1e100])
    | st.integers(0, 10**18)
)
ROWS = st.lists(st.lists(SAMPLE, min_size=1, max_size=40), min_size=1, max_size=7)
FACTS = st.sampled_from(
    [
        {},
        {"kind": "count"},
        {"kind": "count", "direction": "equal"},
        {"unit": "x", "direction": "higher"},
        {"block": {"session": "one"}},
        {"block": {"sentinel": 1.5, "host": "a"}},
        {"block": {"warmup": True}},
    ]
)


@settings(max_examples=300)
@given(ROWS, ROWS, FACTS)
def test_any_samples(old: list[list[float]], new: list[list[float]], facts: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            baseline = baseline_from_samples(sample_set(series_of(old, **facts)), Policy())
            comparison = compare(baseline, sample_set(series_of(new, day=20, **facts)), Terms(fewest_blocks=1))
        except InputError as error:
            assert len(str(error).splitlines()) == 1
            return
    document = json.loads(json.dumps(as_json(comparison), allow_nan=False))
    assert find_violation(document, "hugepage_gate", "comparison") is None
    if len(new) == 1:
        assert comparison.verdict is not Verdict.REGRESSED


def test_a_block_at_zero_has_no_ratio() -> None:
    with pytest.raises(InputError, match="above 0"):
        baseline_from_samples(sample_set(series_of([[0.0, 0.0, 1.0]])), Policy())


def test_a_stalled_second_is_a_sample() -> None:
    series = measured(6, unit="tps", direction="higher")
    series["blocks"][0]["samples"][3] = 0.0
    baseline_from_samples(sample_set(series), Policy())
