"""One number for a block, and how many independent samples it holds."""

import numpy as np
import pytest
from tests.unit.gate.documents import sample_set, series_of

from hugepage_gate.block_summary import BlockSummary, effective_size, location, middle_and_spread, summarise
from hugepage_gate.samples import Samples


def test_a_location_is_the_mean_of_the_middle_half() -> None:
    assert location(np.array([7.0])) == 7
    assert location(np.array([1.0, 2.0])) == 1.5
    assert location(np.array([1.0, 4.0, 100.0])) == 4
    assert location(np.array([100.0, 3.0, 0.0, 5.0])) == 4
    assert location(np.arange(1.0, 26)) == 13


def test_runs_that_stall_leave_a_location_unless_they_are_most() -> None:
    assert location(np.array([0.0] * 2 + [8.0] * 8)) == 8
    assert location(np.array([0.0] * 9 + [8.0])) == 0


def test_slow_runs_move_the_mean_of_a_block_and_not_its_location() -> None:
    samples = np.random.default_rng(1).normal(100, 0.3, 25)
    slow = samples * np.where(np.arange(25) % 10, 1, 2)
    plain, hit = (summarise_block(one) for one in (samples, slow))
    assert hit.location == pytest.approx(plain.location, rel=0.005)
    assert hit.mean == pytest.approx(1.12 * plain.mean, rel=0.01)


def summarise_block(samples: Samples) -> BlockSummary:
    return summarise(sample_set(series_of([samples.tolist()])).series[0], 0.01, {}, None).blocks[0]


@pytest.mark.parametrize("count", [9, 50])
def test_an_outlier_does_not_move_a_location(count: int) -> None:
    samples = np.exp(np.random.default_rng(1).normal(0, 0.01, count))
    assert location(np.append(samples[1:], 22.0)) == pytest.approx(location(samples), rel=0.01)


def test_units_do_not_matter() -> None:
    samples = np.random.default_rng(1).uniform(1, 2, 9)
    assert location(1000 * samples) == pytest.approx(1000 * location(samples))


def test_spread_is_a_standard_deviation_without_outliers() -> None:
    samples = np.random.default_rng(1).normal(10, 2, 20_000)
    assert middle_and_spread(samples) == pytest.approx((10, 2), rel=0.03)
    assert middle_and_spread(np.append(samples, [1e6] * 100)) == pytest.approx((10, 2), rel=0.03)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_effective_size_of_a_series_whose_answer_is_known(correlation: float) -> None:
    random = np.random.default_rng(3)
    samples = random.normal(0, 1, 20_000)
    for place in range(1, len(samples)):
        samples[place] += correlation * samples[place - 1]
    # of an AR(1) series: n (1 - rho) / (1 + rho)
    expected = len(samples) * (1 - correlation) / (1 + correlation)
    assert effective_size(samples + 100) == pytest.approx(expected, rel=0.15)


def test_effective_size_is_never_more_than_there_are() -> None:
    alternating = np.array([1.0, 2.0] * 50)
    assert effective_size(alternating) == 100
    assert effective_size(np.ones(100)) == 100
    assert effective_size(np.arange(100.0)) < 5
