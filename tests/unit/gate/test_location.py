"""One number for a block, and how many independent samples it holds."""

import numpy as np
import pytest

from hugepage_gate.block_summary import (
    effective_size,
    location,
    middle_and_spread,
    outlier_rate,
)


def test_many_samples_have_a_median_and_few_a_hodges_lehmann_estimate() -> None:
    many = np.arange(1.0, 22)
    assert location(many) == 11
    few = np.array([1.0, 4.0, 100.0])
    # the median of 1, 2, 4, 10, 20, 100: geometric means of all pairs
    assert location(few) == pytest.approx((4 + 10) / 2)
    assert location(np.array([7.0])) == 7


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


def test_outliers_are_counted_on_the_worse_side_only() -> None:
    samples = np.append(np.random.default_rng(1).normal(10, 0.1, 990), [20.0] * 10)
    assert outlier_rate(samples, *middle_and_spread(samples), 1) == pytest.approx(0.01)
    assert outlier_rate(samples, *middle_and_spread(samples), -1) == 0
    assert outlier_rate(np.ones(50), 1.0, 0.0, 1) == 0


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
