"""Counts: page faults, page table kB, pages used. They are the same number each time, or within a floor; no t-test.

A count is worse when it leaves the range that the baseline has shown by more than the rule allows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hugepage_qa.gate.looks import Decision
from hugepage_qa.gate.samples import Direction
from hugepage_qa.gate.verdict import Verdict

_TO_CONFIRM = 2


@dataclass(frozen=True)
class CountRule:
    """By how much a count may leave the range of the baseline: a number, or a share of it if that is more."""

    absolute: float = 0.0
    relative: float = 0.0


@dataclass(frozen=True)
class CountRange:
    """What a count may be: between ``lowest`` and ``highest``, both included."""

    lowest: float
    highest: float


def allowed_range(baseline: Sequence[float], rule: CountRule) -> CountRange:
    """Return the range of ``baseline``, widened by ``rule``."""
    allowed = max(rule.absolute, rule.relative * max(map(abs, baseline)))
    return CountRange(min(baseline) - allowed, max(baseline) + allowed)


def decide_count(baseline: Sequence[float], new: Sequence[float], direction: Direction, rule: CountRule) -> Decision:
    """Return the decision on a count, with one number per block. Most blocks, and at least two, have to agree."""
    allowed = allowed_range(baseline, rule)
    above = sum(value > allowed.highest for value in new)
    below = sum(value < allowed.lowest for value in new)
    worse, better = {
        Direction.LOWER: (above, below),
        Direction.HIGHER: (below, above),
        Direction.EQUAL: (above + below, 0),
    }[direction]
    span = f"{max(0.0, allowed.lowest):g} to {allowed.highest:g}"
    if worse >= _TO_CONFIRM and worse > len(new) / 2:
        return Decision(Verdict.REGRESSED, f"{worse} of {len(new)} blocks are outside {span}")
    if worse:
        return Decision(
            Verdict.UNDECIDED, f"{worse} of {len(new)} blocks outside {span}: others have to confirm it", (), 1
        )
    if better >= _TO_CONFIRM and better > len(new) / 2:
        return Decision(Verdict.IMPROVED, f"{better} of {len(new)} blocks are better than {span}")
    return Decision(Verdict.PASS, f"no block is worse than {span}")
