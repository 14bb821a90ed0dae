"""What pgbench prints: transactions per second, and the latency.

Specified in https://www.postgresql.org/docs/current/pgbench.html: the report at the end, and ``-P`` for the progress,
whose lines are the samples where there are any. A file may hold several runs, one after another.
"""

import re
from collections import defaultdict
from pathlib import Path

from hugepage_gate.importers.foreign_series import ForeignSeries, Origin, number, one_session
from hugepage_gate.input_file import read_text
from hugepage_gate.samples import SampleSet, Scalar
from hugepage_qa.errors import InputError

_TPS = re.compile(
    # since PostgreSQL 14, and before
    r"tps = (?P<tps>[0-9.]{1,30}) \((?:without initial connection time|excluding connections establishing)\)"
)
_PROGRESS = re.compile(r"progress: [0-9.]+ s, (?P<tps>[0-9.]{1,30}) tps, lat (?P<latency>[0-9.]{1,30}) ms .*")
_LATENCY = re.compile(r"latency average = (?P<latency>[0-9.]{1,30}) ms")
_FACT = re.compile(
    r"(?P<key>transaction type|scaling factor|query mode|number of clients|number of threads): (?P<value>\S.{0,200})"
)


def read_pgbench(path: Path, origin: Origin) -> SampleSet:
    """Return the runs in the file ``path``. Raises InputError for runs that differ in their parameters."""
    facts: dict[str, Scalar] = {}
    progress: dict[str, list[float]] = defaultdict(list)
    final: dict[str, list[float]] = defaultdict(list)
    for line_number, line in enumerate(read_text(path).splitlines(), 1):
        where = f"{path}:{line_number}"
        if fact := _FACT.fullmatch(line):
            key = f"pgbench {fact['key']}"
            if facts.setdefault(key, fact["value"]) != fact["value"]:
                raise InputError(f"{where}: {line}, but before it was {facts[key]}; import the runs separately")
        elif one := _PROGRESS.fullmatch(line):
            progress["pgbench-tps"].append(number(one["tps"], where))
            progress["pgbench-latency"].append(number(one["latency"], where))
        elif one := _LATENCY.fullmatch(line):
            final["pgbench-latency"].append(number(one["latency"], where))
        elif one := _TPS.fullmatch(line):
            final["pgbench-tps"].append(number(one["tps"], where))
    if not final["pgbench-tps"]:
        raise InputError(f"{path}: no line 'tps = ... (without initial connection time)', expected a run that ended")
    samples = progress or final
    found = [
        ForeignSeries("pgbench-tps", "tps", [samples["pgbench-tps"]]),
        # each client waits for its transaction: the latency is the clients over the rate
        *(
            ForeignSeries("pgbench-latency", "ms", [values], same_as="pgbench-tps")
            for values in [samples["pgbench-latency"]]
            if values
        ),
    ]
    return one_session(path, origin, found, facts)
