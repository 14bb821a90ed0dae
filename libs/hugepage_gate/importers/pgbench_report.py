"""What pgbench prints of its runs, in numbers: for the importer, and for workloads that run it.

Specified in https://www.postgresql.org/docs/current/pgbench.html: the report at the end, and ``-P`` for the progress.
Runs may follow one another.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hugepage_gate.input_file import number

_TPS = re.compile(
    # since PostgreSQL 14, and before
    r"tps = (?P<value>[0-9.]{1,30}) \((?:without initial connection time|excluding connections establishing)\)"
)
_PROGRESS = re.compile(r"progress: [0-9.]+ s, (?P<tps>[0-9.]{1,30}) tps, lat (?P<latency>[0-9.]{1,30}) ms .*")
_LATENCY = re.compile(r"latency average = (?P<value>[0-9.]{1,30}) ms")
_PROCESSED = re.compile(r"number of transactions actually processed: (?P<value>[0-9]{1,18})(?:/[0-9]+)?")
_FAILED = re.compile(r"number of failed transactions: (?P<value>[0-9]{1,18}) .*")
_FACT = re.compile(
    r"(?P<key>transaction type|scaling factor|query mode|number of clients|number of threads): (?P<value>\S.{0,200})"
)


@dataclass(frozen=True)
class PgbenchRun:
    """One run that ended: transactions per second, without the time to connect; None is what it does not tell.

    ``progress`` are transactions per second and milliseconds of latency at intervals, ``facts`` its parameters.
    """

    tps: float
    latency: float | None = None
    processed: float | None = None
    failed: float | None = None
    progress: Sequence[tuple[float, float]] = ()
    facts: Mapping[str, str] = field(default_factory=dict)


def read_runs(text: str, where: str) -> list[PgbenchRun]:
    """Return the runs in ``text``. Raises InputError, which begins with ``where``, for broken numbers."""
    runs = []
    numbers: dict[str, float] = {}
    progress: list[tuple[float, float]] = []
    facts: dict[str, str] = {}
    patterns = {"latency": _LATENCY, "processed": _PROCESSED, "failed": _FAILED}
    for place, line in enumerate(text.splitlines(), 1):
        here = f"{where}:{place}"
        if fact := _FACT.fullmatch(line):
            facts[fact["key"]] = fact["value"]
        elif one := _PROGRESS.fullmatch(line):
            progress.append((number(one["tps"], here), number(one["latency"], here)))
        elif one := _TPS.fullmatch(line):
            runs.append(PgbenchRun(number(one["value"], here), **numbers, progress=progress, facts=facts))
            numbers, progress, facts = {}, [], {}
        else:
            found = {name: pattern.fullmatch(line) for name, pattern in patterns.items()}
            numbers |= {name: number(one["value"], here) for name, one in found.items() if one}
    return runs
