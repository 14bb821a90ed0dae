"""What of a block is compared and kept in a baseline: a few numbers for thousands of samples.

The location is one robust number, told with how many independent samples the block really holds. Programs warm up, and
some never settle: change points are found by binary segmentation, the split of a stretch whose two sides differ most,
as long as they differ by more than the noise explains and by more than the margin. The noise counts with its
autocorrelation; a slowly wandering run would else fall into pieces.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np

from hugepage_gate.sample_format import digest
from hugepage_gate.samples import Block, Direction, Kind, Samples, SampleSet, Scalar, Series, SeriesIdentity, host_of
from hugepage_qa.errors import InputError

#: fewer samples do not tell how they hang together
FEWEST_FOR_CORRELATION = 15

#: standard deviation of a normal distribution over its median absolute deviation
MAD_TO_SIGMA = 1.4826

#: a sample that far from the median, in standard deviations by MAD, is an outlier
OUTLIER_SIGMAS = 10


def location(samples: Samples) -> float:
    """Return the mean of the middle half of ``samples`` (of three the median), in their unit.

    Outliers do not move it, and of few samples it wastes less than a median. 0 when too many of them are 0.
    """
    cut = (len(samples) + 1) // 4
    return float(np.sort(samples)[cut : len(samples) - cut].mean())


def middle_and_spread(samples: Samples) -> tuple[float, float]:
    """Return the median of ``samples`` and their standard deviation around it, by MAD: outliers count for neither."""
    middle = float(np.median(samples))
    return middle, MAD_TO_SIGMA * float(np.median(np.abs(samples - middle)))


def clip_outliers(samples: Samples) -> Samples:
    """Return ``samples`` clipped to 10 sigma: one interruption must not hide how all others hang together."""
    middle, sigma = middle_and_spread(samples)
    return np.clip(samples, middle - OUTLIER_SIGMAS * sigma, middle + OUTLIER_SIGMAS * sigma) if sigma > 0 else samples


def effective_size(samples: Samples) -> float:
    """Return how many independent samples tell as much about the mean as these, which come one after another.

    n over the integrated autocorrelation time, summed over pairs of lags as long as a pair is positive and no larger
    than the one before (Geyer 1992, initial monotone sequence). Between 1 and n. Outliers hide how the others hang
    together: clip them first.
    """
    count = len(samples)
    if count < FEWEST_FOR_CORRELATION or (samples == samples[0]).all():
        return float(count)
    correlation = _autocorrelation(samples)
    pairs = correlation[: count // 2 * 2].reshape(-1, 2).sum(axis=1)
    negative = np.flatnonzero(pairs <= 0)
    kept = np.minimum.accumulate(pairs[: negative[0]] if len(negative) else pairs)
    return float(np.clip(count / max(2 * kept.sum() - 1, 1.0), 1, count))


def _autocorrelation(samples: Samples) -> Samples:
    count = len(samples)
    centred = samples - samples.mean()
    # a power of two is fast, and at least twice as long, so that no end meets a beginning
    size = 1 << (2 * count - 1).bit_length()
    spectrum = np.fft.rfft(centred, size)
    covariance = np.fft.irfft(spectrum * np.conj(spectrum), size)[:count]
    return np.asarray(covariance / covariance[0], dtype=np.float64)


#: fewer samples do not show whether a run is steady
FEWEST_SAMPLES = 30
#: share of a run that may be dropped as warm-up
LONGEST_WARM_UP = 0.3
#: share of a run that has to be steady
SHORTEST_STEADY = 0.5

_SHORTEST_SEGMENT = 0.05
_MOST_SPLITS = 8
#: how far beyond the largest split of pure noise, about sqrt(2 log n) deviations, a split has to be
_SAFETY = 2.0


def find_steady_state(samples: Samples, margin: float) -> int | None:
    """Return the first of ``samples``, which are without outliers, after the warm-up; None where they never settle.

    Less than ``margin`` (a share) is no difference.
    """
    count = len(samples)
    if count < FEWEST_SAMPLES:
        return 0
    changes = find_changes(samples, margin)
    starts = [0, *(change for change in changes if change <= LONGEST_WARM_UP * count)]
    for start in starts:
        end = next((change for change in changes if change > start), count)
        if end - start >= SHORTEST_STEADY * count:
            return start
    return None


def find_changes(samples: Samples, margin: float) -> list[int]:
    """Return the places, in order, at which the level of ``samples`` changes by more than ``margin`` (a share)."""
    least = margin * float(np.median(samples))
    changes: list[int] = []
    stretches = [(0, len(samples))]
    while stretches and len(changes) < _MOST_SPLITS:
        start, end = stretches.pop(0)
        split = _split(samples[start:end], least)
        if split is not None:
            changes.append(start + split)
            stretches += [(start, start + split), (start + split, end)]
    return sorted(changes)


def _split(stretch: Samples, least: float) -> int | None:
    """Return where the two sides of ``stretch`` differ most, or None where that is noise or less than ``least``."""
    count = len(stretch)
    split = _best_split(stretch)
    if split is None or abs(float(np.median(stretch[:split]) - np.median(stretch[split:]))) <= least:
        return None
    contrast = abs(float(stretch[:split].mean() - stretch[split:].mean())) * math.sqrt(split * (count - split) / count)
    threshold = (math.sqrt(2 * math.log(count)) + _SAFETY) * _noise(stretch, split)
    return split if contrast > threshold else None


def _best_split(stretch: Samples) -> int | None:
    count = len(stretch)
    shortest = max(FEWEST_SAMPLES // 3, int(_SHORTEST_SEGMENT * count))
    if count < 2 * shortest:
        return None
    left = np.arange(shortest, count - shortest + 1)
    sums = np.cumsum(stretch)
    difference = sums[left - 1] / left - (sums[-1] - sums[left - 1]) / (count - left)
    return int(left[np.argmax(np.abs(difference) * np.sqrt(left * (count - left) / count))])


def _noise(stretch: Samples, split: int) -> float:
    """Return the standard deviation of independent samples that are as noisy as ``stretch``.

    Each side may hold a further change, which is none of the noise: it is split once more.
    """
    parts = []
    for side in (stretch[:split], stretch[split:]):
        further = _best_split(side)
        parts += [side] if further is None else [side[:further], side[further:]]
    residuals = np.concatenate([part - part.mean() for part in parts])
    return float(residuals.std()) * math.sqrt(len(stretch) / effective_size(residuals))


@dataclass(frozen=True)
class BlockSummary:
    """A block in numbers, in the unit of the metric.

    ``location`` is that of the usual run, ``mean`` that of all, slow ones included. ``samples`` counts those after the
    warm-up, of which the first was number ``steady_from``; ``effective`` is how many of them are independent.
    """

    order: int
    started: datetime | None
    session: str | None
    boot: str | None
    host: str | None
    sentinel: float | None
    samples: int
    effective: float
    location: float
    mean: float
    spread: float
    steady_from: int
    is_steady: bool
    sha256: str
    subject: Mapping[str, Scalar] = field(default_factory=dict)
    sentinel_after: float | None = None


@dataclass(frozen=True)
class SummarySeries(SeriesIdentity):
    """The blocks of one metric in one configuration, in numbers."""

    blocks: tuple[BlockSummary, ...]

    @property
    def worse(self) -> int:
        """+1 where larger is worse, -1 where smaller is."""
        return -1 if self.direction is Direction.HIGHER else 1


def summarise_set(samples: SampleSet, margins: Mapping[str, float]) -> dict[tuple[str, str], SummarySeries]:
    """Return all series of ``samples`` in numbers; ``margins`` holds the margin of each metric as a share."""
    host = host_of(samples.environment)
    return {one.key: summarise(one, margins[one.metric], samples.subject, host) for one in samples}


def summarise(series: Series, margin: float, subject: Mapping[str, Scalar], host: str | None) -> SummarySeries:
    """Return ``series`` in numbers, without the blocks that warmed up; blocks that name no host ran on ``host``.

    Raises InputError for a measured block whose location is 0: it has no ratio to any other.
    """
    blocks = tuple(
        _summarise_block(block, series.kind, margin, subject, host) for block in series.blocks if not block.warmup
    )
    if series.kind is Kind.MEASURED and any(block.location <= 0 for block in blocks):
        raise InputError(f"{series.name}: most samples of a block are 0; expected values above 0, or the kind count")
    identity = series.metric, series.unit, series.direction, series.kind, series.configuration
    return SummarySeries(*identity, blocks, same_as=series.same_as)


def _summarise_block(
    block: Block, kind: Kind, margin: float, subject: Mapping[str, Scalar], host: str | None
) -> BlockSummary:
    clipped = clip_outliers(block.samples)
    steady_from = find_steady_state(clipped, margin) if kind is Kind.MEASURED else 0
    start = steady_from or 0
    samples = block.samples[start:]
    middle, sigma = middle_and_spread(samples)
    return BlockSummary(
        order=block.order,
        started=block.started,
        session=block.session,
        boot=block.boot,
        host=block.host or host,
        sentinel=block.sentinel,
        samples=len(samples),
        effective=effective_size(clipped[start:]),
        location=middle if kind is Kind.COUNT else location(samples),
        mean=float(samples.mean()),
        spread=sigma,
        steady_from=start,
        is_steady=steady_from is not None,
        sha256=digest(block.samples),
        subject=subject,
        sentinel_after=block.sentinel_after,
    )
