"""What sysbench 1.0 prints of one run, in numbers: for the importer, and for workloads that run it.

Specified by https://github.com/akopytov/sysbench, README.md ("General command line options", ``--report-interval``,
``--percentile``) and the reports in src/sysbench.c.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hugepage_gate.input_file import number

RUN = re.compile(r"^sysbench (?P<version>[0-9][0-9.a-z-]{0,30}) \(", re.MULTILINE)

_THREADS = re.compile(r"^Number of threads: (?P<value>[0-9]{1,9})$", re.MULTILINE)
_EVENTS = re.compile(r"^ +total number of events: +(?P<value>[0-9]{1,18})$", re.MULTILINE)
_SECONDS = re.compile(r"^ +total time: +(?P<value>[0-9.]{1,20})s$", re.MULTILINE)
_INTERVAL = re.compile(r"^\[ [0-9]+s \] thds: [0-9]+ tps: (?P<value>[0-9.]{1,20}) ", re.MULTILINE)
_TRANSACTIONS = re.compile(r"^ +transactions: +[0-9]+ +\((?P<value>[0-9.]{1,20}) per sec\.\)$", re.MULTILINE)
_RECONNECTS = re.compile(r"^ +reconnects: +(?P<value>[0-9]{1,18}) ", re.MULTILINE)
_WRITTEN = re.compile(r"^(?P<value>[0-9.]{1,20}) MiB transferred \(", re.MULTILINE)
_MEMORY = re.compile(r"^[0-9.]+ MiB transferred \((?P<value>[0-9.]{1,20}) MiB/sec\)$", re.MULTILINE)
_PERCENTILE = re.compile(r"^ +(?P<name>[0-9]{1,2})th percentile: +(?P<value>[0-9.]{1,20})$", re.MULTILINE)


@dataclass(frozen=True)
class SysbenchRun:
    """One run; None is what it does not tell.

    ``transactions`` are per second, as are those of the ``intervals`` that were reported meanwhile. ``written`` are
    MiB, ``memory`` MiB per second. ``percentile`` is which one of the latency, and its milliseconds.
    """

    threads: int | None
    events: float | None
    seconds: float | None
    transactions: float | None
    intervals: Sequence[float]
    reconnects: float | None
    written: float | None
    memory: float | None
    percentile: tuple[str, float] | None


def read_run(text: str, where: str) -> SysbenchRun:
    """Return the run in ``text``. Raises InputError, which begins with ``where``, for what looks like a number only."""

    def value(pattern: re.Pattern[str]) -> float | None:
        found = pattern.search(text)
        return number(found["value"], where) if found else None

    threads, percentile = _THREADS.search(text), _PERCENTILE.search(text)
    return SysbenchRun(
        threads=int(threads["value"]) if threads else None,
        events=value(_EVENTS),
        seconds=value(_SECONDS),
        transactions=value(_TRANSACTIONS),
        intervals=[number(one["value"], where) for one in _INTERVAL.finditer(text)],
        reconnects=value(_RECONNECTS),
        written=value(_WRITTEN),
        memory=value(_MEMORY),
        percentile=(percentile["name"], number(percentile["value"], where)) if percentile else None,
    )
