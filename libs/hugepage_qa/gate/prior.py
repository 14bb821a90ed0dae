"""What the baselines of a family of metrics say about how much blocks vary, before a metric's own few blocks do.

Variances of metrics are taken as draws from a scaled inverse chi-squared distribution, d0 s0^2 / chi^2(d0), whose d0
and s0^2 are fitted by the moments of the log variances (Smyth 2004, function fitFDist of limma).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import digamma, polygamma

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
