"""Drift that metric and sentinel share is subtracted; noise that only the sentinel has is not added."""

from dataclasses import replace

import numpy as np
import pytest
from tests.unit.gate.documents import measured, sample_set

from hugepage_gate.block_summary import BlockSummary, summarise
from hugepage_gate.evidence import disturbed_blocks, subtract_drift
from hugepage_gate.samples import Samples

BLOCK = summarise(sample_set(measured(1)).series[0], 0.01, {}, None).blocks[0]


def blocks(sentinels: Samples, in_session: int = 1) -> list[BlockSummary]:
    return [
        replace(BLOCK, sentinel=float(np.exp(one)), session=str(place // in_session))
        for place, one in enumerate(sentinels)
    ]


def corrected(follows: float, count: int = 20, in_session: int = 1) -> tuple[float, float]:
    """Return the deviation of 200 new blocks before and after, of a metric that follows the sentinel that much."""
    random = np.random.default_rng(1)
    drift, new_drift = random.normal(0, 0.01, count), random.normal(0, 0.01, 200)
    values = follows * drift + random.normal(0, 0.002, count), follows * new_drift + random.normal(0, 0.002, 200)
    result = subtract_drift(blocks(drift, in_session), blocks(new_drift), values)
    return float(values[1].std()), float(result[1].std())


def test_shared_drift_is_subtracted() -> None:
    before, after = corrected(1.0)
    assert before > 0.009
    assert after == pytest.approx(0.002, rel=0.3)


def test_a_metric_that_does_not_follow_is_left_alone() -> None:
    before, after = corrected(0.0)
    assert after == pytest.approx(before, rel=0.05)


def test_few_sessions_do_not_teach_a_slope() -> None:
    before, after = corrected(1.0, count=7)
    assert after == before
    before, after = corrected(1.0, count=14, in_session=2)
    assert after == before
    before, after = corrected(1.0, count=16, in_session=2)
    assert after < before / 2


def test_a_negative_slope_is_noise() -> None:
    before, after = corrected(-1.0)
    assert after == before


def test_a_sentinel_is_judged_against_enough_others_only() -> None:
    usual = np.random.default_rng(1).normal(0, 0.01, 10)
    far = blocks(np.array([0.2]))
    assert disturbed_blocks(blocks(usual), far) == far
    assert disturbed_blocks(blocks(usual), blocks(np.array([0.005]))) == []
    assert disturbed_blocks(blocks(usual[:4]), far) == []
    assert disturbed_blocks(blocks(usual), [BLOCK]) == []


def test_a_sentinel_after_the_block_is_judged_like_the_one_before() -> None:
    usual = blocks(np.random.default_rng(1).normal(0, 0.01, 10))
    quiet, burst = (replace(usual[0], sentinel_after=float(np.exp(one))) for one in (0.005, 0.2))
    assert disturbed_blocks(usual, [quiet, burst]) == [burst]
