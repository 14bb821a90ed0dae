"""Changes made on purpose to the samples of a block, to see whether a rule finds them."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from hugepage_qa.gate.samples import Block, Direction, Samples, Series

#: share of the samples that a tail or a second mode gets
_TAIL_SHARE = 0.03
_MODE_SHARE = 0.3

Change = Callable[[Samples, float, np.random.Generator], Samples]


@dataclass(frozen=True)
class Injection:
    """``change`` makes the samples of a block slower by ``size`` (a share), in its own way."""

    name: str
    size: float
    change: Change

    def apply(self, series: Series, random: np.random.Generator) -> Series:
        """Return ``series`` with all blocks changed for the worse."""
        return replace(series, blocks=tuple(self._block(block, series.direction, random) for block in series.blocks))

    def _block(self, block: Block, direction: Direction, random: np.random.Generator) -> Block:
        factor = self.change(np.ones(len(block.samples)), self.size, random)
        return replace(
            block, samples=block.samples / factor if direction is Direction.HIGHER else block.samples * factor
        )


def shift(samples: Samples, size: float, _random: np.random.Generator) -> Samples:
    """All samples are slower."""
    return samples * (1 + size)


def tail(samples: Samples, size: float, random: np.random.Generator) -> Samples:
    """Three of a hundred samples are slower."""
    return np.where(random.random(len(samples)) < _TAIL_SHARE, samples * (1 + size), samples)


def bimodal(samples: Samples, size: float, random: np.random.Generator) -> Samples:
    """Three of ten samples are slower: a second mode."""
    return np.where(random.random(len(samples)) < _MODE_SHARE, samples * (1 + size), samples)


def injections(margin: float) -> tuple[Injection, ...]:
    """Return what is injected: shifts around and at ``margin`` (a share), a tail, a second mode."""
    shifts = {f"+{share:.0%}": share for share in (0.01, 0.02, 0.05)}
    return (
        *(Injection(name, size, shift) for name, size in shifts.items()),
        Injection("margin", margin, shift),
        Injection("tail", 0.5, tail),
        Injection("bimodal", 0.1, bimodal),
    )
