"""Prior and moderated t, against what is known of them."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import polygamma

from hugepage_gate.moderated_t import (
    NO_PRIOR,
    Prior,
    estimate,
    estimate_mean,
    fit_prior,
    inverse_trigamma,
)

BASELINE = np.array([1.0, 1.2, 0.9, 1.1])
NEW = np.array([1.4, 1.5])


def test_without_a_prior_it_is_students_t() -> None:
    found = estimate(BASELINE, NEW, NO_PRIOR, 0.0)
    expected = stats.ttest_ind(NEW, BASELINE, alternative="greater")
    assert found is not None
    assert found.p_worse() == pytest.approx(expected.pvalue)
    assert found.p_better() == pytest.approx(1 - expected.pvalue)
    interval = expected.confidence_interval(0.975)
    assert found.lower(0.025) == pytest.approx(interval.low)


def test_a_prior_adds_degrees_and_pulls_the_variance() -> None:
    plain, moderated = estimate(BASELINE, NEW, NO_PRIOR, 0.0), estimate(BASELINE, NEW, Prior(4, 1.0), 0.0)
    assert plain is not None
    assert moderated is not None
    assert moderated.degrees == plain.degrees + 4
    assert moderated.error > plain.error


def test_one_block_on_each_side_says_nothing_without_a_prior() -> None:
    assert estimate(BASELINE[:1], NEW[:1], NO_PRIOR, 0.0) is None
    assert estimate(BASELINE[:1], NEW[:1], Prior(2, 0.1), 0.0) is not None
    assert estimate(BASELINE, NEW[:0], NO_PRIOR, 0.0) is None
    assert estimate_mean(NEW[:1], NO_PRIOR, 0.0) is None


def test_blocks_that_are_all_alike_are_not_certain() -> None:
    found = estimate(np.ones(5), np.ones(3), NO_PRIOR, 1e-8)
    assert found is not None
    assert found.error > 0


def test_noisier_new_blocks_widen_the_interval() -> None:
    plain, wider = estimate(BASELINE, NEW, NO_PRIOR, 0.0), estimate(BASELINE, NEW, NO_PRIOR, 0.0, excess=1.0)
    assert plain is not None
    assert wider is not None
    assert wider.error**2 == pytest.approx(plain.error**2 + 1 / len(NEW))


def test_the_prior_is_found_again() -> None:
    random = np.random.default_rng(1)
    d0, s0, df = 4.0, 0.02, 9
    variances = d0 * s0**2 / random.chisquare(d0, 4000)
    seen = variances * random.chisquare(df, 4000) / df
    prior = fit_prior([float(one) for one in seen], [df] * 4000)
    assert prior.degrees == pytest.approx(d0, rel=0.1)
    assert prior.variance == pytest.approx(s0**2, rel=0.1)


def test_metrics_that_agree_do_not_make_the_prior_outweigh_a_baseline() -> None:
    random = np.random.default_rng(1)
    seen = 0.01 * random.chisquare(9, 50) / 9
    assert fit_prior([float(one) for one in seen], [9] * 50).degrees == 9


@pytest.mark.parametrize("variances", [[], [0.1] * 4, [0.0] * 9])
def test_no_prior_from_few_or_constant_metrics(variances: list[float]) -> None:
    assert fit_prior(variances, [5] * len(variances)) == NO_PRIOR


@pytest.mark.parametrize("x", [0.01, 0.5, 3.0, 400.0])
def test_inverse_trigamma(x: float) -> None:
    assert inverse_trigamma(float(polygamma(1, x))) == pytest.approx(x, rel=1e-6)


def test_new_blocks_tell_nothing_of_the_noise_where_they_are_what_varies() -> None:
    wild = np.array([1.4, 3.0])
    pooled, alone = (estimate(BASELINE, wild, NO_PRIOR, 0.0, pooled=pooled) for pooled in (True, False))
    assert pooled is not None
    assert alone is not None
    assert alone.degrees == len(BASELINE) - 1
    assert alone.error == pytest.approx(BASELINE.std(ddof=1) * np.sqrt(1 / 4 + 1 / 2))
    assert alone.error < pooled.error


def test_how_likely_noise_alone_is_that_large() -> None:
    found = estimate(BASELINE, NEW, NO_PRIOR, 0.0)
    assert found is not None
    assert found.beyond(found.difference) == pytest.approx(found.p_worse())
    assert found.beyond(0) == pytest.approx(0.5)
