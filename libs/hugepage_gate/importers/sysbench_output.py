"""Runs of sysbench 1.0 as samples: events and transactions per second, MiB per second, a percentile of the latency.

A file may hold several runs, one after another: each is a sample. Where a run reports at intervals, these are the
samples of its transactions per second.
"""

from collections import defaultdict
from pathlib import Path

from hugepage_gate.importers.foreign_series import ForeignSeries, Origin, one_session
from hugepage_gate.importers.sysbench_report import RUN, SysbenchRun, read_run
from hugepage_gate.input_file import read_text
from hugepage_gate.samples import SampleSet, Scalar
from hugepage_qa.errors import InputError


def read_sysbench(path: Path, origin: Origin) -> SampleSet:
    """Return the runs in the file ``path``. Raises InputError for a run that did not end, or with other threads."""
    text = read_text(path)
    starts = list(RUN.finditer(text))
    if not starts:
        raise InputError(f"{path}: no line 'sysbench VERSION (...', expected the output of sysbench 1.0")
    ends = [*(one.start() for one in starts[1:]), len(text)]
    facts: dict[str, Scalar] = {"sysbench": starts[0]["version"]}
    samples: dict[tuple[str, str], list[float]] = defaultdict(list)
    for place, (start, end) in enumerate(zip(starts, ends, strict=True), 1):
        where = f"{path}: run {place}"
        run = read_run(text[start.start() : end], where)
        of_run: dict[str, Scalar] = {"sysbench": start["version"]}
        if run.threads is not None:
            of_run["threads"] = run.threads
        facts = of_run if place == 1 else facts
        if of_run != facts:
            raise InputError(f"{where}: {of_run}, but the first one had {facts}; import them separately")
        for key, values in _figures(run, where).items():
            samples[key] += values
    found = [
        ForeignSeries(name, unit, [values], same_as="sysbench-events" if unit in _FROM_EVENTS else None)
        for (name, unit), values in samples.items()
    ]
    return one_session(path, origin, found, facts)


#: sysbench computes these from the events of the same time
_FROM_EVENTS = frozenset({"MiB/s", "tps"})


def _figures(run: SysbenchRun, where: str) -> dict[tuple[str, str], list[float]]:
    """Return the figures of one run by metric and unit. Raises InputError."""
    if run.events is None or not run.seconds:
        raise InputError(f"{where}: no 'total time' and 'total number of events', expected a run that ended")
    figures: dict[tuple[str, str], list[float]] = {("sysbench-events", "events/s"): [run.events / run.seconds]}
    if run.transactions is not None:
        figures["sysbench-transactions", "tps"] = list(run.intervals) or [run.transactions]
    if run.memory is not None:
        figures["sysbench-memory", "MiB/s"] = [run.memory]
    if run.percentile is not None:
        name, milliseconds = run.percentile
        figures[f"sysbench-latency-p{name}", "ms"] = [milliseconds]
    return figures
