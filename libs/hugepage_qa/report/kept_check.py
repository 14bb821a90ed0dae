"""What ``check-kernel --output`` keeps of a check, written and read again: kernels, results, evidence of failures."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hugepage_qa.cases.result import Result
from hugepage_qa.durable import write_durably
from hugepage_qa.schema import build, read_document

#: it is written last: a check whose directory has none was cut off
RESULTS = "results.json"
#: architecture -> release of the kernel that was checked there
KERNELS = "kernels.json"


def write_kernels(directory: Path, kernels: Mapping[str, str]) -> None:
    """Write the releases of ``kernels``, by architecture, into ``directory``. Raises OSError."""
    write_durably(directory / KERNELS, json.dumps(dict(kernels)))


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
    results = [build(Result, entry) for entry in _read(directory / RESULTS, "check-results")]
    return [replace(result, evidence=_evidence(directory, result)) for result in results]


def read_kernels(directory: Path) -> dict[str, str]:
    """Return architecture -> release of the kernels of the check in ``directory``. Raises InputError."""
    kernels: dict[str, str] = _read(directory / KERNELS, "check-kernels")
    return kernels


def _read(file: Path, schema: str) -> Any:
    return read_document(file, __package__, schema, f"remove {file.parent}, and check that kernel again")


def _evidence(directory: Path, result: Result) -> str:
    file = _evidence_file(directory, result.name)
    # its first line tells the result once more
    return file.read_text(encoding="utf-8", errors="replace").partition("\n")[2] if file.is_file() else ""


def _evidence_file(directory: Path, name: str) -> Path:
    return directory / f"{name.strip('/').replace('/', '-')}.log"
