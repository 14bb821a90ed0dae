"""What is compared of each metric: its level, contrasts of configurations, and its tail, as numbers per block.

The sentinel is a fixed program without huge pages, run before and after each block. If it is slower or faster than it
ever was, something else used the machine, and the session decides nothing. If over many sessions the metric follows it,
this much is drift of the machine and is subtracted.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from hugepage_gate.block_summary import ENOUGH_FOR_MEDIAN, BlockSummary, SummarySeries
from hugepage_gate.contrasts import Contrast, Unit, contrast_values, means, replicate_keys, shown_by_most
from hugepage_gate.looks import Evidence
from hugepage_gate.moderated_t import NO_PRIOR, Prior, fit_prior, variance_of
from hugepage_gate.samples import Kind, Samples

#: fewer sentinels do not tell how much it varies
FEWEST_TO_JUDGE = 5
#: fewer sessions do not tell whether a metric follows it
FEWEST_TO_CORRECT = 8

_OUTSIDE = 0.01
#: the smallest standard deviation of a sentinel that is believed, as a share
_LEAST_DEVIATION = 1e-4


def disturbed_blocks(baseline: Sequence[BlockSummary], new: Sequence[BlockSummary]) -> list[BlockSummary]:
    """Return the blocks of ``new`` whose sentinel leaves its 99 % prediction interval (for all of them together)."""
    known = np.array([one for block in baseline for one in _sentinel_logs(block)])
    judged = [(block, one) for block in new for one in _sentinel_logs(block)]
    if len(_means(baseline)) < FEWEST_TO_JUDGE or not judged:
        return []
    deviation = max(float(known.std(ddof=1)), _LEAST_DEVIATION) * math.sqrt(1 + 1 / len(known))
    reach = float(stdtrit(len(known) - 1, 1 - _OUTSIDE / 2 / len(judged))) * deviation
    outside = [block for block, one in judged if abs(one - known.mean()) > reach]
    return [block for block in new if any(block is one for one in outside)]


def subtract_drift(
    baseline: Sequence[BlockSummary], new: Sequence[BlockSummary], values: tuple[Samples, Samples]
) -> tuple[Samples, Samples]:
    """Return ``values`` (baseline, new; logarithms, one per block) without what follows the sentinel.

    The slope is learnt from the baseline, never negative, and shrunk by how uncertain it is: a plain ratio to the
    sentinel adds its noise, and on a quiet machine made the deviation half as large again.
    """
    sentinels, new_sentinels = _means(baseline), _means(new)
    sessions = len(set(replicate_keys(baseline, Unit.SESSION)))
    if sessions < FEWEST_TO_CORRECT or len(sentinels) < len(baseline) or len(new_sentinels) < len(new):
        return values
    beta = _slope(sentinels - sentinels.mean(), values[0] - values[0].mean())
    return values[0] - beta * (sentinels - sentinels.mean()), values[1] - beta * (new_sentinels - sentinels.mean())


def _slope(x: Samples, y: Samples) -> float:
    squares = float((x**2).sum())
    if squares == 0:
        return 0.0
    slope = float((x * y).sum()) / squares
    variance = float(((y - slope * x) ** 2).sum()) / (len(x) - 2) / squares
    return max(0.0, slope) * max(0.0, 1 - variance / slope**2) if slope else 0.0


def _means(blocks: Sequence[BlockSummary]) -> Samples:
    """Return one logarithm for each block that has a sentinel."""
    found = filter(None, map(_sentinel_logs, blocks))
    return np.array([sum(one) / len(one) for one in found], dtype=np.float64)


def _sentinel_logs(block: BlockSummary) -> list[float]:
    return [math.log(one) for one in (block.sentinel, block.sentinel_after) if one is not None]


#: largest growth of the share of outliers that does not matter: 5 in 1000 samples
OUTLIER_MARGIN = 0.005

#: variance of the median of normal samples over that of their mean; Hodges-Lehmann needs 3 / pi of it
_MEDIAN_VARIANCE = math.pi / 2
_HODGES_LEHMANN_VARIANCE = math.pi / 3
#: fewer samples do not tell how much they vary
_FEWEST_FOR_SPREAD = 5


@dataclass(frozen=True)
class Family:
    """What the baselines of one suite on one machine tell together: the priors of levels and tails."""

    level: Prior = NO_PRIOR
    tail: Prior = NO_PRIOR


def learn_family(baselines: Sequence[SummarySeries]) -> Family:
    """Return the priors of ``baselines``, the only place that they are learnt from."""
    measured = [one for one in baselines if one.kind is Kind.MEASURED]
    levels = [_of_replicates(one, [block.location for block in one.blocks]) for one in measured]
    tails = [
        _of_replicates(one, [block.tail or 0.0 for block in one.blocks])
        for one in measured
        if one.blocks and all(block.tail for block in one.blocks)
    ]
    return Family(_fit(levels), _fit(tails))


def level_evidence(baseline: SummarySeries, new: SummarySeries, unit: Unit, margin: float, prior: Prior) -> Evidence:
    """Return the evidence on the level: locations as logarithms."""
    values = tuple(_logs(one, [block.location for block in one.blocks]) for one in (baseline, new))
    corrected = subtract_drift(baseline.blocks, new.blocks, (values[0], values[1]))
    keys = [replicate_keys(one.blocks, unit) for one in (baseline, new)]
    excess = means(_extra_variance(baseline.blocks, new.blocks), keys[1])
    return _of_sides(corrected, keys, margin, prior, excess)


def contrast_evidence(
    contrast: Contrast,
    baseline: Mapping[str, SummarySeries],
    new: Mapping[str, SummarySeries],
    unit: Unit,
    margin: float,
) -> Evidence:
    """Return the evidence on a contrast. It has no prior: sessions cancel out, and levels do not tell what is left."""
    values = contrast_values(contrast, baseline, unit), contrast_values(contrast, new, unit)
    return Evidence(values[0], values[1], math.log1p(margin))


def tail_evidence(
    baseline: SummarySeries, new: SummarySeries, unit: Unit, margin: float, prior: Prior
) -> Evidence | None:
    """Return the evidence on the 99th percentile, None where a block has too few samples for one."""
    sides = []
    for one in (baseline, new):
        tails = [block.tail for block in one.blocks if block.tail]
        if not tails or len(tails) < len(one.blocks):
            return None
        sides.append(_logs(one, tails))
    keys = [replicate_keys(one.blocks, unit) for one in (baseline, new)]
    return _of_sides(sides, keys, margin, prior)


def outlier_evidence(baseline: SummarySeries, new: SummarySeries, unit: Unit) -> Evidence | None:
    """Return the evidence on the share of outliers, None where a block has too few samples for one.

    Each block is as uncertain as the number of its outliers makes it, even where all baseline blocks have none.
    """
    sides = []
    for one in (baseline, new):
        rates = [block.outlier_rate for block in one.blocks if block.outlier_rate is not None]
        if not rates or len(rates) < len(one.blocks):
            return None
        sides.append(means(np.array(rates), replicate_keys(one.blocks, unit)))
    counts = [block.samples for one in (baseline, new) for block in one.blocks]
    outliers = sum(block.samples * (block.outlier_rate or 0) for one in (baseline, new) for block in one.blocks)
    rate = (outliers + 0.5) / (sum(counts) + 1)
    binomial = np.full(len(sides[1]), rate * (1 - rate) * float(np.mean(1 / np.array(counts))))
    return Evidence(sides[0], sides[1], OUTLIER_MARGIN, extra_variance=binomial)


def _of_sides(
    values: Sequence[Samples],
    keys: Sequence[Sequence[object]],
    margin: float,
    prior: Prior,
    extra_variance: Samples | None = None,
) -> Evidence:
    """Return the evidence of logarithms of the baseline and the new blocks, which are of the replicates ``keys``."""
    baseline, new = (means(*side) for side in zip(values, keys, strict=True))
    return Evidence(baseline, new, math.log1p(margin), prior, extra_variance, shown_by_most(values[1], keys[1]))


def _of_replicates(series: SummarySeries, values: Sequence[float]) -> Samples:
    return means(_logs(series, values), replicate_keys(series.blocks, Unit.SESSION))


def _fit(values: Sequence[Samples]) -> Prior:
    return fit_prior([variance_of(one) for one in values], [len(one) - 1 for one in values])


def _logs(series: SummarySeries, values: Sequence[float]) -> Samples:
    """Return logarithms with the sign that makes + worse."""
    numbers = np.array(values, dtype=np.float64)
    return series.worse * np.log(numbers)


def _extra_variance(baseline: Sequence[BlockSummary], new: Sequence[BlockSummary]) -> Samples:
    """Return by how much each new block is noisier than those of the baseline because it holds fewer samples.

    Both are judged by how much the samples of the baseline vary: that is not what is tested.
    """
    telling = [block for block in baseline if block.samples >= _FEWEST_FOR_SPREAD]
    if not telling:
        return np.zeros(len(new))
    relative = float(np.median([block.spread / block.location for block in telling]))
    usual = float(np.mean([_location_variance(block) for block in baseline]))
    return np.array([relative**2 * max(0.0, _location_variance(block) - usual) for block in new])


def _location_variance(block: BlockSummary) -> float:
    """Return the variance of the location of ``block`` where samples have the variance 1."""
    factor = _MEDIAN_VARIANCE if block.samples >= ENOUGH_FOR_MEDIAN else _HODGES_LEHMANN_VARIANCE
    return factor / block.effective
