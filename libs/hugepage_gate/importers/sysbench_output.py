"""What sysbench 1.0 prints: events and transactions per second, MiB per second, and the percentile of the latency.

Specified by https://github.com/akopytov/sysbench, README.md ("General command line options", ``--report-interval``,
``--percentile``) and the reports in src/sysbench.c. A file may hold several runs, one after another: each is a sample.
Where a run reports at intervals, these are the samples of its transactions per second.
"""

import re
from collections import defaultdict
from pathlib import Path

from hugepage_gate.importers.foreign_series import ForeignSeries, Origin, number, one_session
from hugepage_gate.input_file import read_text
from hugepage_gate.samples import SampleSet, Scalar
from hugepage_qa.errors import InputError

_RUN = re.compile(r"^sysbench (?P<version>[0-9][0-9.a-z-]{0,30}) \(", re.MULTILINE)
_THREADS = re.compile(r"^Number of threads: (?P<threads>[0-9]{1,9})$", re.MULTILINE)
_EVENTS = re.compile(r"^ +total number of events: +(?P<value>[0-9]{1,18})$", re.MULTILINE)
_SECONDS = re.compile(r"^ +total time: +(?P<value>[0-9.]{1,20})s$", re.MULTILINE)
_INTERVAL = re.compile(r"^\[ [0-9]+s \] thds: [0-9]+ tps: (?P<value>[0-9.]{1,20}) ", re.MULTILINE)
_TRANSACTIONS = re.compile(r"^ +transactions: +[0-9]+ +\((?P<value>[0-9.]{1,20}) per sec\.\)$", re.MULTILINE)
_MEMORY = re.compile(r"^[0-9.]+ MiB transferred \((?P<value>[0-9.]{1,20}) MiB/sec\)$", re.MULTILINE)
_PERCENTILE = re.compile(r"^ +(?P<name>[0-9]{1,2})th percentile: +(?P<value>[0-9.]{1,20})$", re.MULTILINE)


def read_sysbench(path: Path, origin: Origin) -> SampleSet:
    """Return the runs in the file ``path``. Raises InputError for a run that did not end, or with other threads."""
    text = read_text(path)
    starts = list(_RUN.finditer(text))
    if not starts:
        raise InputError(f"{path}: no line 'sysbench VERSION (...', expected the output of sysbench 1.0")
    ends = [*(one.start() for one in starts[1:]), len(text)]
    facts: dict[str, Scalar] = {"sysbench": starts[0]["version"]}
    samples: dict[tuple[str, str], list[float]] = defaultdict(list)
    for place, (start, end) in enumerate(zip(starts, ends, strict=True), 1):
        run, where = text[start.start() : end], f"{path}: run {place}"
        threads = _THREADS.search(run)
        of_run = {"sysbench": start["version"], **({"threads": int(threads["threads"])} if threads else {})}
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


def _figures(run: str, where: str) -> dict[tuple[str, str], list[float]]:
    """Return the figures of one run by metric and unit. Raises InputError."""
    events, seconds = _EVENTS.search(run), _SECONDS.search(run)
    duration = number(seconds["value"], where) if seconds else 0.0
    if events is None or duration <= 0:
        raise InputError(f"{where}: no 'total time' and 'total number of events', expected a run that ended")
    figures = {("sysbench-events", "events/s"): [int(events["value"]) / duration]}
    if transactions := _TRANSACTIONS.search(run):
        reported = [number(one["value"], where) for one in _INTERVAL.finditer(run)]
        figures["sysbench-transactions", "tps"] = reported or [number(transactions["value"], where)]
    if memory := _MEMORY.search(run):
        figures["sysbench-memory", "MiB/s"] = [number(memory["value"], where)]
    if percentile := _PERCENTILE.search(run):
        figures[f"sysbench-latency-p{percentile['name']}", "ms"] = [number(percentile["value"], where)]
    return figures
