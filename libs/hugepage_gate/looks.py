"""The decision on metrics: planned looks at 1, 3 and 5 new blocks.

Each look takes all blocks up to it and spends its own part of the allowed error, so that the parts add up however often
it is looked. The latest look that there are blocks for decides: whoever measures block by block stops at the first
verdict, and a file that holds all blocks at once is judged by all that it shows. Blocks between two looks and after the
last confirm an alarm, and are otherwise not looked at: a look that nobody planned is an error that nobody allowed for.

Per look, with d the difference to the baseline (+ is worse) and its bounds at the look's part of the error:

* pass: the upper bound is below the margin.
* alarm: the lower bound is above 0, d is above half of the margin, the metric is a discovery among all metrics of the
  look, and the look is no pass (a slow-down that is surely smaller than the margin is none that matters).
* an alarm at the first look is confirmed by the next block, which has to lie beyond half of the margin by itself;
  one at a later look by most of its own blocks, at least two, that each do. One disturbed block is never a regression.
  Of a session of several blocks most have to lie beyond a quarter of the margin, too: a burst of noise that hits one of
  two is no slow-down.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hugepage_gate.moderated_t import NO_PRIOR, Estimate, Prior, estimate, false_discovery_rates
from hugepage_gate.samples import Samples, Verdict

#: new blocks at each look, and the part of the allowed error that it may spend
LOOKS = ((1, 0.2), (3, 0.3), (5, 0.5))

#: allowed share of unchanged metrics with an alarm, one-sided, before confirmation
ALARM_ERROR = 0.025
#: allowed share of slow-downs as large as the margin that pass
PASS_ERROR = 0.02
#: allowed share of false alarms among all alarms of a look
FALSE_DISCOVERIES = 0.05

#: the smallest standard deviation between blocks that is believed, in margins
_LEAST_DEVIATION = 0.01


@dataclass(frozen=True)
class Evidence:
    """What is compared: one number per block on a scale on which differences mean something, + is worse.

    ``margin`` is the largest worsening that does not matter, on that scale; ``extra_variance`` is by how much each new
    block is noisier than those of the baseline because it holds fewer samples. Where a block here is a session of
    several, ``shown`` is what most of those in each new one show at least, of worse and of better.
    """

    baseline: Samples
    new: Samples
    margin: float
    prior: Prior = NO_PRIOR
    extra_variance: Samples | None = None
    shown: tuple[Samples, Samples] | None = None

    @property
    def floor(self) -> float:
        """Return the smallest change that is reported."""
        return self.margin / 2

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
        """Return the estimate from the first ``blocks`` new blocks."""
        excess = 0.0 if self.extra_variance is None else float(np.mean(self.extra_variance[:blocks]))
        least = (_LEAST_DEVIATION * self.margin) ** 2
        return estimate(self.baseline, self.new[:blocks], self.prior, least, excess)


@dataclass(frozen=True)
class Look:
    """What a look at the first ``blocks`` new blocks shows; ``q`` is the rate of false discoveries of "worse"."""

    blocks: int
    estimate: Estimate
    lower: float
    upper: float
    p: float
    q: float
    passes: bool
    alarm: bool
    better: bool

    @property
    def change(self) -> float:
        """Return the estimate as a share of the baseline, for logarithms."""
        return math.expm1(self.estimate.difference)


@dataclass(frozen=True)
class Decision:
    """The verdict on one metric, why, and the looks that led to it. ``more_blocks`` is how many a next step needs."""

    verdict: Verdict
    reason: str
    looks: tuple[Look, ...] = ()
    more_blocks: int = 0


def decide(evidence: Sequence[Evidence], looks: Sequence[tuple[int, float]] = LOOKS) -> list[Decision]:
    """Return the decision on each of the metrics that are judged together."""
    made: list[list[Look]] = [[] for _ in evidence]
    for blocks, share in looks:
        reached = [i for i, one in enumerate(evidence) if len(one.new) >= blocks]
        estimates = {i: found for i in reached if (found := evidence[i].at(blocks)) is not None}
        worse = false_discovery_rates([one.p_worse() for one in estimates.values()])
        better = false_discovery_rates([one.p_better() for one in estimates.values()])
        for (i, found), q, q_better in zip(estimates.items(), worse, better, strict=True):
            made[i].append(_look(evidence[i], found, blocks, share, q, q_better))
    return [_decide(one, tuple(found), looks) for one, found in zip(evidence, made, strict=True)]


def _look(evidence: Evidence, found: Estimate, blocks: int, share: float, q: float, q_better: float) -> Look:
    lower, upper = found.lower(share * ALARM_ERROR), found.upper(share * PASS_ERROR)
    passes = upper < evidence.margin
    return Look(
        blocks=blocks,
        estimate=found,
        lower=lower,
        upper=upper,
        p=found.p_worse(),
        q=q,
        passes=passes,
        alarm=not passes and lower > 0 and found.difference > evidence.floor and q <= FALSE_DISCOVERIES,
        better=found.upper(share * ALARM_ERROR) < 0
        and found.difference < -evidence.floor
        and q_better <= FALSE_DISCOVERIES,
    )


def _decide(evidence: Evidence, made: tuple[Look, ...], looks: Sequence[tuple[int, float]]) -> Decision:
    if not made:
        missing = "one block on each side: nothing is known of how much blocks vary"
        return Decision(Verdict.UNDECIDED, missing if len(evidence.new) else "no block to look at", more_blocks=1)
    latest = made[-1]
    if latest.alarm and _is_confirmed(evidence, latest, worse=1):
        return Decision(Verdict.REGRESSED, f"worse, by {_blocks(latest.blocks)}, and confirmed", made)
    if latest.passes:
        if latest.better and _is_confirmed(evidence, latest, worse=-1):
            return Decision(
                Verdict.IMPROVED, f"better, by {_blocks(latest.blocks)}, and confirmed: offer it as a baseline", made
            )
        return Decision(Verdict.PASS, f"any worsening is below the margin, by {_blocks(latest.blocks)}", made)
    return _undecided(evidence, made, looks)


def _is_confirmed(evidence: Evidence, look: Look, worse: int) -> bool:
    blocks = look.blocks if look.blocks > 1 else look.blocks + 1
    if len(evidence.new) < blocks:
        return False
    shown = evidence.count_shown(blocks, worse)
    return shown > 1 and shown > blocks / 2


def _undecided(evidence: Evidence, made: tuple[Look, ...], looks: Sequence[tuple[int, float]]) -> Decision:
    have = len(evidence.new)
    later = [blocks for blocks, _ in looks if blocks > have]
    if made[-1].alarm and made[-1].blocks == 1 and have == 1:
        return Decision(Verdict.UNDECIDED, "worse in the only block: one more has to confirm it", made, 1)
    if later:
        needed = later[0] - have
        return Decision(Verdict.UNDECIDED, f"not clear yet: {_blocks(needed)} more for the next look", made, needed)
    if made[-1].alarm:
        return Decision(Verdict.UNDECIDED, "worse by few blocks only, which most others do not confirm", made)
    return Decision(Verdict.UNDECIDED, "blocks vary too much to decide: a larger baseline or margin is needed", made)


def _blocks(count: int) -> str:
    return "1 block" if count == 1 else f"{count} blocks"
