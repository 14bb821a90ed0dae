"""What a finished ``tmt run`` has to say: its results.yaml files, read back into results of cases."""

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from hugepage_qa.report.case_result import CaseResult, Outcome, one_line
from hugepage_qa.report.schema import find_violation
from hugepage_qa.report.tmt_results import parse_duration

#: of a test that tmt never came to
PENDING = "tmt did not execute it"

# a test that tmt never came to is an error: something stopped the plan before it
_OUTCOMES = {outcome.value: outcome for outcome in Outcome if outcome is not Outcome.KNOWN} | {
    "info": Outcome.KNOWN,
    "pending": Outcome.ERROR,
}

# libyaml's is ten times as fast, and is not there in every build of PyYAML
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)

# Keys that say nothing of a case, and the guest, differ between runs whose cases went alike. A line that is indented by
# two is a key of a result, never part of a text: that is indented more.
_NOT_OF_THE_CASE = re.compile(
    r"^  (?:check: \[\]|context: \{\}|data-path: null|end-time: null|fmf-id: \{\}|ids: \{\}|start-time: null"
    r"|subresult: \[\]|web-link: null|guest:\n(?:    .*\n)+)\n?",
    re.MULTILINE,
)
# tmt writes a list that begins at the start of a line; nothing else in it does
_ENTRY = re.compile(r"^(?=- )", re.MULTILINE)
_ENTRIES_KEPT = 20_000


def read_run(run: Path) -> list[CaseResult]:
    """Return the results of every plan in the run directory ``run``; a file that cannot be read is one error."""
    files = sorted(run.glob("**/execute/results.yaml"))
    if not files:
        return [CaseResult("/", Outcome.ERROR, ("tmt left no results.yaml: no test was executed",))]
    return [result for file in files for result in _results_or_error(file)]


def _results_or_error(file: Path) -> list[CaseResult]:
    try:
        return read_results(file)
    except (OSError, ValueError) as error:
        return [CaseResult("/", Outcome.ERROR, (one_line(f"{file}: {error}"),))]


def read_results(file: Path) -> list[CaseResult]:
    """Return the results in the results.yaml ``file``. Raises OSError, and ValueError for what tmt does not write."""
    text = file.read_text(encoding="utf-8")
    try:
        # a thousand runs of the same cases have few entries that differ
        entries = [_read_entry(entry) for entry in _ENTRY.split(_NOT_OF_THE_CASE.sub("", text)) if entry]
    except ValueError:
        entries = []
    if not entries:
        # what an entry alone is not, all together may be; if not, this error has the right line
        entries = parse_tmt_yaml(text, "tmt-results")
    return [_case_result(entry, file.parent) for entry in entries]


@lru_cache(_ENTRIES_KEPT)
def _read_entry(text: str) -> Mapping[str, Any]:
    (entry,) = parse_tmt_yaml(text, "tmt-results")
    return MappingProxyType(entry)


def parse_tmt_yaml(text: str, schema: str) -> Any:
    """Return the document in ``text``, every scalar as text. Raises ValueError where it breaks ``schema``.

    tmt writes YAML 1.2, in which 10:00:03 and yes are words; PyYAML reads 1.1.
    """
    try:
        document = yaml.load(text, Loader=_LOADER)  # noqa: S506 - builds no objects
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    violation = find_violation(document, schema)
    if violation:
        raise ValueError(violation)
    return document


def _case_result(entry: Mapping[str, Any], execute: Path) -> CaseResult:
    reasons = list(entry.get("note") or [])
    if entry["result"] == "pending":
        reasons.append(PENDING)
    return CaseResult(
        entry["name"],
        _OUTCOMES[entry["result"]],
        tuple(one_line(reason) for reason in reasons),
        _seconds(entry.get("duration", "null")),
        tuple(execute / log for log in entry.get("log") or []),
    )


def _seconds(duration: str) -> float:
    return 0.0 if duration == "null" else parse_duration(duration)
