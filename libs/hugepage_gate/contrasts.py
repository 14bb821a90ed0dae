"""Configurations set against each other inside a session: the advantage, and the four cells of a 2x2.

Both sides of a contrast come from the same session, so what the session does to both cancels out. That needs an order
in which a drift hits both alike: ABBA, or AB and BA by turns; AABB calls the drift an advantage. What shares a session,
or a machine, is no independent witness, and counts as one.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from hugepage_gate.block_summary import BlockSummary, SummarySeries
from hugepage_gate.samples import Samples

#: so many machines in a baseline tell how much machines differ
FEWEST_HOSTS = 3


class Unit(StrEnum):
    """What is one replicate."""

    SESSION = "session"
    HOST = "host"


def replicate_keys(blocks: Sequence[BlockSummary], unit: Unit) -> list[object]:
    """Return for each block what its replicate is called; a block without a session is its own replicate."""
    if unit is Unit.HOST:
        return [block.host for block in blocks]
    return [(block.host, block.session) if block.session is not None else i for i, block in enumerate(blocks)]


def means(values: Samples, keys: Sequence[object]) -> Samples:
    """Return the mean of ``values`` in each replicate, in the order in which replicates first occur."""
    return np.array([sum(group) / len(group) for group in _groups(values, keys)], dtype=np.float64)


def shown_by_most(values: Samples, keys: Sequence[object]) -> tuple[Samples, Samples]:
    """Return what more than half of the ``values`` of each replicate are at least, and at most."""
    groups = [sorted(group) for group in _groups(values, keys)]
    least = [group[(len(group) - 1) // 2] for group in groups]
    most = [group[len(group) // 2] for group in groups]
    return np.array(least, dtype=np.float64), np.array(most, dtype=np.float64)


def _groups(values: Samples, keys: Sequence[object]) -> Collection[list[float]]:
    groups: dict[object, list[float]] = {}
    for value, key in zip(values.tolist(), keys, strict=True):
        groups.setdefault(key, []).append(value)
    return groups.values()


_FACTORS = 2


@dataclass(frozen=True)
class Contrast:
    """A sum of configurations with weights, such as shp - thp. ``name`` is for people: "shp over thp"."""

    name: str
    estimand: str
    weights: Mapping[str, float]


def find_contrasts(configurations: Sequence[str], reference: str | None) -> list[Contrast]:
    """Return the contrasts between ``configurations``: each against ``reference``, or the effects of a 2x2.

    Configurations of a 2x2 are called ``host=4k,guest=huge``; the levels of ``reference`` are the usual ones.
    """
    if reference is None or reference not in configurations:
        return []
    factorial = _two_by_two(configurations, reference)
    if factorial:
        return factorial
    return [
        Contrast(f"{other} over {reference}", "advantage", {other: 1.0, reference: -1.0})
        for other in configurations
        if other != reference
    ]


def _two_by_two(configurations: Sequence[str], reference: str) -> list[Contrast]:
    cells = {name: _levels(name) for name in configurations}
    usual = cells[reference]
    if len(usual) != _FACTORS or any(levels.keys() != usual.keys() for levels in cells.values()):
        return []
    one, other = sorted(usual)
    # for each cell: whether the first and the second factor differ from the usual
    changed = {name: (levels[one] != usual[one], levels[other] != usual[other]) for name, levels in cells.items()}
    if sorted(changed.values()) != [(False, False), (False, True), (True, False), (True, True)]:
        return []
    return [
        Contrast(one, "main effect", {name: 0.5 if first else -0.5 for name, (first, _) in changed.items()}),
        Contrast(other, "main effect", {name: 0.5 if second else -0.5 for name, (_, second) in changed.items()}),
        Contrast(
            f"{one} x {other}",
            "interaction",
            {name: 1.0 if first == second else -1.0 for name, (first, second) in changed.items()},
        ),
    ]


def _levels(configuration: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in configuration.split(",")]
    return {factor.strip(): level.strip() for factor, equals, level in pairs if equals}


def contrast_values(contrast: Contrast, series: Mapping[str, SummarySeries], unit: Unit) -> Samples:
    """Return the contrast in each replicate that has all its configurations, as logarithms, + is worse."""
    sums = {name: _locations(series[name], unit) for name in contrast.weights}
    complete = [key for key in next(iter(sums.values())) if all(key in one for one in sums.values())]
    return np.array(
        [
            sum(weight * float(np.mean(sums[name][key])) for name, weight in contrast.weights.items())
            for key in complete
        ],
        dtype=np.float64,
    )


def is_balanced(contrast: Contrast, series: Mapping[str, SummarySeries]) -> bool:
    """Return whether a drift hits both sides of the contrast alike: their mean places agree, over all sessions."""
    leads: dict[object, float] = defaultdict(float)
    for name, weight in contrast.weights.items():
        places = defaultdict(list)
        for block in series[name].blocks:
            places[_session(block)].append(block.order)
        for session, orders in places.items():
            leads[session] += weight * sum(orders) / len(orders)
    if not leads:
        return False
    cells = len(contrast.weights)
    return max(map(abs, leads.values())) <= cells / 2 and abs(sum(leads.values())) <= cells / 2


def _locations(series: SummarySeries, unit: Unit) -> dict[object, list[float]]:
    found: dict[object, list[float]] = defaultdict(list)
    keys = replicate_keys(series.blocks, unit) if unit is Unit.HOST else map(_session, series.blocks)
    for block, key in zip(series.blocks, keys, strict=True):
        found[key].append(series.worse * float(np.log(block.location)))
    return found


def _session(block: BlockSummary) -> object:
    """Return what the blocks of one session have in common; without a name, their start."""
    return (block.host, block.session) if block.session is not None else (block.host, block.started)
