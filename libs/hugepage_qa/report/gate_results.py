"""What a comparison is to tmt: a result for its suite, and one for each metric that has a say."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from hugepage_gate.comparison import Comparison, MetricResult
from hugepage_gate.samples import Verdict as GateVerdict
from hugepage_qa.cases.result import Result, Verdict, one_line
from hugepage_qa.report.gate_tables import percent, why

_GOOD = frozenset({GateVerdict.PASS, GateVerdict.IMPROVED})


def outcome_of(verdict: GateVerdict) -> Verdict:
    """Return the outcome that a verdict is to tmt; what decides nothing is a skip."""
    if verdict in _GOOD:
        return Verdict.PASS
    return Verdict.FAIL if verdict is GateVerdict.REGRESSED else Verdict.SKIP


def comparison_results(comparison: Comparison, logs: tuple[Path, ...]) -> Iterator[Result]:
    """Yield the result of the suite, which carries ``logs``, and those of its metrics.

    Metrics that are only reported are in the reports alone: they have no say.
    """
    reasons = (f"{comparison.verdict}: {comparison.reason}", *map(str, comparison.differences), *comparison.notes)
    yield Result(f"/{comparison.suite}", outcome_of(comparison.verdict), tuple(map(one_line, reasons)), logs=logs)
    for one in comparison.results:
        if one.gates:
            yield Result(_name(comparison.suite, one), outcome_of(one.verdict), (_note(one),))


def skipped_results(skipped: Mapping[str, str]) -> Iterator[Result]:
    """Yield a result for each workload or configuration that could not be measured."""
    for name, reason in skipped.items():
        yield Result(f"/{_word(name)}/measured", Verdict.SKIP, (one_line(f"not measured: {reason}"),))


def _name(suite: str, one: MetricResult) -> str:
    words = (suite, one.metric, _word(one.configuration), _word(one.estimand))
    return "".join(f"/{word}" for word in words if word)


def _word(text: str) -> str:
    return re.sub(r"[^\w.=,+-]+", "-", text).strip("-")


def _note(one: MetricResult) -> str:
    if one.change is None:
        return one_line(f"{one.verdict}: {one.name}: {why(one)}")
    own = one.own_change or one.change
    estimate, lower, upper = map(percent, (own.estimate, own.lower, own.upper))
    return one_line(f"{one.verdict}: {one.name}: {estimate} ({lower} to {upper}), margin {one.margin:.1%}; {why(one)}")
