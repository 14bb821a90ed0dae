"""Runs of pgbench as samples: transactions per second, and the latency.

Lines of progress are the samples where there are any. A file may hold several runs, one after another.
"""

from pathlib import Path

from hugepage_gate.importers.foreign_series import ForeignSeries, Origin, one_session
from hugepage_gate.importers.pgbench_report import read_runs
from hugepage_gate.input_file import read_text
from hugepage_gate.samples import SampleSet, Scalar
from hugepage_qa.errors import InputError


def read_pgbench(path: Path, origin: Origin) -> SampleSet:
    """Return the runs in the file ``path``. Raises InputError for runs that differ in their parameters, or failed."""
    runs = read_runs(read_text(path), str(path))
    if not runs:
        raise InputError(f"{path}: no line 'tps = ... (without initial connection time)', expected a run that ended")
    facts: dict[str, Scalar] = {}
    for place, run in enumerate(runs, 1):
        if run.failed:
            raise InputError(f"{path}: run {place}: {run.failed:g} transactions failed, expected none")
        for key, value in run.facts.items():
            if facts.setdefault(f"pgbench {key}", value) != value:
                before = facts[f"pgbench {key}"]
                raise InputError(
                    f"{path}: run {place}: {key}: {value}, but before it was {before}; import them separately"
                )
    progress = [one for run in runs for one in run.progress]
    final = [(run.tps, run.latency) for run in runs]
    rates = [rate for rate, _ in progress or final]
    latencies = [latency for _, latency in progress or final if latency is not None]
    found = [ForeignSeries("pgbench-tps", "tps", [rates])]
    if latencies:
        # each client waits for its transaction: the latency is the clients over the rate
        found.append(ForeignSeries("pgbench-latency", "ms", [latencies], same_as="pgbench-tps"))
    return one_session(path, origin, found, facts)
