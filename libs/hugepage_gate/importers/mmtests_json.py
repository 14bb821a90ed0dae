"""mmtests: every operation of a benchmark is a metric, every iteration a block.

Specified by https://github.com/gormanm/mmtests, bin/lib/MMTests/Extract.pm and DataTypes.pm: what
``bin/extract-mmtests.pl --print-json -d DIRECTORY -n RUN -b BENCHMARK`` prints of one run.
"""

from pathlib import Path
from typing import Any

from hugepage_gate.importers.foreign_series import ForeignSeries, Origin, one_session
from hugepage_gate.input_file import number, read_output
from hugepage_gate.samples import Direction, SampleSet

_UNITS = {
    "Time (nanoseconds)": "ns",
    "Time (microseconds)": "us",
    "Time (milliseconds)": "ms",
    "Time (seconds)": "s",
    "Microseconds/op": "us/op",
}
_GOOD = {"Lower": Direction.LOWER, "Higher": Direction.HIGHER}


def read_mmtests(path: Path, origin: Origin) -> SampleSet:
    """Return the operations in the file ``path``. Raises InputError."""
    document = read_output(path, "mmtests", "what extract-mmtests.pl --print-json prints of one run")
    benchmark = document["_ModuleName"].removeprefix("Extract")
    found = []
    for operation, iterations in document["_ResultData"].items():
        metric = f"{benchmark}-{operation}"
        label = document.get("_PlotYaxes", {}).get(operation) or document.get("_PlotYaxis") or "UNKNOWN"
        # an iteration that failed is null, or has no values
        blocks = [_values(one, f"{path}: {metric}") for one in iterations if one and one["Values"]]
        if blocks:
            direction = _GOOD.get(document.get("_PreferredVal", ""))
            found.append(ForeignSeries(metric, _UNITS.get(label, label), blocks, direction))
    return one_session(path, origin, found)


def _values(iteration: Any, where: str) -> list[float]:
    # Perl writes numbers that it has read from a text as text
    return [number(value, where) if isinstance(value, str) else value for value in iteration["Values"]]
