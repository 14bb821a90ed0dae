"""Warm-up, and runs that never settle."""

import numpy as np

from hugepage_gate.block_summary import clip_outliers, find_changes, find_steady_state
from hugepage_gate.samples import Samples

MARGIN = 0.01


def noise(count: int, seed: int = 1) -> Samples:
    return np.random.default_rng(seed).normal(100, 1, count)


def test_noise_is_steady_from_the_start() -> None:
    for seed in range(50):
        assert find_steady_state(noise(600, seed), MARGIN) == 0


def test_a_warm_up_is_dropped() -> None:
    samples = noise(600)
    samples[:90] *= 0.6
    start = find_steady_state(samples, MARGIN)
    assert start is not None
    assert 85 <= start <= 95


def test_a_change_below_the_margin_is_one_level() -> None:
    samples = np.random.default_rng(1).normal(100, 0.1, 600)
    samples[:90] *= 1.005
    assert find_changes(samples, MARGIN) == []
    assert find_changes(samples, 0.001) != []


def test_a_level_that_lasts_less_than_half_of_the_run_is_not_steady() -> None:
    samples = noise(600)
    samples[200:400] *= 1.2
    samples[400:] *= 1.4
    assert find_steady_state(samples, MARGIN) is None


def test_a_late_change_keeps_the_level_before() -> None:
    samples = noise(600)
    samples[400:] *= 1.2
    assert find_steady_state(samples, MARGIN) == 0


def test_outliers_are_no_change() -> None:
    samples = noise(600)
    samples[100:103] = 5000
    assert find_steady_state(clip_outliers(samples), MARGIN) == 0


def test_a_wandering_run_does_not_fall_into_pieces() -> None:
    settled = 0
    for seed in range(20):
        steps = np.random.default_rng(seed).normal(0, 1, 600)
        for place in range(1, 600):
            steps[place] += 0.9 * steps[place - 1]
        settled += find_steady_state(100 + steps, MARGIN) is not None
    assert settled >= 18


def test_few_samples_are_not_judged() -> None:
    assert find_steady_state(np.array([1.0, 9.0] * 10), MARGIN) == 0
