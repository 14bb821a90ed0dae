"""The outcome of a comparison: the verdict on everything, on each metric, and what differed. JSON and back."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hugepage_gate.environment import Difference
from hugepage_gate.looks import Decision, Look
from hugepage_gate.samples import Verdict, exit_code, verdict_on_all

FORMAT = "hugepage-qa comparison"
VERSION = 1


@dataclass(frozen=True)
class Interval:
    """An estimate with its bounds: shares of the baseline, + is worse; of outliers, shares of all samples."""

    estimate: float
    lower: float
    upper: float


@dataclass(frozen=True)
class MetricResult:
    """The verdict on one estimand of one metric.

    ``estimand`` is level, advantage, main effect, interaction, p99 or outlier rate. ``change`` is None for counts and
    where nothing could be estimated. ``levels`` are the locations of baseline and new blocks in ``unit``. ``claim``
    says of a contrast whether it is better or worse than nothing in the new blocks alone, ``claimed`` how large it is.
    """

    metric: str
    configuration: str
    estimand: str
    unit: str
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
    q: float | None = None
    looks: tuple[dict[str, Any], ...] = ()
    more_blocks: int = 0
    claim: str | None = None
    claimed: Interval | None = None
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The estimand for people."""
        configuration = f" [{self.configuration}]" if self.configuration else ""
        return f"{self.metric}{configuration}" + ("" if self.estimand == "level" else f" {self.estimand}")


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
        return exit_code(self.verdict)


def overall_verdict(results: Sequence[MetricResult]) -> tuple[Verdict, str]:
    """Return the verdict on all of ``results`` and what it rests on.

    A tail that got worse is a regression, but a tail that cannot be decided does not keep levels from passing.
    """
    counted = [one for one in results if one.gates and (one.estimand not in TAILS or one.verdict is Verdict.REGRESSED)]
    if not counted:
        return Verdict.UNDECIDED, "no metric has a say in the verdict"
    verdict = verdict_on_all(one.verdict for one in counted)
    names = [one.name for one in counted if one.verdict is verdict]
    shown = ", ".join(names[:_MOST_NAMES]) + (
        f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    )
    return verdict, f"{len(names)} of {len(counted)}: {shown}"


TAILS = frozenset({"p99", "outlier rate"})

_MOST_NAMES = 3


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Return ``comparison`` as the document that ``schemas/comparison.json`` describes."""
    return {"format": FORMAT, "version": VERSION, "exit_code": comparison.exit_code, **asdict(comparison)}


def interval_of(look: Look, *, is_ratio: bool = True) -> Interval:
    """Return what ``look`` found as shares."""
    return interval(look.estimate.difference, look.lower, look.upper, is_ratio=is_ratio)


def interval(estimate: float, lower: float, upper: float, *, is_ratio: bool = True) -> Interval:
    """Return differences of logarithms as shares: log(1.02) -> 0.02. Other differences are shares already."""
    change = math.expm1 if is_ratio else float
    return Interval(*(float(change(min(max(value, -_MOST), _MOST))) for value in (estimate, lower, upper)))


def look_documents(decision: Decision, *, is_ratio: bool = True) -> tuple[dict[str, Any], ...]:
    """Return the looks of ``decision`` for readers of the JSON."""
    return tuple(
        {
            "blocks": look.blocks,
            **asdict(interval_of(look, is_ratio=is_ratio)),
            "degrees": look.estimate.degrees,
            "p": look.p,
            "q": look.q,
            "passes": look.passes,
            "alarm": look.alarm,
        }
        for look in decision.looks
    )


#: a bound beyond this says nothing more; expm1 of a larger one would overflow
_MOST = 700.0
