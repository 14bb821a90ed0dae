"""The table of the study that set THP against 1 GiB static huge pages: what everybody knows how to read.

Its margin of error takes samples for independent. How many of them are is told beside it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from hugepage_gate.block_summary import clip_outliers, effective_size
from hugepage_gate.samples import Samples

CONFIDENCE = 0.9999

_BINS = 40
_FAR, _VERY_FAR = 3, 6


@dataclass(frozen=True)
class ClassicTable:
    """One column of the table; all in the unit of the samples but counts.

    ``honest_margin`` is the margin of error with the effective number of samples. ``histogram`` is of ``edges``, one
    more than counts; the first and last bin hold what lies beyond 6 standard deviations.
    """

    mean: float
    samples: int
    effective: float
    deviation: float
    lowest: float
    highest: float
    margin: float
    honest_margin: float
    beyond_3_sigma: int
    beyond_6_sigma: int
    edges: tuple[float, ...]
    histogram: tuple[int, ...]


def classic_table(blocks: Sequence[Samples]) -> ClassicTable:
    """Return the table of the samples of all ``blocks``."""
    samples = np.concatenate(blocks)
    count = len(samples)
    mean = float(samples.mean())
    deviation = float(samples.std(ddof=1)) if count > 1 else 0.0
    effective = sum(effective_size(clip_outliers(block)) for block in blocks)
    reach = float(ndtri(1 - (1 - CONFIDENCE) / 2)) * deviation
    far = np.abs(samples - mean)
    edges, histogram = _histogram(samples, mean, deviation)
    return ClassicTable(
        mean=mean,
        samples=count,
        effective=effective,
        deviation=deviation,
        lowest=float(samples.min()),
        highest=float(samples.max()),
        margin=reach / math.sqrt(count),
        honest_margin=reach / math.sqrt(effective),
        beyond_3_sigma=int((far >= _FAR * deviation).sum()) if deviation else 0,
        beyond_6_sigma=int((far >= _VERY_FAR * deviation).sum()) if deviation else 0,
        edges=edges,
        histogram=histogram,
    )


def _histogram(samples: Samples, mean: float, deviation: float) -> tuple[tuple[float, ...], tuple[int, ...]]:
    lowest = max(float(samples.min()), mean - _VERY_FAR * deviation)
    highest = min(float(samples.max()), mean + _VERY_FAR * deviation)
    if lowest >= highest:
        return (lowest, lowest), (len(samples),)
    counts, edges = np.histogram(np.clip(samples, lowest, highest), bins=_BINS, range=(lowest, highest))
    return tuple(map(float, edges)), tuple(map(int, counts))
