"""Comparisons as results of cases, for tmt: one for each workload, and one for each metric that has a say."""

import re
from collections.abc import Iterator
from pathlib import Path

from hugepage_qa.gate.comparison import TAILS, Comparison, MetricResult
from hugepage_qa.gate.verdict import Verdict
from hugepage_qa.report.case_result import CaseResult, Outcome, one_line
from hugepage_qa.report.gate_table import percent, why

_GOOD = frozenset({Verdict.PASS, Verdict.IMPROVED})


def outcome_of(verdict: Verdict) -> Outcome:
    """Return the outcome that a verdict is to tmt; what decides nothing is a skip."""
    if verdict in _GOOD:
        return Outcome.PASS
    return Outcome.FAIL if verdict is Verdict.REGRESSED else Outcome.SKIP


def comparison_results(comparison: Comparison, logs: tuple[Path, ...]) -> Iterator[CaseResult]:
    """Yield the result of the suite, which carries ``logs``, and those of its metrics.

    Metrics that are only reported, and tails that could not be decided, are in the reports alone: they have no say.
    """
    reasons = (f"{comparison.verdict}: {comparison.reason}", *map(str, comparison.differences), *comparison.notes)
    yield CaseResult(f"/{comparison.suite}", outcome_of(comparison.verdict), tuple(map(one_line, reasons)), 0.0, logs)
    for one in comparison.results:
        if one.gates and (one.estimand not in TAILS or one.verdict is Verdict.REGRESSED):
            yield CaseResult(_name(comparison.suite, one), outcome_of(one.verdict), (_note(one),))


def skipped_results(skipped: dict[str, str]) -> Iterator[CaseResult]:
    """Yield a result for each workload or configuration that could not be measured."""
    for name, reason in skipped.items():
        yield CaseResult(f"/{_word(name)}/measured", Outcome.SKIP, (one_line(f"not measured: {reason}"),))


def _name(suite: str, one: MetricResult) -> str:
    words = (suite, one.metric, _word(one.configuration), _word(one.estimand))
    return "".join(f"/{word}" for word in words if word)


def _word(text: str) -> str:
    return re.sub(r"[^\w.=,+-]+", "-", text).strip("-")


def _note(one: MetricResult) -> str:
    if one.change is None:
        return one_line(f"{one.verdict}: {one.name}: {why(one)}")
    change = (one.change.estimate, one.change.lower, one.change.upper)
    estimate, lower, upper = map(percent, change)
    return one_line(f"{one.verdict}: {one.name}: {estimate} ({lower} to {upper}), margin {one.margin:.1%}; {why(one)}")
