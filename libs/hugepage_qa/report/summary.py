"""What a finished ``tmt run`` has to say: its results.yaml files, read back into results of cases."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from hugepage_qa.report.case_result import CaseResult, Outcome, one_line
from hugepage_qa.report.schema import find_violation
from hugepage_qa.report.tmt_results import parse_duration

# a test that tmt never came to is an error: something stopped the plan before it
_OUTCOMES = {outcome.value: outcome for outcome in Outcome if outcome is not Outcome.KNOWN} | {
    "info": Outcome.KNOWN,
    "pending": Outcome.ERROR,
}


def read_run(run: Path) -> list[CaseResult]:
    """Return the results of every plan in the run directory ``run``; a file that cannot be read is one error."""
    files = sorted(run.glob("**/execute/results.yaml"))
    if not files:
        return [CaseResult("/", Outcome.ERROR, ("tmt left no results.yaml: no test was executed",))]
    return [result for file in files for result in _read_plan(file)]


def _read_plan(file: Path) -> list[CaseResult]:
    try:
        # every scalar as text: tmt writes YAML 1.2, in which 10:00:03 and yes are words; PyYAML reads 1.1
        document = yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # noqa: S506 - builds no objects
    except (OSError, ValueError, yaml.YAMLError) as error:
        return [_unreadable(file, str(error))]
    violation = find_violation(document, "tmt-results")
    if violation:
        return [_unreadable(file, violation)]
    return [_case_result(entry, file.parent) for entry in document]


def _unreadable(file: Path, reason: str) -> CaseResult:
    return CaseResult("/", Outcome.ERROR, (one_line(f"{file}: {reason}"),))


def _case_result(entry: Mapping[str, Any], execute: Path) -> CaseResult:
    reasons = list(entry.get("note") or [])
    if entry["result"] == "pending":
        reasons.append("tmt did not execute it")
    return CaseResult(
        entry["name"],
        _OUTCOMES[entry["result"]],
        tuple(one_line(reason) for reason in reasons),
        _seconds(entry.get("duration", "null")),
        tuple(execute / log for log in entry.get("log") or []),
    )


def _seconds(duration: str) -> float:
    return 0.0 if duration == "null" else parse_duration(duration)
