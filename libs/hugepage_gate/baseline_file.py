"""The text of a baseline: one metric in one configuration on one machine.

JSON with sorted keys and one line for each block and each acceptance, so that diffs show what came and went. The lists
end with ``null``: a line that is appended changes no other line, and ``merge=union`` (.gitattributes) joins what two
branches appended. The head and every line carry a seal, a hash of what they say and where they belong; an acceptance
names its blocks by their seals. What is changed, added or removed by hand does not fit any more. (A seal is no
signature: it finds mistakes, not malice.)
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import cached_property
from typing import Any

from hugepage_gate.block_summary import BlockSummary, SummarySeries
from hugepage_gate.environment import env_id
from hugepage_gate.input_file import check_document
from hugepage_gate.samples import Direction, Kind, Scalar
from hugepage_qa.errors import InputError
from hugepage_qa.schema import build, parse_json

FORMAT = "hugepage-qa baseline"
VERSION = 1

#: digits of a number that are kept; more would only make lines longer
_DIGITS = 9
_SEAL_LENGTH = 16

_ENCODER = json.JSONEncoder(sort_keys=True, ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True)
class Acceptance:
    """Who took which blocks (by seal) into the baseline, when and why.

    ``starts`` opens a new baseline: what was accepted before is history. ``commit`` is of a change that somebody
    answers for, ``release`` the time between two of which the baseline must not creep.
    """

    by: str
    on: date
    reason: str
    release: str
    starts: bool
    blocks: tuple[str, ...]
    commit: str | None = None


@dataclass(frozen=True)
class Baseline:
    """A metric in one configuration on one machine: all blocks that were ever accepted."""

    suite: str
    environment: Mapping[str, Scalar]
    series: SummarySeries
    acceptances: tuple[Acceptance, ...]

    @property
    def head(self) -> dict[str, Any]:
        """What blocks belong to."""
        one = self.series
        return {
            "suite": self.suite,
            "environment": dict(self.environment),
            "env_id": env_id(self.environment),
            "metric": one.metric,
            "unit": one.unit,
            "direction": one.direction.value,
            "kind": one.kind.value,
            "configuration": one.configuration,
        }

    def seal_of(self, block: BlockSummary) -> str:
        """Return the name of ``block`` in acceptances."""
        return _seal(self.home, _block_document(block))

    @cached_property
    def home(self) -> str:
        """The head as the seals of lines take it in."""
        return _line(self.head)

    @cached_property
    def seals(self) -> tuple[str, ...]:
        """The names of all blocks in acceptances, in the order of the blocks."""
        return tuple(map(self.seal_of, self.series.blocks))

    def blocks_of(self, acceptances: Sequence[Acceptance]) -> tuple[BlockSummary, ...]:
        """Return the blocks that ``acceptances`` took in."""
        wanted = {seal for one in acceptances for seal in one.blocks}
        return tuple(block for block, seal in zip(self.series.blocks, self.seals, strict=True) if seal in wanted)

    @property
    def current_acceptances(self) -> tuple[Acceptance, ...]:
        """What makes up the baseline of today: from the last acceptance on that opened one."""
        starts = [i for i, one in enumerate(self.acceptances) if one.starts]
        return self.acceptances[starts[-1] if starts else 0 :]

    @property
    def current(self) -> SummarySeries:
        """The blocks that new ones are compared with."""
        return replace(self.series, blocks=self.blocks_of(self.current_acceptances))


def format_baseline(baseline: Baseline) -> str:
    """Return the text of ``baseline``."""
    home = baseline.home
    blocks = sorted(map(_block_document, baseline.series.blocks), key=lambda one: (one["started"] or "", one["order"]))
    acceptances = [
        {**asdict(one), "on": one.on.isoformat(), "blocks": sorted(one.blocks)} for one in baseline.acceptances
    ]
    document = {
        "format": _line(FORMAT),
        "version": _line(VERSION),
        **{key: _line(value) for key, value in baseline.head.items()},
        "seal": _line(_seal("", baseline.head)),
        "accepted": _lines([{**one, "seal": _seal(home, one)} for one in acceptances]),
        "blocks": _lines([{**one, "seal": _seal(home, one)} for one in blocks]),
    }
    return "{\n" + ",\n".join(f'"{key}": {document[key]}' for key in sorted(document)) + "\n}\n"


def parse_baseline(text: str, source: object) -> Baseline:
    """Return the baseline in ``text``. Raises InputError for what is truncated, of a later version or hand-edited."""
    try:
        document = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}: expected JSON, is the file truncated or a merge unfinished? ({error})") from error
    lists = _take_lists(document)
    check_document(document, source, FORMAT, VERSION, "baseline")
    head = {key: value for key, value in document.items() if key not in _AROUND_HEAD}
    if document["seal"] != _seal("", head) or head["env_id"] != env_id(head["environment"]):
        raise InputError(f"{source}: its head was edited by hand; restore it from git, or accept a new baseline")
    home = _line(head)
    for line in (*lists["blocks"], *lists["accepted"]):
        if not isinstance(line, dict) or line.pop("seal", None) != _seal(home, line):
            raise InputError(f"{source}: a line was edited by hand; restore it from git, or accept a new baseline")
    baseline = _baseline(head, lists, source)
    accepted = [seal for one in baseline.acceptances for seal in one.blocks]
    if len(set(baseline.seals)) < len(baseline.seals):
        raise InputError(f"{source}: a block is there twice; restore the file from git")
    if sorted(accepted) != sorted(baseline.seals):
        raise InputError(
            f"{source}: {len(set(accepted) ^ set(baseline.seals))} blocks were removed or added by hand; "
            "restore it from git, or accept a new baseline"
        )
    return baseline


_AROUND_HEAD = frozenset({"format", "version", "seal", "accepted", "blocks"})


def _take_lists(document: Any) -> dict[str, list[Any]]:
    """Take the sealed lists out of ``document``: what fits its seal was written here, and needs no schema."""
    lists: dict[str, list[Any]] = {}
    for key in ("accepted", "blocks"):
        found = document.get(key) if isinstance(document, dict) else None
        lists[key] = [one for one in found if one is not None] if isinstance(found, list) else []
        if isinstance(found, list):
            document[key] = []
    return lists


def _baseline(head: Mapping[str, Any], lists: Mapping[str, list[dict[str, Any]]], source: object) -> Baseline:
    try:
        blocks = [build(BlockSummary, one) for one in lists["blocks"]]
        acceptances = [build(Acceptance, one) for one in lists["accepted"]]
    except (TypeError, ValueError) as error:
        raise InputError(f"{source}: expected blocks and acceptances as gate accept writes them ({error})") from error
    series = SummarySeries(
        head["metric"],
        head["unit"],
        Direction(head["direction"]),
        Kind(head["kind"]),
        head["configuration"],
        tuple(sorted(blocks, key=lambda one: (one.started.isoformat() if one.started else "", one.order))),
    )
    return Baseline(head["suite"], head["environment"], series, tuple(sorted(acceptances, key=lambda one: one.on)))


def _block_document(block: BlockSummary) -> dict[str, Any]:
    document = {**vars(block), "started": block.started and block.started.isoformat()}
    # its lines were written without this one before there was any, and keep their seals
    if block.sentinel_after is None:
        del document["sentinel_after"]
    return {
        key: float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value for key, value in document.items()
    }


def _seal(home: str, document: Mapping[str, Any]) -> str:
    return hashlib.sha256(f"{home}\n{_line(document)}".encode()).hexdigest()[:_SEAL_LENGTH]


def _line(value: Any) -> str:
    return _ENCODER.encode(value)


def _lines(documents: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(["[", *(f"{_line(one)}," for one in documents), "null", "]"])
