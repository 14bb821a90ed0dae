"""When the blocks of a metric changed over time. Never a verdict: on quiet series change points are often noise.

They come from apache-otava where it is installed (extra ``history``).
"""

import importlib
import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hugepage_qa.errors import InputError

#: with these, 2 to 6 % of quiet series show a change; with the defaults of Otava 14 to 39 %
MAX_P = 0.001
SMALLEST_CHANGE = 0.01
_WINDOW = 50


@dataclass(frozen=True)
class ChangePoint:
    """The level of a series changes at block number ``place`` (from 0), by ``change`` (a share)."""

    place: int
    change: float
    p: float


def is_available() -> bool:
    """Return whether change points can be found here."""
    return importlib.util.find_spec("otava") is not None


def find_change_points(locations: Sequence[float]) -> list[ChangePoint]:
    """Return where ``locations``, a number per block in time, change. Raises InputError without apache-otava."""
    try:
        analysis: Any = importlib.import_module("otava.analysis")
    except ModuleNotFoundError as error:
        raise InputError("change points need apache-otava: install hugepage-qa[history]") from error
    # a change needs two, and a count of nothing has no logarithm
    if len(locations) < 2 or min(locations) <= 0:  # noqa: PLR2004
        return []
    found, _ = analysis.compute_change_points(
        list(map(math.log, locations)),
        window_len=_WINDOW,
        max_pvalue=MAX_P,
        min_magnitude=0.0,
    )
    points = [
        ChangePoint(int(one.index), math.expm1(float(one.stats.mean_2 - one.stats.mean_1)), float(one.stats.pvalue))
        for one in found
    ]
    return [point for point in points if abs(point.change) >= SMALLEST_CHANGE]
