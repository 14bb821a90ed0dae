"""Every run that was compared with a baseline, accepted or not: ``<directory>/<arch>/<env_id>/<suite>.jsonl``.

A line per metric and run: when, what the verdict was, and the blocks in numbers. Lines are only ever appended, so that
git merges what several machines wrote.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from hugepage_gate.baseline_file import block_id
from hugepage_gate.baseline_store import file_name
from hugepage_gate.block_summary import BlockSummary, SummarySeries
from hugepage_gate.comparison import Comparison
from hugepage_gate.environment import env_id
from hugepage_gate.input_file import parse_json, read_text
from hugepage_gate.samples import SampleSet, Scalar
from hugepage_qa.errors import InputError

#: of a suite on a machine, beside its baselines
DIRECTORY = "history"


@dataclass(frozen=True)
class KeptBlock:
    """A block of a run; ``name`` is that of acceptances, ``verdict`` the one on its metric in that run."""

    name: str
    started: str
    host: str
    location: float
    subject: Mapping[str, Scalar]
    verdict: str


def history_file(directory: Path, environment: Mapping[str, Scalar], suite: str) -> Path:
    """Return where the runs of a suite on a machine are kept."""
    return directory / file_name(str(environment["arch"])) / env_id(environment) / f"{file_name(suite)}.jsonl"


def keep_run(
    directory: Path,
    samples: SampleSet,
    numbers: Mapping[tuple[str, str], SummarySeries],
    comparison: Comparison,
    now: datetime,
) -> None:
    """Append the blocks of ``samples`` that are not kept yet, with the verdicts of ``comparison``.

    ``numbers`` are the samples in numbers. Raises OSError.
    """
    path = history_file(directory, samples.environment, samples.suite)
    known = {block.name for blocks in read_runs(path).values() for block in blocks}
    verdicts = {(one.metric, one.configuration): one.verdict for one in comparison.results if one.estimand == "level"}
    lines = []
    for key, series in numbers.items():
        blocks = [_document(block) for block in series.blocks if _name(key, block) not in known]
        verdict = verdicts.get(key, comparison.verdict)
        identity = {"metric": key[0], "configuration": key[1], "unit": series.unit}
        line = {"compared": now.isoformat(timespec="seconds"), "verdict": verdict, **identity, "blocks": blocks}
        lines += [json.dumps(line, sort_keys=True, ensure_ascii=False, allow_nan=False)] * bool(blocks)
    if lines:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as stream:
            stream.write("".join(f"{line}\n" for line in lines))


def read_runs(path: Path) -> dict[tuple[str, str], list[KeptBlock]]:
    """Return the blocks that ``path`` keeps, by metric and configuration; none without the file. Raises InputError."""
    found: dict[tuple[str, str], list[KeptBlock]] = {}
    for number, line in enumerate(read_text(path).splitlines() if path.exists() else [], 1):
        try:
            run = parse_json(line)
            key = run["metric"], run["configuration"]
            found.setdefault(key, []).extend(_kept(key, run))
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InputError(f"{path}:{number}: expected a run as gate compare keeps it; remove the line") from error
    return found


def _kept(key: tuple[str, str], run: Mapping[str, Any]) -> Iterator[KeptBlock]:
    for one in run["blocks"]:
        started, host = (str(one[name] or "") for name in ("started", "host"))
        name = _qualified(key, one["name"])
        yield KeptBlock(name, started, host, float(one["location"]), dict(one["subject"]), str(run["verdict"]))


def _document(block: BlockSummary) -> dict[str, Any]:
    return {
        "name": block_id(block),
        "started": block.started and block.started.isoformat(),
        "host": block.host,
        "session": block.session,
        "location": block.location,
        "mean": block.mean,
        "subject": dict(block.subject),
    }


def _name(key: tuple[str, str], block: BlockSummary) -> str:
    return _qualified(key, block_id(block))


def _qualified(key: tuple[str, str], name: str) -> str:
    """Return the name of a block among those of all metrics: coarse clocks give two metrics the same samples."""
    return "/".join((*key, name))
