"""Results of other tools as samples: CSV, ``go test -bench``, hyperfine and pyperf.

A CSV file has one sample per line and a header with the column ``value``, and as far as there are: ``metric``,
``configuration``, ``unit``, ``direction``, ``kind``, ``block``, ``started``, ``session``, ``boot``, ``host``,
``order``, ``sentinel``, ``sentinel_after``, ``warmup``. Lines with the same metric, configuration and block are the
samples of one block, in their order in the file. Without the column ``block`` the file is one block: samples that were
taken one after another are not blocks. So are the files of the other tools: a file is one session. Only of pyperf's
every process can be a block, for programs that differ more from one start to the next than from one day to the next;
its warm-up values are left out, as pyperf does.
"""

import csv
import io
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from hugepage_gate.input_file import read_json, read_text
from hugepage_gate.sample_format import FORMAT, VERSION, direction_of, parse_samples, parse_time
from hugepage_gate.samples import Block, Direction, Kind, SampleSet, Scalar, Series
from hugepage_qa.errors import InputError
from hugepage_qa.schema import find_violation


@dataclass(frozen=True)
class Origin:
    """Where samples come from: facts that the importer adds to those in the file, and overrides them.

    ``session`` is what the file is a session of; empty: its name.
    """

    suite: str = "default"
    environment: Mapping[str, Scalar] = field(default_factory=dict)
    subject: Mapping[str, Scalar] = field(default_factory=dict)
    configuration: str = ""
    session: str = ""


def name_sessions(paths: Sequence[Path]) -> list[str]:
    """Return the names of the sessions that files stand for: programs write one file per session.

    Those of the same name in different folders are told apart by the folders.
    """
    names = [path.name.removesuffix(path.suffix if path.suffix in _ENDINGS else "") for path in paths]
    return [
        str(path.with_name(name)) if names.count(name) > 1 else name for path, name in zip(paths, names, strict=True)
    ]


_ENDINGS = frozenset({".json", ".txt", ".out", ".log", ".csv"})


_OF_SERIES = ("unit", "direction", "kind")
_OF_BLOCK = ("started", "session", "boot", "host", "order", "sentinel", "sentinel_after", "warmup")
_COLUMNS = frozenset({"value", "metric", "configuration", "block", *_OF_SERIES, *_OF_BLOCK})
_TRUTH = {"": False, "0": False, "false": False, "1": True, "true": True}


@dataclass(frozen=True)
class CsvDefaults:
    """What all lines have in common that no column says."""

    metric: str = "value"
    unit: str = "s"
    #: empty: what the unit tells
    direction: str = ""
    reference: str | None = None


@dataclass
class _Draft:
    """A block in the making."""

    line: int
    facts: Mapping[str, str]
    samples: list[float] = field(default_factory=list)


def read_csv(path: Path, origin: Origin, defaults: CsvDefaults) -> SampleSet:
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
        **({} if defaults.reference is None else {"reference": defaults.reference}),
        "series": _series(drafts, origin, defaults, path),
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
        draft.samples.append(_number(row["value"], f"{where}: value"))
    return drafts


def _series(
    drafts: Mapping[tuple[str, str, str], _Draft], origin: Origin, defaults: CsvDefaults, path: Path
) -> list[dict[str, Any]]:
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
            facts[key] = _number(draft.facts[key], f"{where}: {key}")
    warmup = draft.facts.get("warmup", "").lower()
    if warmup not in _TRUTH:
        raise InputError(f"{where}: warmup {warmup!r}: expected true or false")
    return {**facts, "order": int(order), "warmup": _TRUTH[warmup], "samples": draft.samples}


def _number(text: str, where: str) -> float:
    try:
        # Python takes 1_000 and digits of other scripts, too
        return float(text if text.isascii() and "_" not in text else "")
    except ValueError as error:
        raise InputError(f"{where}: expected a number, got {text!r}") from error


_RESULT = re.compile(r"(?P<name>Benchmark\S*)\s+(?P<iterations>[0-9]+)\s+(?P<values>\S.*)")
_FACT = re.compile(r"(?P<key>goos|goarch|cpu): (?P<value>.+)")

_GO_FACTS = {"goos": "os", "goarch": "arch", "cpu": "cpu_model"}
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}

#: what Go counts, rather than measures
_COUNTS = frozenset({"B/op", "allocs/op"})


def read_go_benchmark(path: Path, origin: Origin) -> SampleSet:
    """Return the benchmarks in the file ``path``: every unit of each is a metric. Raises InputError."""
    facts: dict[str, Scalar] = {}
    samples: dict[tuple[str, str], list[float]] = defaultdict(list)
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if fact := _FACT.fullmatch(line.strip()):
            facts[_GO_FACTS[fact["key"]]] = _ARCHITECTURES.get(fact["value"], fact["value"])
        elif result := _RESULT.fullmatch(line.strip()):
            for unit, value in _values(result["values"], f"{path}:{number}"):
                samples[result["name"], unit].append(value)
    if not samples:
        raise InputError(f"{path}: no result of a benchmark, expected the output of go test -bench")
    units = defaultdict(set)
    for name, unit in samples:
        units[name].add(unit)
    series = tuple(
        Series(
            # the time is the benchmark; what else it tells is named
            name if unit == "ns/op" or len(units[name]) == 1 else f"{name}:{unit}",
            unit,
            direction_of(unit),
            Kind.COUNT if unit in _COUNTS else Kind.MEASURED,
            origin.configuration,
            (Block(np.array(values), order, session=origin.session or name_sessions([path])[0]),),
            # go test computes it from the time
            same_as=name if unit == "MB/s" and "ns/op" in units[name] else None,
        )
        for order, ((name, unit), values) in enumerate(samples.items())
    )
    return SampleSet(str(path), origin.suite, {**facts, **origin.environment}, origin.subject, series)


def _values(text: str, where: str) -> list[tuple[str, float]]:
    """Return the pairs of unit and value in ``1234 ns/op  56 B/op``. Raises InputError."""
    words = text.split()
    try:
        pairs = [(unit, _number(value, where)) for value, unit in zip(words[::2], words[1::2], strict=True)]
    except ValueError as error:
        raise InputError(f"{where}: expected pairs of value and unit, got {text!r}") from error
    if any(not math.isfinite(value) or value < 0 for _, value in pairs):
        raise InputError(f"{where}: expected finite values of at least 0, got {text!r}")
    return pairs


_LONGEST_NAME = 200


def read_hyperfine(path: Path, origin: Origin) -> SampleSet:
    """Return the commands in the file ``path``. Raises InputError."""
    document = read_json(path)
    violation = find_violation(document, "hugepage_gate", "hyperfine")
    if violation is not None:
        raise InputError(f"{path}: expected what hyperfine --export-json writes: {violation}")
    series = []
    for order, result in enumerate(document["results"]):
        times = np.array(result["times"], dtype=np.float64)
        if not np.isfinite(times).all():
            raise InputError(f"{path}: {result['command']}: expected finite times")
        name = " ".join(result["command"].split())[:_LONGEST_NAME]
        block = Block(times, order, session=origin.session or name_sessions([path])[0])
        series.append(Series(name, "s", Direction.LOWER, Kind.MEASURED, origin.configuration, (block,)))
    return SampleSet(str(path), origin.suite, origin.environment, origin.subject, tuple(series))


_UNITS = {"second": "s", "byte": "bytes", "integer": "count"}

#: pyperf's names of facts -> ours
_PYPERF_FACTS = {"cpu_model_name": "cpu_model", "hostname": "hostname", "cpu_count": "cpus", "aslr": "aslr"}


def read_pyperf(path: Path, origin: Origin, *, by_process: bool = False) -> SampleSet:
    """Return the benchmarks in the file ``path``. Raises InputError."""
    document = read_json(path)
    violation = find_violation(document, "hugepage_gate", "pyperf")
    if violation is not None:
        raise InputError(f"{path}: expected JSON of pyperf 1.0 or later: {violation}")
    common = document.get("metadata", {})
    series = tuple(_pyperf_series(one, common, path, origin, by_process=by_process) for one in document["benchmarks"])
    if not series:
        raise InputError(f"{path}: no benchmark has values")
    metadata = _metadata(document["benchmarks"][0], common)
    facts: dict[str, Scalar] = {ours: metadata[theirs] for theirs, ours in _PYPERF_FACTS.items() if theirs in metadata}
    return SampleSet(str(path), origin.suite, {**facts, **origin.environment}, origin.subject, series)


def _metadata(benchmark: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of the first run: pyperf keeps what is alike in one place for all."""
    runs = benchmark["runs"]
    return {**common, **benchmark.get("metadata", {}), **(runs[0].get("metadata", {}) if runs else {})}


def _pyperf_series(
    benchmark: Mapping[str, Any], common: Mapping[str, Any], path: Path, origin: Origin, *, by_process: bool
) -> Series:
    metadata = _metadata(benchmark, common)
    name = str(metadata.get("name", path.stem))
    runs = list(_runs(benchmark, f"{path}: {name}"))
    if not runs:
        raise InputError(f"{path}: {name}: no run has values, expected a finished measurement")
    session = origin.session or name_sessions([path])[0]
    if by_process:
        blocks = [Block(values, order, date, f"{session}/{order}") for order, (date, values) in enumerate(runs)]
    else:
        blocks = [Block(np.concatenate([values for _, values in runs]), 0, runs[0][0], session)]
    unit = _UNITS.get(str(metadata.get("unit", "second")), "s")
    return Series(name, unit, Direction.LOWER, Kind.MEASURED, origin.configuration, tuple(blocks))


def _runs(benchmark: Mapping[str, Any], where: str) -> Iterator[tuple[datetime | None, np.ndarray[Any, Any]]]:
    for run in benchmark["runs"]:
        values = np.array(run.get("values", []), dtype=np.float64)
        if not len(values):
            continue  # a run that only calibrated
        if not np.isfinite(values).all() or (values < 0).any():
            raise InputError(f"{where}: expected finite values of at least 0")
        date = run.get("metadata", {}).get("date")
        yield (None if date is None else parse_time(date, where)), values
