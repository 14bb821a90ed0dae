"""What ``check-kernel --output`` keeps of a check, written and read again: results, and the evidence of what failed."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hugepage_qa.cases.result import Result
from hugepage_qa.durable import write_durably
from hugepage_qa.schema import build, read_document

#: it is written last: a check whose directory has none was cut off
RESULTS = "results.json"


def write_results(directory: Path, results: Sequence[Result]) -> None:
    """Write ``results`` into ``directory``. Raises OSError."""
    told = [
        {"name": one.name, "verdict": one.verdict, "reasons": one.reasons, "seconds": round(one.seconds, 2)}
        for one in results
    ]
    write_durably(directory / RESULTS, json.dumps(told, indent=1))


def write_evidence(directory: Path, result: Result) -> None:
    """Write the evidence of ``result`` into a file of its own in ``directory``. Raises OSError."""
    text = f"{result.name}: {result.verdict.value}: {result.reason}\n{result.evidence}"
    write_durably(_evidence_file(directory, result.name), text.encode(errors="replace"))


def read_check(directory: Path) -> list[Result]:
    """Return the results in ``directory``, with their evidence. Raises InputError where they are none."""
    advice = f"remove {directory}, and check that kernel again"
    document = read_document(directory / RESULTS, __package__, "check-results", advice)
    results = [build(Result, entry) for entry in document]
    return [replace(result, evidence=_evidence(directory, result)) for result in results]


def _evidence(directory: Path, result: Result) -> str:
    file = _evidence_file(directory, result.name)
    # its first line tells the result once more
    return file.read_text(encoding="utf-8", errors="replace").partition("\n")[2] if file.is_file() else ""


def _evidence_file(directory: Path, name: str) -> Path:
    return directory / f"{name.strip('/').replace('/', '-')}.log"
