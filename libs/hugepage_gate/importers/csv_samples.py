"""CSV: one sample per line, and a header with the column ``value``.

Others, as far as there are: ``metric``, ``configuration``, ``unit``, ``direction``, ``kind``, ``block``, ``started``,
``session``, ``boot``, ``host``, ``order``, ``sentinel``, ``sentinel_after``, ``warmup``. Lines with the same metric,
configuration and block are the samples of one block, in their order in the file. Without the column ``block`` the file
is one block: samples that were taken one after another are not blocks. The form of the file is that of RFC 4180.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hugepage_gate.importers.foreign_series import Origin
from hugepage_gate.input_file import number, read_text
from hugepage_gate.sample_format import FORMAT, VERSION, direction_of, parse_samples
from hugepage_gate.samples import SampleSet
from hugepage_qa.errors import InputError

_OF_SERIES = ("unit", "direction", "kind")
_OF_BLOCK = ("started", "session", "boot", "host", "order", "sentinel", "sentinel_after", "warmup")
_COLUMNS = frozenset({"value", "metric", "configuration", "block", *_OF_SERIES, *_OF_BLOCK})
_TRUTH = {"": False, "0": False, "false": False, "1": True, "true": True}


@dataclass
class _Draft:
    """A block in the making."""

    line: int
    facts: Mapping[str, str]
    samples: list[float] = field(default_factory=list)


def read_csv(path: Path, origin: Origin) -> SampleSet:
    """Return the samples in the file ``path``. Raises InputError, which names the line."""
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        columns = reader.fieldnames or []
        _check_columns(columns, path)
        drafts = _read_lines(reader, path)
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: expected CSV: {error}") from error
    if not drafts:
        raise InputError(f"{path}: expected at least one line after the header")
    document = {
        "format": FORMAT,
        "version": VERSION,
        "suite": origin.suite,
        "environment": dict(origin.environment),
        "subject": dict(origin.subject),
        **({} if origin.csv.reference is None else {"reference": origin.csv.reference}),
        "series": _series(drafts, origin, path),
    }
    return parse_samples(document, str(path))


def _check_columns(columns: Sequence[str], path: Path) -> None:
    unknown = sorted(set(columns) - _COLUMNS)
    if "value" not in columns or unknown or len(set(columns)) < len(columns):
        what = f"unknown: {', '.join(unknown)}" if unknown else f"found: {', '.join(columns)}"
        raise InputError(
            f"{path}: expected the column value, others of {', '.join(sorted(_COLUMNS))}, each once; {what}"
        )


def _read_lines(reader: "csv.DictReader[str]", path: Path) -> dict[tuple[str, str, str], _Draft]:
    drafts: dict[tuple[str, str, str], _Draft] = {}
    for row in reader:
        where = f"{path}:{reader.line_num}"
        if None in row or None in row.values():
            raise InputError(f"{where}: expected as many fields as the header has")
        key = row.get("metric", ""), row.get("configuration", ""), row.get("block", "")
        facts = {name: row[name] for name in (*_OF_SERIES, *_OF_BLOCK) if row.get(name)}
        draft = drafts.setdefault(key, _Draft(reader.line_num, facts))
        if facts != draft.facts:
            raise InputError(
                f"{where}: block {key[2]!r} began in line {draft.line} with other columns; expected the same"
            )
        draft.samples.append(number(row["value"], f"{where}: value"))
    return drafts


def _series(drafts: Mapping[tuple[str, str, str], _Draft], origin: Origin, path: Path) -> list[dict[str, Any]]:
    defaults = origin.csv
    series: dict[tuple[str, str], dict[str, Any]] = {}
    for (metric, configuration, _), draft in drafts.items():
        facts = {
            "metric": metric or defaults.metric,
            "configuration": configuration or origin.configuration,
            "unit": (unit := draft.facts.get("unit", defaults.unit)),
            "direction": draft.facts.get("direction", defaults.direction) or direction_of(unit).value,
            "kind": draft.facts.get("kind", "measured"),
        }
        one = series.setdefault((metric, configuration), {**facts, "blocks": []})
        if any(one[key] != value for key, value in facts.items()):
            raise InputError(
                f"{path}:{draft.line}: {facts['metric']}: expected one unit, direction and kind in all blocks"
            )
        one["blocks"].append(_block(draft, len(one["blocks"]), f"{path}:{draft.line}"))
    return list(series.values())


def _block(draft: _Draft, place: int, where: str) -> dict[str, Any]:
    facts: dict[str, Any] = {
        key: draft.facts[key] for key in ("started", "session", "boot", "host") if key in draft.facts
    }
    order = draft.facts.get("order", str(place))
    if not order.isascii() or not order.isdecimal():
        raise InputError(f"{where}: order {order!r}: expected a whole number")
    for key in ("sentinel", "sentinel_after"):
        if key in draft.facts:
            facts[key] = number(draft.facts[key], f"{where}: {key}")
    warmup = draft.facts.get("warmup", "").lower()
    if warmup not in _TRUTH:
        raise InputError(f"{where}: warmup {warmup!r}: expected true or false")
    return {**facts, "order": int(order), "warmup": _TRUTH[warmup], "samples": draft.samples}
