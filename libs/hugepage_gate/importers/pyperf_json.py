"""pyperf: every benchmark is a metric; its warm-up values are left out, as pyperf does.

Specified in https://pyperf.readthedocs.io/en/latest/api.html#pyperf-json-api and "JSON". Every process can be a block
(``block_per_process``), for programs that differ more from one start to the next than from one day to the next.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from hugepage_gate.importers.foreign_series import ForeignSeries, Origin, one_session
from hugepage_gate.input_file import read_output
from hugepage_gate.sample_format import parse_time
from hugepage_gate.samples import Direction, SampleSet, Scalar
from hugepage_qa.errors import InputError

_UNITS = {"second": "s", "byte": "bytes", "integer": "count"}

#: pyperf's names of facts -> ours
_FACTS = {"cpu_model_name": "cpu_model", "hostname": "hostname", "cpu_count": "cpus", "aslr": "aslr"}


def read_pyperf(path: Path, origin: Origin) -> SampleSet:
    """Return the benchmarks in the file ``path``. Raises InputError."""
    document = read_output(path, "pyperf", "JSON of pyperf 1.0 or later")
    common = document.get("metadata", {})
    found = [_read_benchmark(one, common, path, origin) for one in document["benchmarks"]]
    metadata = _metadata(document["benchmarks"][0], common)
    facts: dict[str, Scalar] = {ours: metadata[theirs] for theirs, ours in _FACTS.items() if theirs in metadata}
    return one_session(path, origin, found, facts)


def _metadata(benchmark: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of the first run: pyperf keeps what is alike in one place for all."""
    runs = benchmark["runs"]
    return {**common, **benchmark.get("metadata", {}), **(runs[0].get("metadata", {}) if runs else {})}


def _read_benchmark(
    benchmark: Mapping[str, Any], common: Mapping[str, Any], path: Path, origin: Origin
) -> ForeignSeries:
    metadata = _metadata(benchmark, common)
    name = str(metadata.get("name", path.stem))
    runs = list(_runs(benchmark, f"{path}: {name}"))
    if not runs:
        raise InputError(f"{path}: {name}: no run has values, expected a finished measurement")
    blocks = [values for _, values in runs] if origin.block_per_process else [[one for _, run in runs for one in run]]
    unit = _UNITS.get(str(metadata.get("unit", "second")), "s")
    starts = [date for date, _ in runs]
    return ForeignSeries(name, unit, blocks, Direction.LOWER, starts=starts, are_sessions=origin.block_per_process)


def _runs(benchmark: Mapping[str, Any], where: str) -> Iterator[tuple[datetime | None, list[float]]]:
    for run in benchmark["runs"]:
        # a run without values only calibrated
        if run.get("values"):
            date = run.get("metadata", {}).get("date")
            yield (None if date is None else parse_time(date, where)), run["values"]
