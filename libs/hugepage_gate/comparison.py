"""The outcome of a comparison: the verdict on everything, on each metric, and what differed. JSON and back."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hugepage_gate.environment import Difference
from hugepage_gate.looks import Decision, Look
from hugepage_gate.samples import WORST_FIRST, Direction, Verdict, exit_code, verdict_on_all
from hugepage_qa.schema import build, read_document

FORMAT = "hugepage-qa comparison"
VERSION = 2


@dataclass(frozen=True)
class Interval:
    """An estimate with its bounds: shares of the baseline, + is worse."""

    estimate: float
    lower: float
    upper: float


@dataclass(frozen=True)
class MetricResult:
    """The verdict on one estimand of one metric.

    ``estimand`` is level, advantage, main effect, interaction or slow runs. ``change`` is None for exact counts and
    where nothing could be estimated. ``levels`` are the locations of baseline and new blocks in ``unit``. ``sees`` is
    the smallest margin that a metric as noisy as this one would surely pass if nothing had changed. ``claim`` says of a
    contrast whether it is better or worse than nothing in the new blocks alone, ``claimed`` how large it is.
    """

    metric: str
    configuration: str
    estimand: str
    unit: str
    direction: Direction
    verdict: Verdict
    reason: str
    gates: bool
    margin: float
    baseline_blocks: int
    new_blocks: int
    samples: int
    effective: float
    levels: tuple[float | None, float | None]
    change: Interval | None = None
    p: float | None = None
    limit: float | None = None
    sees: float | None = None
    looks: tuple[dict[str, Any], ...] = ()
    more_blocks: int = 0
    more_baseline: int = 0
    claim: str | None = None
    claimed: Interval | None = None
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The estimand for people."""
        configuration = f" [{self.configuration}]" if self.configuration else ""
        return f"{self.metric}{configuration}" + ("" if self.estimand == "level" else f" {self.estimand}")

    @property
    def own_change(self) -> Interval | None:
        """The change in the sign of the unit: transactions per second that became fewer have a minus."""
        if self.change is None or self.direction is not Direction.HIGHER:
            return self.change
        return Interval(*(-one / (1 + one) for one in (self.change.estimate, self.change.upper, self.change.lower)))


@dataclass(frozen=True)
class Comparison:
    """What ``gate compare`` found."""

    suite: str
    baseline: str
    new: str
    verdict: Verdict
    reason: str
    results: tuple[MetricResult, ...] = ()
    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """That of its verdict: 0 good, 1 regressed, 2 undecided or not comparable."""
        return exit_code(self.verdict)


def run_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict on a run from those on its metrics.

    Those that are blind at their margin have no say, as long as they are no more than half of all.
    """
    blind = sum(one is Verdict.BLIND for one in verdicts)
    verdict = verdict_on_all(one for one in verdicts if one is not Verdict.BLIND)
    is_seen = verdict not in (Verdict.PASS, Verdict.IMPROVED) or 2 * blind <= len(verdicts)
    return verdict if is_seen else Verdict.UNDECIDED


def overall_verdict(results: Sequence[MetricResult]) -> tuple[Verdict, str]:
    """Return the verdict on all of ``results`` and what it rests on."""
    counted = [one for one in results if one.gates]
    if not counted:
        return Verdict.UNDECIDED, "no metric has a say in the verdict"
    verdict = run_verdict([one.verdict for one in counted])
    blind = [one for one in counted if one.verdict is Verdict.BLIND]
    named = [one for one in counted if one.verdict is verdict]
    if not named:
        return verdict, f"{len(blind)} of {len(counted)} are blind at their margin: {_some(blind)}"
    unseen = f"; {len(blind)} blind at their margin" if blind else ""
    return verdict, f"{len(named)} of {len(counted)}: {_some(named)}{unseen}"


def worst_first(results: Iterable[MetricResult]) -> tuple[MetricResult, ...]:
    """Return ``results`` by verdict and by how much worse they are, those that have a say before others."""

    def badness(one: MetricResult) -> tuple[bool, int, float]:
        return not one.gates, WORST_FIRST.index(one.verdict), -(one.change.estimate / one.margin if one.change else 0)

    return tuple(sorted(results, key=badness))


def _some(results: Sequence[MetricResult]) -> str:
    more = len(results) - _MOST_NAMES
    return ", ".join(one.name for one in results[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


#: the estimand of the mean of all runs
SLOW_RUNS = "slow runs"

_MOST_NAMES = 3


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Return ``comparison`` as the document that ``schemas/comparison.json`` describes."""
    return {"format": FORMAT, "version": VERSION, "exit_code": comparison.exit_code, **asdict(comparison)}


def read_comparison(file: Path) -> Comparison:
    """Return the comparison whose document is in ``file``. Raises InputError where it is none."""
    return build(Comparison, read_document(file, __package__, "comparison", "compare these samples again"))


def interval_of(look: Look) -> Interval:
    """Return what ``look`` found as shares."""
    return interval(look.estimate.difference, look.lower, look.upper)


def interval(estimate: float, lower: float, upper: float) -> Interval:
    """Return differences of logarithms as shares: log(1.02) -> 0.02."""
    return Interval(*(math.expm1(min(max(value, -_MOST), _MOST)) for value in (estimate, lower, upper)))


def look_documents(decision: Decision) -> tuple[dict[str, Any], ...]:
    """Return the looks of ``decision`` for readers of the JSON."""
    return tuple(
        {
            "blocks": look.blocks,
            **asdict(interval_of(look)),
            "degrees": look.estimate.degrees,
            "p": look.p,
            "limit": look.limit,
            "passes": look.passes,
            "alarm": look.alarm,
        }
        for look in decision.looks
    )


#: a bound beyond this says nothing more; expm1 of a larger one would overflow, and that of its negative be -1
_MOST = 30.0
