"""How far new blocks lie from those of the baseline, with the uncertainty of that."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

from hugepage_qa.gate.prior import Prior
from hugepage_qa.gate.samples import Samples


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

    def lower(self, alpha: float) -> float:
        """Return the lower bound that holds but for the share ``alpha`` of comparisons."""
        return self.difference - self._reach(alpha)

    def upper(self, alpha: float) -> float:
        """Return the upper bound that holds but for the share ``alpha`` of comparisons."""
        return self.difference + self._reach(alpha)

    def _reach(self, alpha: float) -> float:
        return self.error * float(stdtrit(self.degrees, 1 - alpha))


def estimate(
    baseline: Samples, new: Samples, prior: Prior, least_variance: float, excess: float = 0.0
) -> Estimate | None:
    """Return the difference of the means of blocks, or None when nothing is known of how much blocks vary.

    The variance of both sides together is shrunk to that of the prior. ``least_variance`` keeps a coarse clock, whose
    blocks are all alike, from making a difference certain. ``excess`` is by how much the variance of one new block is
    larger than that of a baseline block because it holds fewer samples.
    """
    degrees = prior.degrees + len(baseline) + len(new) - 2
    if not len(baseline) or not len(new) or degrees <= 0:
        return None
    squares = float(((baseline - baseline.mean()) ** 2).sum() + ((new - new.mean()) ** 2).sum())
    variance = max((prior.degrees * prior.variance + squares) / degrees, least_variance)
    error = math.sqrt(variance * (1 / len(baseline) + 1 / len(new)) + excess / len(new))
    return Estimate(float(new.mean() - baseline.mean()), error, degrees)


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
