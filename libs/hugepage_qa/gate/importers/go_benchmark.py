"""The text that ``go test -bench`` prints. A file is one session, and thus one block; repeats are its samples."""

import math
import re
from collections import defaultdict
from pathlib import Path

import numpy as np

from hugepage_qa.errors import InputError
from hugepage_qa.gate.importers.origin import Origin, session_of
from hugepage_qa.gate.input_file import read_text
from hugepage_qa.gate.samples import Block, Direction, Kind, SampleSet, Scalar, Series

_RESULT = re.compile(r"(?P<name>Benchmark\S*)\s+(?P<iterations>[0-9]+)\s+(?P<values>\S.*)")
_FACT = re.compile(r"(?P<key>goos|goarch|cpu): (?P<value>.+)")

_FACTS = {"goos": "os", "goarch": "arch", "cpu": "cpu_model"}
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}

#: what Go counts, rather than measures
_COUNTS = frozenset({"B/op", "allocs/op"})


def read_go_benchmark(path: Path, origin: Origin) -> SampleSet:
    """Return the benchmarks in the file ``path``: every unit of each is a metric. Raises InputError."""
    facts: dict[str, Scalar] = {}
    samples: dict[tuple[str, str], list[float]] = defaultdict(list)
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if fact := _FACT.fullmatch(line.strip()):
            facts[_FACTS[fact["key"]]] = _ARCHITECTURES.get(fact["value"], fact["value"])
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
            Direction.HIGHER if unit.endswith("/s") else Direction.LOWER,
            Kind.COUNT if unit in _COUNTS else Kind.MEASURED,
            origin.configuration,
            (Block(np.array(values), order, session=session_of(path)),),
        )
        for order, ((name, unit), values) in enumerate(samples.items())
    )
    return SampleSet(str(path), origin.suite, {**facts, **origin.environment}, origin.subject, series)


def _values(text: str, where: str) -> list[tuple[str, float]]:
    """Return the pairs of unit and value in ``1234 ns/op  56 B/op``. Raises InputError."""
    words = text.split()
    try:
        pairs = [(unit, float(value)) for value, unit in zip(words[::2], words[1::2], strict=True)]
    except ValueError as error:
        raise InputError(f"{where}: expected pairs of value and unit, got {text!r}") from error
    if any(not math.isfinite(value) or value < 0 for _, value in pairs):
        raise InputError(f"{where}: expected finite values of at least 0, got {text!r}")
    return pairs
