"""How many blocks and runs show a change of a given size.

The model: a block varies by ``between`` around the level, a run by ``within`` around its block. Both are shares.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import chdtri, ndtri

from hugepage_gate.baseline_file import FEWEST_BLOCKS
from hugepage_gate.block_summary import SummarySeries

#: two-sided confidence and power of the smallest detectable change, and how many standard errors that is: 3.24
CONFIDENCE = 0.95
POWER = 0.9
_ERRORS = float(ndtri(1 - (1 - CONFIDENCE) / 2) + ndtri(POWER))

_MOST_BLOCKS = 10_000

#: how sure it is that the variance between blocks is no larger than what a pilot tells
_SURE = 0.8
#: what the samples explain of it is uncertain, too: so much is left in any case
_LEAST_SHARE = 0.1


@dataclass(frozen=True)
class Pilot:
    """How much blocks and runs vary, as shares, and what a block and a run cost (in any unit, such as seconds)."""

    between: float
    within: float
    block_cost: float = 0.0
    run_cost: float = 1.0


@dataclass(frozen=True)
class Layout:
    """``blocks`` with ``runs`` each, on either side; ``change`` is the smallest that they show, as a share."""

    blocks: int
    runs: int
    change: float
    cost: float


def smallest_change(pilot: Pilot, blocks: int, runs: int) -> float:
    """Return the smallest change, as a share, that ``blocks`` of ``runs`` on either side show."""
    return _ERRORS * math.sqrt(2 * (pilot.between**2 / blocks + pilot.within**2 / (blocks * runs)))


def runs_per_block(pilot: Pilot) -> int:
    """Return how many runs of a block are worth their cost (Kalibera and Jones 2013): more show hardly more."""
    if pilot.between <= 0:
        return _MOST_BLOCKS
    return max(
        1, math.ceil(math.sqrt(max(pilot.block_cost, pilot.run_cost) / pilot.run_cost) * pilot.within / pilot.between)
    )


def useful_runs(pilot: Pilot) -> int:
    """Return from how many runs on another run is worth less than another block, whatever that costs."""
    return max(1, math.ceil((pilot.within / pilot.between) ** 2)) if pilot.between > 0 else _MOST_BLOCKS


def plan_layout(pilot: Pilot, change: float, runs: int | None = None) -> Layout | None:
    """Return the layout that shows ``change``; None where 10,000 blocks do not."""
    runs = runs or runs_per_block(pilot)
    one = smallest_change(pilot, 1, runs)
    blocks = max(FEWEST_BLOCKS, math.ceil((one / change) ** 2))
    if blocks > _MOST_BLOCKS:
        return None
    cost = blocks * (pilot.block_cost + runs * pilot.run_cost)
    return Layout(blocks, runs, smallest_change(pilot, blocks, runs), cost)


def pilot_from(series: SummarySeries, block_cost: float = 0.0, run_cost: float = 1.0) -> Pilot:
    """Return what the blocks of ``series`` tell: the variance between them less what their own samples explain.

    Of few blocks the variance is as uncertain as a factor of three: what is told is as large as it may well be.
    """
    logs = np.log([block.location for block in series.blocks])
    relative = np.array([block.spread / block.location for block in series.blocks])
    within = float(np.sqrt(np.mean(relative**2)))
    explained = float(
        np.mean([share**2 / block.effective for share, block in zip(relative, series.blocks, strict=True)])
    )
    degrees = len(logs) - 1
    upper = float(logs.var(ddof=1)) * degrees / float(chdtri(degrees, _SURE))
    return Pilot(math.sqrt(max(upper - explained, _LEAST_SHARE * upper)), within, block_cost, run_cost)
