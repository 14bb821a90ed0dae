"""The decision on metrics: a planned look after each of the first five new blocks.

Each look takes all blocks up to it, and has its own part of the allowed error, such that whoever looks after every
block and stops at the first verdict errs no more often than is allowed. The latest look that there are blocks for
decides: a file that holds several at once is judged by all that it shows. Blocks after the last are not looked at: a
look that nobody planned is an error that nobody allowed for.

Per look, with d the difference to the baseline (+ is worse) and its bounds at the look's part of the error:

* pass: the upper bound is below the margin.
* alarm: the lower bound is above 0, d is above two thirds of the margin, p is below the limit of the run, and the look
  is no pass (a slow-down that is surely smaller than the margin is none that matters).
* an alarm is confirmed by most of the blocks of its look, at least two, each of which has to lie beyond two thirds of
  the margin by itself. One disturbed block is never a regression. Of a session of several blocks most have to lie
  beyond a third of the margin, too: a burst of noise that hits one of two is no slow-down.
* blind: neither, nothing looks worse, nor did at the look before, and a metric as noisy as this one would not surely
  pass if nothing had changed.

The limit of the run: all its metrics together may raise a tenth of a false alarm. A metric whose noise does not reach
two thirds of its margin cannot raise one, and takes nothing from the others.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtrit

from hugepage_gate.moderated_t import NO_PRIOR, Estimate, Prior, estimate, share_of_variance
from hugepage_gate.samples import Samples, Verdict

#: new blocks at each look, and its part of the allowed error. The parts may add up to more than one: looks share the
#: baseline and all earlier blocks, and mostly err together. With five baseline blocks and more all five
#: err in 92 to 97 % of what is allowed (the theory is Pocock 1977; a unit test draws blocks and counts)
LOOKS = ((1, 0.2), (2, 0.2), (3, 0.3), (4, 0.3), (5, 0.5))

#: allowed share of unchanged metrics with an alarm, one-sided, before confirmation
ALARM_ERROR = 0.025
#: allowed share of slow-downs as large as the margin that pass
PASS_ERROR = 0.02
#: allowed number of false alarms of all metrics of a look together, before confirmation
RUN_ERROR = 0.1
#: the smallest change that is reported, in margins
FLOOR = 2 / 3
#: a metric sees its margin if so large a share of unchanged ones as noisy as it pass
SIGHT = 0.95

#: the smallest standard deviation between blocks that is believed, in margins
_LEAST_DEVIATION = 0.01
#: more blocks than these nobody measures to see a margin
_MOST_BLOCKS = 200


@dataclass(frozen=True)
class Evidence:
    """What is compared: one number per block on a scale on which differences mean something, + is worse.

    ``margin`` is the largest worsening that does not matter, on that scale; ``extra_variance`` is by how much each new
    block is noisier than those of the baseline because it holds fewer samples. Where a block here is a session of
    several, ``shown`` is what most of those in each new one show at least, of worse and of better. What is
    ``alarm_only`` never has to pass; there the baseline alone tells how much blocks vary, as what is looked for makes
    new ones vary more. ``as_one``: all new blocks may be of one machine that nobody recorded (``of_unknown_hosts``).
    """

    baseline: Samples
    new: Samples
    margin: float
    prior: Prior = NO_PRIOR
    extra_variance: Samples | None = None
    shown: tuple[Samples, Samples] | None = None
    alarm_only: bool = False
    as_one: bool = False

    @property
    def floor(self) -> float:
        """Return the smallest change that is reported."""
        return FLOOR * self.margin

    def first(self, blocks: int) -> "Evidence":
        """Return what there was when only ``blocks`` new blocks were measured."""
        return replace(
            self,
            new=self.new[:blocks],
            extra_variance=None if self.extra_variance is None else self.extra_variance[:blocks],
            shown=None if self.shown is None else (self.shown[0][:blocks], self.shown[1][:blocks]),
        )

    def count_shown(self, blocks: int, worse: int) -> int:
        """Return how many of the first ``blocks`` new ones show a change by themselves: +1 worse, -1 better."""
        shown = self._beyond(self.new, worse) > self.floor
        if self.shown is not None:
            shown = shown & (self._beyond(self.shown[0 if worse > 0 else 1], worse) > self.floor / 2)
        return int(np.count_nonzero(shown[:blocks]))

    def _beyond(self, values: Samples, worse: int) -> Samples:
        beyond: Samples = worse * (values - self.baseline.mean())
        return beyond

    def at(self, blocks: int) -> Estimate | None:
        """Return the estimate from the first ``blocks`` new blocks, None where there are fewer, or it has none."""
        if len(self.new) < blocks:
            return None
        excess = 0.0 if self.extra_variance is None else float(np.mean(self.extra_variance[:blocks]))
        # where machines differ, a baseline that seems to be quiet may have seen one of them only
        least = self.prior.variance if self.as_one else (_LEAST_DEVIATION * self.margin) ** 2
        new, pooled = self.new[:blocks], not self.alarm_only
        return estimate(self.baseline, new, self.prior, least, excess, pooled=pooled, as_one=self.as_one)

    def replicates(self, new: int) -> int:
        """Return how many independent ones so many new blocks are."""
        return 1 if self.as_one else new


@dataclass(frozen=True)
class Look:
    """What a look at the first ``blocks`` new blocks shows.

    ``limit`` is the largest p of an alarm, ``sees`` the smallest margin that an unchanged metric as noisy as this one
    would surely pass.
    """

    blocks: int
    estimate: Estimate
    lower: float
    upper: float
    p: float
    limit: float
    sees: float
    passes: bool
    alarm: bool
    better: bool

    @property
    def change(self) -> float:
        """Return the estimate as a share of the baseline, for logarithms."""
        return math.expm1(self.estimate.difference)


@dataclass(frozen=True)
class Decision:
    """The verdict on one metric, why, and the looks that led to it.

    ``more_blocks`` is how many a next step needs, ``more_baseline`` how many more of the baseline besides.
    """

    verdict: Verdict
    reason: str
    looks: tuple[Look, ...] = ()
    more_blocks: int = 0
    more_baseline: int = 0


#: blocks of a look -> a number that belongs to it
PerLook = Mapping[int, float]


def decide(evidence: Sequence[Evidence], looks: Sequence[tuple[int, float]] = LOOKS) -> list[Decision]:
    """Return the decision on each of the metrics that are judged together."""
    limits = alarm_limits([noise_alarms(one, looks) for one in evidence], looks)
    return [decide_one(one, limits, looks) for one in evidence]


def noise_alarms(evidence: Evidence, looks: Sequence[tuple[int, float]] = LOOKS) -> PerLook:
    """Return per look how likely noise alone shows a change that would be reported."""
    found = {blocks: evidence.at(blocks) for blocks, _ in looks}
    return {blocks: one.beyond(evidence.floor) for blocks, one in found.items() if one is not None}


def alarm_limits(chances: Sequence[PerLook], looks: Sequence[tuple[int, float]] = LOOKS) -> PerLook:
    """Return per look the limit of p for metrics that are judged together; ``chances`` are their noise alarms."""
    return {blocks: alarm_limit([one[blocks] for one in chances if blocks in one]) for blocks, _ in looks}


def alarm_limit(chances: Sequence[float]) -> float:
    """Return the largest limit of p with which unchanged metrics raise RUN_ERROR alarms together.

    Each raises one with the probability of the limit, but never more often than its noise is large enough to be
    reported, which ``chances`` holds.
    """
    left, ordered = RUN_ERROR, sorted(chances)
    for place, chance in enumerate(ordered):
        share = left / (len(ordered) - place)
        if share <= chance:
            return share
        left -= chance
    return 1.0


def decide_one(evidence: Evidence, limits: PerLook, looks: Sequence[tuple[int, float]] = LOOKS) -> Decision:
    """Return the decision on one metric; ``limits`` are of all that it is judged together with."""
    made = [
        _look(evidence, found, blocks, share, limits[blocks])
        for blocks, share in looks
        if (found := evidence.at(blocks)) is not None
    ]
    return _decide(evidence, tuple(made), looks)


def _look(evidence: Evidence, found: Estimate, blocks: int, share: float, limit: float) -> Look:
    lower, upper = found.lower(share * ALARM_ERROR), found.upper(share * PASS_ERROR)
    passes = upper < evidence.margin and not evidence.alarm_only
    is_better = found.upper(share * ALARM_ERROR) < 0 and found.difference < -evidence.floor
    return Look(
        blocks=blocks,
        estimate=found,
        lower=lower,
        upper=upper,
        p=found.p_worse(),
        limit=limit,
        sees=_sight(found.error, found.degrees, share),
        passes=passes,
        alarm=not passes and lower > 0 and found.difference > evidence.floor and found.p_worse() <= limit,
        better=is_better and found.p_better() <= limit,
    )


def _sight(error: float, degrees: float, share: float) -> float:
    return error * float(stdtrit(degrees, 1 - share * PASS_ERROR) + stdtrit(degrees, SIGHT))


def _decide(evidence: Evidence, made: tuple[Look, ...], looks: Sequence[tuple[int, float]]) -> Decision:
    if not made:
        missing = "one block on each side: nothing is known of how much blocks vary"
        return Decision(Verdict.UNDECIDED, missing if len(evidence.new) else "no block to look at", more_blocks=1)
    latest = made[-1]
    if latest.alarm and _is_confirmed(evidence, latest, worse=1):
        return Decision(Verdict.REGRESSED, f"worse, by {_blocks(latest.blocks)}, and confirmed", made)
    if evidence.alarm_only and not latest.alarm:
        return Decision(Verdict.PASS, f"no alarm, by {_blocks(latest.blocks)}", made)
    if latest.passes:
        if latest.better and _is_confirmed(evidence, latest, worse=-1):
            return Decision(Verdict.IMPROVED, f"better, by {_blocks(latest.blocks)}, and confirmed", made)
        return Decision(Verdict.PASS, f"any worsening is below the margin, by {_blocks(latest.blocks)}", made)
    # what the look before took for worse is not over yet
    looks_worse = latest.lower > 0 or any(look.alarm for look in made[-2:])
    if latest.sees > evidence.margin and not looks_worse:
        return _blind(evidence, made, looks)
    return _undecided(evidence, made, looks)


def _is_confirmed(evidence: Evidence, look: Look, worse: int) -> bool:
    shown = evidence.count_shown(look.blocks, worse)
    return shown > 1 and shown > look.blocks / 2


def _undecided(evidence: Evidence, made: tuple[Look, ...], looks: Sequence[tuple[int, float]]) -> Decision:
    have = len(evidence.new)
    later = [blocks for blocks, _ in looks if blocks > have]
    if made[-1].alarm and have == 1:
        return Decision(Verdict.UNDECIDED, "worse in the only block: one more has to confirm it", made, 1)
    if later:
        needed = later[0] - have
        return Decision(Verdict.UNDECIDED, f"not clear yet: {_blocks(needed)} more for the next look", made, needed)
    if made[-1].alarm:
        return Decision(Verdict.UNDECIDED, "worse by few blocks only, which most others do not confirm", made)
    advice = _advice(blocks_to_see(evidence, made[-1], looks))
    return Decision(Verdict.UNDECIDED, f"between no change and the margin: {advice}", made)


def _blind(evidence: Evidence, made: tuple[Look, ...], looks: Sequence[tuple[int, float]]) -> Decision:
    needed = blocks_to_see(evidence, made[-1], looks)
    new, old = needed or (0, 0)
    return Decision(Verdict.BLIND, _advice(needed), made, new, old)


def _advice(needed: tuple[int, int] | None) -> str:
    if needed is None:
        return "more blocks would not help: it needs a larger margin, or less noise"
    new, old = needed
    return " and ".join([f"{new} more blocks"] * bool(new) + [f"{old} more in the baseline"] * bool(old))


def blocks_to_see(evidence: Evidence, look: Look, looks: Sequence[tuple[int, float]] = LOOKS) -> tuple[int, int] | None:
    """Return how many more new blocks, and how many more of the baseline, make the margin visible.

    None where 200 do not. New ones come first, up to the last look, and count where there is a look.
    """
    base, have = len(evidence.baseline), len(evidence.new)
    variance = look.estimate.error**2 / share_of_variance(base, evidence.replicates(look.blocks))

    def suffice(blocks: int, more: int, share: float) -> bool:
        error = math.sqrt(variance * share_of_variance(base + more, evidence.replicates(blocks)))
        return _sight(error, evidence.prior.degrees + base + more + blocks - 2, share) <= evidence.margin

    for blocks, share in looks:
        if blocks > look.blocks and suffice(blocks, 0, share):
            return max(0, blocks - have), 0
    last, share = looks[-1]
    # the more there are the smaller is the margin that is seen
    more = 1 + bisect_left(range(1, _MOST_BLOCKS + 1), True, key=lambda more: suffice(last, more, share))
    return (max(0, last - have), more) if more <= _MOST_BLOCKS else None


def _blocks(count: int) -> str:
    return "1 block" if count == 1 else f"{count} blocks"
