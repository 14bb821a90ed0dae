"""Counters of the CPU that tell of TLB misses of code, read by perf; virtual machines mostly have none."""

import re
from pathlib import Path

from hugepage_qa.bench.program import find_program, run_program
from hugepage_qa.bench.unavailable import Unavailable
from hugepage_qa.errors import InputError

_INSTRUCTIONS, _MISSES = "instructions:u", "iTLB-load-misses:u"
#: perf stat -x: value;unit;event;run time;share of it that the counter was on, in percent;...
_LINE = re.compile(r"^(?P<value>[0-9]+|<not [a-z]+>);[^;]*;(?P<event>[^;]+);[0-9]*;(?P<share>[0-9.]+);", re.MULTILINE)
_WHOLE = 100.0
_PER_THOUSAND = 1000
_MORE_SECONDS = 30.0


def find_perf() -> Path:
    """Return perf. Raises Unavailable without it, and on a machine that does not count these events."""
    perf = find_program("perf", "linux-perf")
    try:
        parse_misses(run_program([*_command(perf), "--", "true"], deadline=_MORE_SECONDS))
    except InputError as error:
        raise Unavailable(f"this machine does not count {_MISSES}: {error}") from error
    return perf


def misses_of(perf: Path, process: int, seconds: float) -> float:
    """Return the iTLB misses of ``process`` per 1000 of its instructions, over so many seconds. Raises InputError."""
    words = [*_command(perf), "-p", str(process), "--", "sleep", str(seconds)]
    return parse_misses(run_program(words, deadline=seconds + _MORE_SECONDS))


def parse_misses(output: str) -> float:
    """Return misses per 1000 instructions. Raises InputError where a counter is missing, or was shared with others.

    What perf counted for a part of the time only it scales up; that is a guess.
    """
    found = {line["event"]: line for line in _LINE.finditer(output)}
    counts = {}
    for event in (_INSTRUCTIONS, _MISSES):
        line = found.get(event)
        if line is None or not line["value"].isdigit():
            raise InputError(f"perf: has no {event}, got {output[:200]!r}")
        if float(line["share"]) < _WHOLE:
            raise InputError(f"perf: counted {event} for {line['share']} % of the time, expected {_WHOLE:g} %")
        counts[event] = int(line["value"])
    if not counts[_INSTRUCTIONS]:
        raise InputError("perf: counted no instructions")
    return _PER_THOUSAND * counts[_MISSES] / counts[_INSTRUCTIONS]


def _command(perf: Path) -> list[str]:
    return [str(perf), "stat", "-x", ";", "-e", f"{_INSTRUCTIONS},{_MISSES}"]
