"""``hyperfine --export-json``: every command is a metric, every run of it a sample.

Specified by https://github.com/sharkdp/hyperfine, "Exporting results", and its src/export/json.rs.
"""

from pathlib import Path

from hugepage_gate.importers.foreign_series import ForeignSeries, Origin, one_session
from hugepage_gate.input_file import read_output
from hugepage_gate.samples import SampleSet


def read_hyperfine(path: Path, origin: Origin) -> SampleSet:
    """Return the commands in the file ``path``. Raises InputError."""
    document = read_output(path, "hyperfine", "what hyperfine --export-json writes")
    found = [ForeignSeries(result["command"], "s", [result["times"]]) for result in document["results"]]
    return one_session(path, origin, found)
