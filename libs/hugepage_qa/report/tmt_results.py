"""Write results for tmt: ``$TMT_TEST_DATA/results.yaml`` of a test with ``result: custom``.

tmt stops a whole plan at a key that it does not know, so an entry has the five keys below and no other.
"""

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import yaml

from hugepage_qa.report.avocado_results import JOB
from hugepage_qa.report.case_result import CaseResult, Outcome

# tmt has no word for a known kernel issue; "info" is shown apart from a pass and is good in tmt's exit code
_RESULTS = {outcome: outcome.value for outcome in Outcome} | {Outcome.KNOWN: "info"}

_LOGS = "logs"

# tmt shows what is in a log of this name, a list of texts, as the reason in JUnit: notes do not get there
_FAILURES = "failures.yaml"
_BAD = (Outcome.WARN, Outcome.FAIL, Outcome.ERROR)


def write_results(results: Iterable[CaseResult], data: Path) -> Path:
    """Write ``results`` into the directory ``data`` with copies of their logs; return the path of results.yaml."""
    entries = [_entry(result, number, data) for number, result in enumerate(results, start=1)]
    path = data / "results.yaml"
    _write_atomically(path, yaml.safe_dump(entries, allow_unicode=True, sort_keys=False))
    return path


def _entry(result: CaseResult, number: int, data: Path) -> dict[str, object]:
    entry: dict[str, object] = {"name": result.name, "result": _RESULTS[result.outcome]}
    if result.reasons:
        entry["note"] = list(result.reasons)
    logs = [_copy_log(log, result.name, number, data) for log in result.logs]
    if result.outcome in _BAD and result.reasons:
        logs.append(_write_failures(result.reasons, number, data))
    if logs:
        entry["log"] = logs
    if result.name != JOB:  # tmt measures the test itself
        entry["duration"] = format_duration(result.seconds)
    return entry


def _copy_log(log: Path, name: str, number: int, data: Path) -> str:
    """Copy ``log`` below ``data``; the number keeps two cases apart whose names differ only in odd characters."""
    label = re.sub(r"[^\w.=+-]+", "-", name).strip(".-") or "test"
    relative = Path(_LOGS) / f"{number:04}-{label[:100]}{log.suffix}"
    (data / _LOGS).mkdir(exist_ok=True)
    shutil.copyfile(log, data / relative)
    return str(relative)


def _write_failures(reasons: tuple[str, ...], number: int, data: Path) -> str:
    relative = Path(_LOGS) / f"{number:04}" / _FAILURES
    (data / relative).parent.mkdir(parents=True, exist_ok=True)
    (data / relative).write_text(yaml.safe_dump(list(reasons), allow_unicode=True), encoding="utf-8")
    return str(relative)


def format_duration(seconds: float) -> str:
    """Return ``seconds`` as tmt writes a duration: HH:MM:SS, rounded."""
    minutes, second = divmod(round(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02}:{minute:02}:{second:02}"


def parse_duration(text: str) -> float:
    """Return the seconds in tmt's HH:MM:SS."""
    hours, minutes, seconds = (int(part) for part in text.split(":"))
    return 3600.0 * hours + 60 * minutes + seconds


def _write_atomically(path: Path, text: str) -> None:
    """A reader sees the whole file or none: a test can be killed at any moment."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
