"""Where a run becomes steady, and whether it does.

Programs warm up, and some never settle. Change points are found by binary segmentation: the split of a stretch whose
two sides differ most, as long as they differ by more than the noise explains and by more than the margin. The noise
counts with its autocorrelation; a slowly wandering run would else fall into pieces.
"""

import math
from dataclasses import dataclass

import numpy as np

from hugepage_qa.gate.location import effective_size
from hugepage_qa.gate.samples import Samples

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


@dataclass(frozen=True)
class SteadyState:
    """``start`` is the first sample after the warm-up; ``is_steady`` is False for a run that does not settle."""

    start: int = 0
    is_steady: bool = True


def find_steady_state(samples: Samples, margin: float) -> SteadyState:
    """Return where ``samples``, without outliers, become steady; less than ``margin`` (a share) is no difference."""
    count = len(samples)
    if count < FEWEST_SAMPLES:
        return SteadyState()
    changes = find_changes(samples, margin)
    starts = [0, *(change for change in changes if change <= LONGEST_WARM_UP * count)]
    for start in starts:
        end = next((change for change in changes if change > start), count)
        if end - start >= SHORTEST_STEADY * count:
            return SteadyState(start)
    return SteadyState(is_steady=False)


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
