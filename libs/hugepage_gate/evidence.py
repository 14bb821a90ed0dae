"""What is compared of each metric: its level, its slow runs, contrasts of configurations, as numbers per block.

The level is that of the usual run. Runs that are slow now and then, as when some do not get their huge pages, leave it
alone, but not the mean of all runs: that is the second number, which can only alarm. The sentinel is a fixed program
without huge pages, run before and after each block. If it is slower or faster than it ever was, something else used the
machine, and the session decides nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtrit

from hugepage_gate.block_summary import BlockSummary, SummarySeries
from hugepage_gate.contrasts import Contrast, Unit, contrast_values, means, replicate_keys, shown_by_most
from hugepage_gate.looks import Evidence
from hugepage_gate.moderated_t import NO_PRIOR, Prior, fit_prior, variance_of
from hugepage_gate.samples import Kind, Samples

#: fewer sentinels do not tell how much it varies
FEWEST_TO_JUDGE = 5

_OUTSIDE = 0.01
#: the smallest standard deviation of a sentinel that is believed, as a share
_LEAST_DEVIATION = 1e-4


def disturbed_blocks(baseline: Sequence[BlockSummary], new: Sequence[BlockSummary]) -> list[BlockSummary]:
    """Return the blocks of ``new`` whose sentinel leaves its 99 % prediction interval (for all of them together)."""
    known = np.array([one for block in baseline for one in _sentinel_logs(block)])
    judged = [(block, one) for block in new for one in _sentinel_logs(block)]
    if sum(bool(_sentinel_logs(one)) for one in baseline) < FEWEST_TO_JUDGE or not judged:
        return []
    deviation = max(float(known.std(ddof=1)), _LEAST_DEVIATION) * math.sqrt(1 + 1 / len(known))
    reach = float(stdtrit(len(known) - 1, 1 - _OUTSIDE / 2 / len(judged))) * deviation
    outside = [block for block, one in judged if abs(one - known.mean()) > reach]
    return [block for block in new if any(block is one for one in outside)]


def _sentinel_logs(block: BlockSummary) -> list[float]:
    return [math.log(one) for one in (block.sentinel, block.sentinel_after) if one is not None]


#: variance of the mean of the middle half of normal samples over that of their mean
_LOCATION_VARIANCE = 1.19
#: fewer samples do not tell how much they vary
_FEWEST_FOR_SPREAD = 5


@dataclass(frozen=True)
class Family:
    """What the baselines of one suite on one machine tell together: the priors of levels and of means."""

    level: Prior = NO_PRIOR
    mean: Prior = NO_PRIOR


def learn_family(baselines: Sequence[SummarySeries]) -> Family:
    """Return the priors of ``baselines``, the only place that they are learnt from."""
    measured = [one for one in baselines if one.kind is Kind.MEASURED]
    levels = [_of_replicates(one, [block.location for block in one.blocks]) for one in measured]
    return Family(_fit(levels), _fit([_of_replicates(one, [block.mean for block in one.blocks]) for one in measured]))


def level_evidence(baseline: SummarySeries, new: SummarySeries, unit: Unit, margin: float, prior: Prior) -> Evidence:
    """Return the evidence on the level: locations as logarithms."""
    values = [_logs(one, [block.location for block in one.blocks]) for one in (baseline, new)]
    keys = [replicate_keys(one.blocks, unit) for one in (baseline, new)]
    excess = means(_extra_variance(baseline.blocks, new.blocks), keys[1])
    return _of_sides(values, keys, margin, prior, excess)


def slow_evidence(baseline: SummarySeries, new: SummarySeries, unit: Unit, margin: float, prior: Prior) -> Evidence:
    """Return the evidence on slow runs: means of all runs as logarithms. It only alarms."""
    values = [_logs(one, [block.mean for block in one.blocks]) for one in (baseline, new)]
    keys = [replicate_keys(one.blocks, unit) for one in (baseline, new)]
    return replace(_of_sides(values, keys, margin, prior), alarm_only=True)


def of_unknown_hosts(level: Evidence, slow: Evidence) -> tuple[Evidence, Evidence]:
    """Return the evidence on a metric where nobody recorded of which machines blocks are.

    Where blocks of the usual metric differ by more than would be reported, machines may be why, and all new blocks may
    be of one that most of the baseline is not of: they count as one.
    """
    as_one = level.prior.degrees > 0 and level.prior.variance > level.floor**2
    return replace(level, as_one=as_one), replace(slow, as_one=as_one)


def count_evidence(baseline: SummarySeries, new: SummarySeries, unit: Unit, margin: float) -> Evidence:
    """Return the evidence on a count that varies from block to block: logarithms of one more, as it may be 0."""
    values = [one.worse * np.log1p([block.location for block in one.blocks]) for one in (baseline, new)]
    keys = [replicate_keys(one.blocks, unit) for one in (baseline, new)]
    return _of_sides(values, keys, margin, NO_PRIOR)


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
    variance = relative**2 * _LOCATION_VARIANCE
    usual = float(np.mean([1 / block.effective for block in baseline]))
    return np.array([variance * max(0.0, 1 / block.effective - usual) for block in new])
