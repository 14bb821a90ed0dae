"""Which blocks count as one: what shares a session, or a machine, is no independent witness."""

from collections.abc import Collection, Sequence
from enum import StrEnum

import numpy as np

from hugepage_qa.gate.block_summary import BlockSummary
from hugepage_qa.gate.samples import Samples

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
