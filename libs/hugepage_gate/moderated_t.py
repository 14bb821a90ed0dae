"""How far new blocks lie from those of the baseline, with the uncertainty of that.

The baselines of a family of metrics say how much blocks vary, before a metric's own few blocks do. Variances of metrics
are taken as draws from a scaled inverse chi-squared distribution, d0 s0^2 / chi^2(d0), whose d0 and s0^2 are fitted by
the moments of the log variances (Smyth 2004, function fitFDist of limma).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import digamma, polygamma, stdtr, stdtrit

from hugepage_gate.samples import Samples

#: fewer metrics say nothing about how variances are distributed
FEWEST_METRICS = 5

_TRIGAMMA_STEPS = 50
_TRIGAMMA_EXACT = 1e-8
#: variances of 0 come from coarse clocks; as limma, take them for a tiny part of the usual
_TINY_SHARE = 1e-5


@dataclass(frozen=True)
class Prior:
    """``degrees`` (d0) is how many blocks the knowledge is worth, ``variance`` (s0^2) what it says."""

    degrees: float = 0.0
    variance: float = 0.0


NO_PRIOR = Prior()


def fit_prior(variances: Sequence[float], degrees: Sequence[int]) -> Prior:
    """Return the prior of metrics with these block variances and degrees of freedom (blocks less one).

    The prior never counts for more than the usual baseline of its own family: d0 is estimated, too, and a family whose
    variances happen to agree would else outweigh whatever the new blocks show.
    """
    pairs = [(variance, df) for variance, df in zip(variances, degrees, strict=True) if df > 0]
    if len(pairs) < FEWEST_METRICS:
        return NO_PRIOR
    variance = np.array([pair[0] for pair in pairs])
    df = np.array([pair[1] for pair in pairs], dtype=np.float64)
    usual = float(np.median(variance))
    if usual <= 0:
        return NO_PRIOR
    logs = np.log(np.maximum(variance, _TINY_SHARE * usual)) - digamma(df / 2) + np.log(df / 2)
    mean = float(logs.mean())
    excess = float(logs.var(ddof=1) - polygamma(1, df / 2).mean())
    most = float(np.median(df))
    if excess <= 0:
        return Prior(most, math.exp(mean))
    d0 = 2 * inverse_trigamma(excess)
    return Prior(min(d0, most), math.exp(mean + float(digamma(d0 / 2)) - math.log(d0 / 2)))


def inverse_trigamma(value: float) -> float:
    """Return x with trigamma(x) = ``value`` > 0, by Newton's method on 1 / trigamma."""
    x = 0.5 + 1 / value
    for _ in range(_TRIGAMMA_STEPS):
        trigamma = float(polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(polygamma(2, x))
        x += step
        if -step / x < _TRIGAMMA_EXACT:
            break
    return x


@dataclass(frozen=True)
class Estimate:
    """The difference of new and baseline blocks (+ is worse), its standard error and degrees of freedom."""

    difference: float
    error: float
    degrees: float

    def p_worse(self) -> float:
        """Return the one-sided p value of "not worse than the baseline"."""
        return float(stdtr(self.degrees, -self.difference / self.error))

    def p_better(self) -> float:
        """Return the one-sided p value of "not better than the baseline"."""
        return float(stdtr(self.degrees, self.difference / self.error))

    def beyond(self, change: float) -> float:
        """Return how likely noise alone shows a difference above ``change``."""
        return float(stdtr(self.degrees, -change / self.error))

    def lower(self, alpha: float) -> float:
        """Return the lower bound that holds but for the share ``alpha`` of comparisons."""
        return self.difference - self._reach(alpha)

    def upper(self, alpha: float) -> float:
        """Return the upper bound that holds but for the share ``alpha`` of comparisons."""
        return self.difference + self._reach(alpha)

    def _reach(self, alpha: float) -> float:
        return self.error * float(stdtrit(self.degrees, 1 - alpha))


def estimate(
    baseline: Samples,
    new: Samples,
    prior: Prior,
    least_variance: float,
    excess: float = 0.0,
    *,
    pooled: bool = True,
    as_one: bool = False,
) -> Estimate | None:
    """Return the difference of the means of blocks, or None when nothing is known of how much blocks vary.

    The variance of both sides together, or of the baseline alone where they are not ``pooled``, is shrunk to that of
    the prior. ``least_variance`` keeps a coarse clock, whose blocks are all alike, from making a difference certain.
    ``excess`` is by how much the variance of one new block is larger than that of a baseline block because it holds
    fewer samples. ``as_one``: all new blocks may have something in common that others have not, and tell no more than
    a single one.
    """
    sides = [baseline, new] if pooled else [baseline]
    degrees = prior.degrees + sum(len(side) - 1 for side in sides)
    if not len(baseline) or not len(new) or degrees <= 0:
        return None
    squares = sum(float(((side - side.mean()) ** 2).sum()) for side in sides)
    variance = max((prior.degrees * prior.variance + squares) / degrees, least_variance)
    error = math.sqrt(variance * share_of_variance(len(baseline), 1 if as_one else len(new)) + excess / len(new))
    return Estimate(float(new.mean() - baseline.mean()), error, degrees)


def share_of_variance(baseline: int, new: int) -> float:
    """Return by how much the difference of means of so many blocks varies, as a share of how much one block does."""
    return 1 / baseline + 1 / new


def estimate_mean(blocks: Samples, prior: Prior, least_variance: float) -> Estimate | None:
    """Return the mean of ``blocks`` set against 0, or None when nothing is known of how much they vary."""
    degrees = prior.degrees + len(blocks) - 1
    if not len(blocks) or degrees <= 0:
        return None
    squares = float(((blocks - blocks.mean()) ** 2).sum())
    variance = max((prior.degrees * prior.variance + squares) / degrees, least_variance)
    return Estimate(float(blocks.mean()), math.sqrt(variance / len(blocks)), degrees)


def variance_of(blocks: Samples) -> float:
    """Return the variance between ``blocks``, 0 for a single one."""
    return float(np.var(blocks, ddof=1)) if len(blocks) > 1 else 0.0
