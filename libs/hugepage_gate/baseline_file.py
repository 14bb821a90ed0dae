"""The text of a baseline: one metric in one configuration on one machine.

JSON with sorted keys and one line for each block and each acceptance, so that diffs show what came and went. The lists
end with ``null``: a line that is appended changes no other line, and ``merge=union`` (.gitattributes) joins what two
branches appended. An acceptance names its blocks by a hash of where they come from: a line that got lost in a merge is
noticed. What was changed by hand is told by git.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import cached_property
from typing import Any

from hugepage_gate.block_summary import BlockSummary, SummarySeries
from hugepage_gate.contrasts import Unit, replicate_keys
from hugepage_gate.environment import env_id
from hugepage_gate.input_file import check_document, is_text, parse_json
from hugepage_gate.sample_format import LARGEST
from hugepage_gate.samples import Direction, Kind, Scalar
from hugepage_qa.errors import InputError
from hugepage_qa.schema import build

FORMAT = "hugepage-qa baseline"
VERSION = 2

#: fewer replicates do not tell how much they vary
FEWEST_BLOCKS = 5

#: digits of a number that are kept; more would only make lines longer
_DIGITS = 9
_ID_LENGTH = 16

_ENCODER = json.JSONEncoder(sort_keys=True, ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True)
class Acceptance:
    """Who took which blocks (by ``block_id``) into the baseline, when and why.

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


def block_id(block: BlockSummary) -> str:
    """Return the name of ``block`` in acceptances and in the history."""
    started = block.started and block.started.isoformat()
    text = _line([block.host, block.session, started, block.order, block.sha256])
    return hashlib.sha256(text.encode()).hexdigest()[:_ID_LENGTH]


def count_replicates(series: SummarySeries) -> int:
    """Return how many blocks of ``series`` are independent: those of one session are one."""
    return len(set(replicate_keys(series.blocks, Unit.SESSION)))


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

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The names of all blocks in acceptances, in the order of the blocks."""
        return tuple(map(block_id, self.series.blocks))

    def blocks_of(self, acceptances: Sequence[Acceptance]) -> tuple[BlockSummary, ...]:
        """Return the blocks that ``acceptances`` took in."""
        wanted = {name for one in acceptances for name in one.blocks}
        return tuple(block for block, name in zip(self.series.blocks, self.ids, strict=True) if name in wanted)

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
    blocks = sorted(map(_block_document, baseline.series.blocks), key=lambda one: (one["started"] or "", one["order"]))
    acceptances = [
        {**asdict(one), "on": one.on.isoformat(), "blocks": sorted(one.blocks)} for one in baseline.acceptances
    ]
    document = {
        "format": _line(FORMAT),
        "version": _line(VERSION),
        **{key: _line(value) for key, value in baseline.head.items()},
        "accepted": _lines(acceptances),
        "blocks": _lines(blocks),
    }
    return "{\n" + ",\n".join(f'"{key}": {document[key]}' for key in sorted(document)) + "\n}\n"


def parse_baseline(text: str, source: object) -> Baseline:
    """Return the baseline in ``text``. Raises InputError for what is truncated, incomplete or of another version."""
    try:
        document = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}: expected JSON, is the file truncated or a merge unfinished? ({error})") from error
    if isinstance(document, dict) and document.get("format") == FORMAT and document.get("version") == 1:
        raise InputError(
            f"{source}: version 1 holds medians, which this hugepage-qa does not compare; "
            "remove the file, and accept a new baseline with gate accept"
        )
    lists = _take_lists(document)
    check_document(document, source, FORMAT, VERSION, "baseline")
    if document["env_id"] != env_id(document["environment"]):
        raise InputError(f"{source}: env_id is of another environment; restore the file from git")
    baseline = _baseline(document, lists, source)
    accepted = [name for one in baseline.acceptances for name in one.blocks]
    if len(set(baseline.ids)) < len(baseline.ids):
        raise InputError(f"{source}: a block is there twice; restore the file from git")
    if sorted(accepted) != sorted(baseline.ids):
        raise InputError(
            f"{source}: {len(set(accepted) ^ set(baseline.ids))} blocks are missing or were never accepted; "
            "restore the file from git, or accept a new baseline"
        )
    return baseline


def _take_lists(document: Any) -> dict[str, list[Any]]:
    """Take the long lists out of ``document``: a schema would look at 100,000 blocks one by one."""
    lists: dict[str, list[Any]] = {}
    for key in ("accepted", "blocks"):
        found = document.get(key) if isinstance(document, dict) else None
        lists[key] = [one for one in found if one is not None] if isinstance(found, list) else []
        if isinstance(found, list):
            document[key] = []
    return lists


def _baseline(head: Mapping[str, Any], lists: Mapping[str, list[dict[str, Any]]], source: object) -> Baseline:
    try:
        blocks = [_block(one) for one in lists["blocks"]]
        acceptances = [_acceptance(one) for one in lists["accepted"]]
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{source}: expected blocks and acceptances as gate accept writes them ({error})") from error
    if head["kind"] == Kind.MEASURED and any(min(one.location, one.mean) <= 0 for one in blocks):
        raise InputError(f"{source}: what is measured has locations and means above 0; restore the file from git")
    series = SummarySeries(
        head["metric"],
        head["unit"],
        Direction(head["direction"]),
        Kind(head["kind"]),
        head["configuration"],
        tuple(sorted(blocks, key=lambda one: (one.started.isoformat() if one.started else "", one.order))),
    )
    return Baseline(head["suite"], head["environment"], series, tuple(sorted(acceptances, key=lambda one: one.on)))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and is_text(value)


def _acceptance(document: Mapping[str, Any]) -> Acceptance:
    acceptance = build(Acceptance, document)
    texts = (acceptance.by, acceptance.reason, acceptance.release, *acceptance.blocks)
    if not all(_is_text(one) for one in texts) or not isinstance(acceptance.starts, bool):
        raise TypeError("by, reason, release and the names of blocks have to be texts")
    return acceptance


_NUMBERS = ("order", "samples", "effective", "location", "mean", "spread", "steady_from")


def _block(document: Mapping[str, Any]) -> BlockSummary:
    block = build(BlockSummary, document)
    numbers = [getattr(block, name) for name in _NUMBERS]
    if not all(type(one) in (int, float) and 0 <= one <= LARGEST for one in numbers):
        raise ValueError(f"{', '.join(_NUMBERS)} have to be numbers")
    if block.samples < 1 or block.effective <= 0:
        raise ValueError("samples and effective have to be above 0")
    if not all(one is None or _is_text(one) for one in (block.session, block.boot, block.host)):
        raise TypeError("session, boot and host have to be texts")
    sentinels = [one for one in (block.sentinel, block.sentinel_after) if one is not None]
    if not all(type(one) in (int, float) and math.isfinite(one) and one > 0 for one in sentinels):
        raise ValueError("sentinels have to be times")
    facts = block.subject.values()
    if not _is_text(block.sha256) or not all(isinstance(one, int | float | None) or _is_text(one) for one in facts):
        raise TypeError("sha256 has to be a text, and subject a map of facts")
    return block


def _block_document(block: BlockSummary) -> dict[str, Any]:
    document = {**vars(block), "started": block.started and block.started.isoformat()}
    # few have one
    if block.sentinel_after is None:
        del document["sentinel_after"]
    return {
        key: float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value for key, value in document.items()
    }


def _line(value: Any) -> str:
    return _ENCODER.encode(value)


def _lines(documents: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(["[", *(f"{_line(one)}," for one in documents), "null", "]"])
