"""``go test -bench``: every unit of each benchmark is a metric.

Specified in https://go.googlesource.com/proposal/+/master/design/14313-benchmark-format.md: lines of key and value,
and lines ``BenchmarkName-8 iterations value unit [value unit]``.
"""

import re
from collections import defaultdict
from pathlib import Path

from hugepage_gate.importers.foreign_series import ForeignSeries, Origin, one_session
from hugepage_gate.input_file import number, read_text
from hugepage_gate.samples import Kind, SampleSet, Scalar
from hugepage_qa.errors import InputError

_RESULT = re.compile(r"(?P<name>Benchmark\S*)\s+(?P<iterations>[0-9]+)\s+(?P<values>\S.*)")
_FACT = re.compile(r"(?P<key>goos|goarch|cpu): (?P<value>.+)")

_GO_FACTS = {"goos": "os", "goarch": "arch", "cpu": "cpu_model"}
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}

#: what Go counts, rather than measures
_COUNTS = frozenset({"B/op", "allocs/op"})


def read_go_benchmark(path: Path, origin: Origin) -> SampleSet:
    """Return the benchmarks in the file ``path``. Raises InputError."""
    facts: dict[str, Scalar] = {}
    samples: dict[tuple[str, str], list[float]] = defaultdict(list)
    for line_number, line in enumerate(read_text(path).splitlines(), 1):
        if fact := _FACT.fullmatch(line.strip()):
            facts[_GO_FACTS[fact["key"]]] = _ARCHITECTURES.get(fact["value"], fact["value"])
        elif result := _RESULT.fullmatch(line.strip()):
            for unit, value in _values(result["values"], f"{path}:{line_number}"):
                samples[result["name"], unit].append(value)
    units = defaultdict(set)
    for name, unit in samples:
        units[name].add(unit)
    found = [
        ForeignSeries(
            # the time is the benchmark; what else it tells is named
            name if unit == "ns/op" or len(units[name]) == 1 else f"{name}:{unit}",
            unit,
            [values],
            kind=Kind.COUNT if unit in _COUNTS else Kind.MEASURED,
            # go test computes it from the time
            same_as=name if unit == "MB/s" and "ns/op" in units[name] else None,
        )
        for (name, unit), values in samples.items()
    ]
    return one_session(path, origin, found, facts)


def _values(text: str, where: str) -> list[tuple[str, float]]:
    """Return the pairs of unit and value in ``1234 ns/op  56 B/op``. Raises InputError."""
    words = text.split()
    try:
        return [(unit, number(value, where)) for value, unit in zip(words[::2], words[1::2], strict=True)]
    except ValueError as error:
        raise InputError(f"{where}: expected pairs of value and unit, got {text!r}") from error
