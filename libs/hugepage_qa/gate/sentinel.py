"""The sentinel: a fixed program without huge pages, run before and after each block.

If it is slower or faster than it ever was, something else used the machine, and the session decides nothing. If over
many sessions the metric follows it, this much is drift of the machine and is subtracted.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

from hugepage_qa.gate.block_summary import BlockSummary
from hugepage_qa.gate.replicates import Unit, replicate_keys
from hugepage_qa.gate.samples import Samples

#: fewer sentinels do not tell how much it varies
FEWEST_TO_JUDGE = 5
#: fewer sessions do not tell whether a metric follows it
FEWEST_TO_CORRECT = 8

_OUTSIDE = 0.01
#: the smallest standard deviation of a sentinel that is believed, as a share
_LEAST_DEVIATION = 1e-4


def disturbed_blocks(baseline: Sequence[BlockSummary], new: Sequence[BlockSummary]) -> list[BlockSummary]:
    """Return the blocks of ``new`` whose sentinel leaves its 99 % prediction interval (for all of them together)."""
    known = np.array([one for block in baseline for one in _logs(block)])
    judged = [(block, one) for block in new for one in _logs(block)]
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
    found = filter(None, map(_logs, blocks))
    return np.array([sum(one) / len(one) for one in found], dtype=np.float64)


def _logs(block: BlockSummary) -> list[float]:
    return [math.log(one) for one in (block.sentinel, block.sentinel_after) if one is not None]
