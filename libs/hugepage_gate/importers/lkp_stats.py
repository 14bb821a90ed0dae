"""LKP: the results of one run (``stats.json``), or of several runs of one job (``matrix.json``), each of them a block.

Specified by https://github.com/intel/lkp-tests, lib/matrix.rb: names of metrics -> a number, or one per run.
``stats_source`` names the runs; a matrix without it is what was seen from second to second inside of one run. A metric
is taken if the end of its name is one that lists as good or bad in etc/index-perf-all.yaml: the hundreds of counters of
monitors have no good values. So are those left out that not every run has.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from hugepage_gate.importers.foreign_series import ForeignSeries, Origin, one_session
from hugepage_gate.input_file import read_output
from hugepage_gate.samples import Direction, SampleSet
from hugepage_qa.errors import InputError

_HIGHER = re.compile(
    r".*(?:throughput|score|ops|tps|bps|fps|iops|bandwidth|MBps|KBps|GBps|Mbps|Kbps|flops|works|transactions"
    r"|per_sec|per_second|per-min|per_min|per_sec_per_cpu|/s|/sec|GB_sec_thread|GB_sec_total)",
    re.IGNORECASE,
)
_LOWER = re.compile(
    r".*(?:[._-](?:ns|us|ms|msec|usec|seconds|nsec_per_msg|usec_per_loop|jitter|RTT)"
    r"|(?:elapsed|build)[_-]time|buildtime_per_iteration|[._]duration|_ns_time)",
    re.IGNORECASE,
)

#: programs that watch while a test runs (monitors/ of LKP): their rates are neither good nor bad
_MONITORS = re.compile(
    r"boot-time|cpuidle|diskstats|ftrace|interrupts|iostat|kmsg|latency_stats|meminfo|mpstat|nfsstat|"
    r"numa-meminfo|numa-numastat|numa-vmstat|perf-c2c|perf-profile|perf-sched|perf-stat|pidstat|pmeter|"
    r"proc-stat|proc-vmstat|sched_debug|slabinfo|softirqs|turbostat|uptime|vmstat"
)


def read_lkp(path: Path, origin: Origin) -> SampleSet:
    """Return the metrics of a test in the file ``path``. Raises InputError."""
    document = read_output(path, "lkp", "stats.json or matrix.json of LKP")
    source = document.pop("stats_source", None)
    runs = len(source) if isinstance(source, list) else 1
    columns = {
        name: value if isinstance(value, list) else [value]
        for name, value in document.items()
        if not isinstance(value, str)
    }
    if runs == 1 and any(len(values) > 1 for values in columns.values()):
        raise InputError(f"{path}: a matrix without the list stats_source is of one run; expected its stats.json")
    found = [
        # nobody says the unit; what the name ends in, it is
        ForeignSeries(name, name.rpartition(".")[2], [[value] for value in values], good, are_sessions=runs > 1)
        for name, values in columns.items()
        if len(values) == runs and (good := _direction(name)) is not None
    ]
    return one_session(path, origin, found)


def _direction(name: str) -> Direction | None:
    """Return which values of the metric called ``name`` are good, None where it does not tell."""
    if _MONITORS.fullmatch(name.partition(".")[0]):
        return None
    return next((good for pattern, good in _GOOD.items() if pattern.fullmatch(name)), None)


_GOOD: Mapping[re.Pattern[str], Direction] = {_LOWER: Direction.LOWER, _HIGHER: Direction.HIGHER}
