"""pyperf's JSON. A file is one session, and thus one block: its processes share what a session shares.

With ``by_process`` every process is a block of its own: for programs that differ more from one start to the next than
from one day to the next. Warm-up values are left out, as pyperf does.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from hugepage_qa.errors import InputError
from hugepage_qa.gate.importers.origin import Origin, session_of
from hugepage_qa.gate.input_file import read_json
from hugepage_qa.gate.sample_format import parse_time
from hugepage_qa.gate.samples import Block, Direction, Kind, SampleSet, Scalar, Series
from hugepage_qa.schema import find_violation

_UNITS = {"second": "s", "byte": "bytes", "integer": "count"}

#: pyperf's names of facts -> ours
_FACTS = {"cpu_model_name": "cpu_model", "hostname": "hostname", "cpu_count": "cpus", "aslr": "aslr"}


def read_pyperf(path: Path, origin: Origin, *, by_process: bool = False) -> SampleSet:
    """Return the benchmarks in the file ``path``. Raises InputError."""
    document = read_json(path)
    violation = find_violation(document, "hugepage_qa.gate", "pyperf")
    if violation is not None:
        raise InputError(f"{path}: expected JSON of pyperf 1.0 or later: {violation}")
    common = document.get("metadata", {})
    series = tuple(_series(one, common, path, origin, by_process=by_process) for one in document["benchmarks"])
    if not series:
        raise InputError(f"{path}: no benchmark has values")
    metadata = _metadata(document["benchmarks"][0], common)
    facts: dict[str, Scalar] = {ours: metadata[theirs] for theirs, ours in _FACTS.items() if theirs in metadata}
    return SampleSet(str(path), origin.suite, {**facts, **origin.environment}, origin.subject, series)


def _metadata(benchmark: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of the first run: pyperf keeps what is alike in one place for all."""
    runs = benchmark["runs"]
    return {**common, **benchmark.get("metadata", {}), **(runs[0].get("metadata", {}) if runs else {})}


def _series(
    benchmark: Mapping[str, Any], common: Mapping[str, Any], path: Path, origin: Origin, *, by_process: bool
) -> Series:
    metadata = _metadata(benchmark, common)
    name = str(metadata.get("name", path.stem))
    runs = list(_runs(benchmark, f"{path}: {name}"))
    if not runs:
        raise InputError(f"{path}: {name}: no run has values, expected a finished measurement")
    session = session_of(path)
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
