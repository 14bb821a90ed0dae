"""A measurement on the disk: its plan, and each block when it is finished. A killed one goes on where it stopped.

A block is the smallest thing that is kept: one that was killed is taken anew, as the rest of it would be another start.
Finished blocks become samples in the format that the gate reads (hugepage_gate/schemas/samples.json).
"""

import json
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hugepage_qa.bench.backing import REFERENCE
from hugepage_qa.bench.workload import Cell, Fact, Figures, Metric, Workload
from hugepage_qa.durable import remove_durably, write_durably
from hugepage_qa.errors import InputError
from hugepage_qa.schema import build, read_document

FORMAT = "hugepage-qa measurement"
VERSION = 1

_PLAN = "plan.json"
_BLOCKS = "blocks"


@dataclass(frozen=True)
class Plan:
    """What is measured, and how.

    ``configurations`` are those of each workload; ``stand_ins`` of them are measured on the pages of another one, to
    see that somebody notices. ``environment`` and ``subject`` are those of all workloads, ``skipped`` tells what cannot
    be measured (a workload, or ``workload [configuration]``) and why.
    """

    profile: str
    configurations: Mapping[str, tuple[str, ...]]
    sessions: int
    seed: int
    stand_ins: Mapping[str, str]
    environment: Mapping[str, Fact]
    subject: Mapping[str, Fact]
    identity: str = field(default_factory=lambda: secrets.token_hex(4))
    skipped: Mapping[str, str] = field(default_factory=dict)

    def is_skipped(self, cell: Cell) -> bool:
        """Return whether the cell cannot be measured."""
        return cell.workload in self.skipped or skip_name(cell) in self.skipped


@dataclass(frozen=True)
class FinishedBlock:
    """What a cell gave. ``started`` is ISO 8601; ``sentinel`` (before it) and ``sentinel_after`` are in
    seconds, None without one.

    ``identity`` and ``subject`` are the facts of the workload.
    """

    cell: Cell
    started: str
    seconds: float
    boot: str
    sentinel: float | None
    sentinel_after: float | None
    figures: Figures
    identity: Mapping[str, Fact]
    subject: Mapping[str, Fact]


def skip_name(cell: Cell) -> str:
    """Return what a configuration of a workload is called among those skipped."""
    return f"{cell.workload} [{cell.configuration}]"


class Measurement:
    """The directory of one measurement."""

    def __init__(self, directory: Path) -> None:
        """Use ``directory``, which ``begin`` makes."""
        self._directory = directory

    def begin(self, plan: Plan) -> Plan:
        """Return the plan of the measurement: ``plan`` for a new one, with what an earlier start has found out.

        An earlier one may have had fewer sessions. Raises InputError when it measured something else, or on another
        machine; OSError.
        """
        old = self._read_plan()
        if old is None:
            (self._directory / _BLOCKS).mkdir(parents=True, exist_ok=True)
            return self.write_plan(plan)
        self._expect_the_same(old, plan)
        return self.write_plan(replace(old, sessions=max(old.sessions, plan.sessions)))

    def write_plan(self, plan: Plan) -> Plan:
        """Write and return ``plan``. Raises OSError."""
        self._write(_PLAN, {"format": FORMAT, "version": VERSION, **asdict(plan)})
        return plan

    def seed(self) -> int | None:
        """Return the seed of an earlier start, None where there was none. Raises InputError."""
        old = self._read_plan()
        return None if old is None else old.seed

    def add(self, block: FinishedBlock) -> None:
        """Keep a block; it is on the disk when the call returns. Raises OSError."""
        self._write(f"{_BLOCKS}/{block.cell.name}.json", asdict(block))

    def blocks(self) -> dict[Cell, FinishedBlock]:
        """Return all finished blocks in the order of their sessions. Raises InputError for a damaged file."""
        paths = sorted((self._directory / _BLOCKS).glob("*.json"))
        found = (build(FinishedBlock, _read(path, "block")) for path in paths)
        return {block.cell: block for block in found}

    def forget(self, cells: Iterable[Cell]) -> None:
        """Remove finished blocks: those of a session that a reboot has cut in two. Raises OSError."""
        for cell in cells:
            remove_durably(self._directory / _BLOCKS / f"{cell.name}.json")

    def write_samples(self, workload: str, document: Mapping[str, Any]) -> Path:
        """Write the samples of a workload and return the file. Raises OSError."""
        self._write(f"{workload}.json", document)
        return self._directory / f"{workload}.json"

    def _expect_the_same(self, old: Plan, new: Plan) -> None:
        for what in ("profile", "configurations", "stand_ins"):
            if (one := getattr(old, what)) != (other := getattr(new, what)):
                raise InputError(
                    f"{self._directory}: was begun with {what} {_text(one)}, not {_text(other)}: name another directory"
                )
        different = [
            key
            for key in sorted(old.environment.keys() | new.environment.keys())
            if key not in SOFT and old.environment.get(key) != new.environment.get(key)
        ]
        if different or old.subject != new.subject:
            names = ", ".join(different) or "the kernel"
            raise InputError(
                f"{self._directory}: was begun on another machine or set-up ({names}): name another directory"
            )

    def _read_plan(self) -> Plan | None:
        path = self._directory / _PLAN
        return build(Plan, _read(path, "plan")) if path.exists() else None

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        text = json.dumps(document, indent=1, allow_nan=False) + "\n"
        write_durably(self._directory / name, text)


#: facts that change while a measurement goes on
SOFT = frozenset({"hostname", "bios", "uptime", "free_memory", "load"})


def _read(path: Path, schema: str) -> dict[str, Any]:
    document: dict[str, Any] = read_document(path, __package__, schema, "remove the file to measure it again")
    return document


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {_text(other)}" for key, other in value.items()) or "none"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


_FORMAT = "hugepage-qa samples"
_VERSION = 1


def sample_document(plan: Plan, workload: Workload, blocks: Collection[FinishedBlock]) -> dict[str, Any] | None:
    """Return the samples of ``workload`` in complete sessions, None where there is none.

    A session counts when each of its configurations was measured as often as planned: in half of one the order hits
    them unequally. Raises InputError where the program has changed between blocks.
    """
    own = [block for block in blocks if block.cell.workload == workload.name and not plan.is_skipped(block.cell)]
    planned = plan.configurations[workload.name]
    configurations = [name for name in planned if f"{workload.name} [{name}]" not in plan.skipped]
    whole = {
        session
        for session in {block.cell.session for block in own}
        if sum(block.cell.session == session for block in own) == 2 * len(configurations)
    }
    own = sorted((block for block in own if block.cell.session in whole), key=lambda one: one.started)
    if not own:
        return None
    if any((block.identity, block.subject) != (own[0].identity, own[0].subject) for block in own):
        raise InputError(f"{workload.name}: its program has changed between blocks; name another directory")
    of_configuration = {name: [one for one in own if one.cell.configuration == name] for name in configurations}
    parameters = {f"benchmark.parameters.{key}": value for key, value in workload.profiles[plan.profile].items()}
    # what is not what it is called is part of what a verdict is about
    stand_ins = ", ".join(f"{name} on {other}" for name, other in plan.stand_ins.items())
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "suite": workload.name,
        "environment": {
            **plan.environment,
            "benchmark.name": workload.name,
            "benchmark.profile": plan.profile,
            **{f"benchmark.{key}": value for key, value in own[0].identity.items()},
            **parameters,
        },
        "subject": {**plan.subject, **own[0].subject, **({"stand_ins": stand_ins} if stand_ins else {})},
        "reference": REFERENCE if REFERENCE in configurations else configurations[0],
        "series": [
            _series(plan, metric, name, blocks)
            for metric in workload.metrics
            for name, blocks in of_configuration.items()
            if all(metric.name in block.figures for block in blocks)
        ],
    }


def _series(plan: Plan, metric: Metric, configuration: str, blocks: Sequence[FinishedBlock]) -> Mapping[str, Any]:
    return {
        "metric": metric.name,
        "unit": metric.unit,
        "direction": metric.direction,
        "kind": metric.kind,
        "configuration": configuration,
        "blocks": [
            {
                "order": block.cell.order,
                "session": f"{plan.identity}-{block.cell.session}",
                "started": block.started,
                "boot": block.boot,
                "sentinel": block.sentinel,
                "sentinel_after": block.sentinel_after,
                "samples": block.figures[metric.name],
            }
            for block in blocks
        ],
    }
