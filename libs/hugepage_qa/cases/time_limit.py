"""A run that is to take so long and no longer: what takes least comes first, and what no time is left for is a skip.

How long a case takes is known from the last run on this machine, and else from one that was measured: on another
machine, and for pages of another size, it takes longer or shorter, but much the same ones take longest.
"""

import json
import re
import time
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources

#: why a case was skipped that was left when the time was over
NO_TIME = "not run: the time that the run was given is over"
#: what a case is taken to take that nobody has measured
_CASE_SECONDS = 1.0
_MEASURED = "case_seconds.json"
#: how the name of a result ends that is of one page size
_SIZE = re.compile(r"\d+[KMG]")


class TimeLimit:
    """So many seconds from now on; None for as long as it takes."""

    def __init__(self, seconds: float | None) -> None:
        self._ends = None if seconds is None else time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be begun."""
        return self._ends is not None and time.monotonic() >= self._ends

    def share(self, part: float) -> "TimeLimit":
        """Return a limit of that part, 0 to 1, of what is left."""
        return TimeLimit(None if self._ends is None else max(self._ends - time.monotonic(), 0) * part)


def step_of(seconds: float) -> int:
    """Return when a case comes that takes so long where those that take least come first: with its like, by twos."""
    return int(seconds).bit_length()


def seconds_by_name(took: Mapping[str, float]) -> Callable[[str], float]:
    """Return what tells the seconds of a result by its name; ``took`` are those of the last run, by the same names."""
    measured = _measured()

    def seconds(name: str) -> float:
        of_any_size = name.rpartition("/")[0]
        return took.get(name, measured.get(name, measured.get(of_any_size, _CASE_SECONDS)))

    return seconds


@cache
def _measured() -> Mapping[str, float]:
    """Return what results took when all were measured, and what the longest one of each case did."""
    table: dict[str, float] = json.loads((resources.files(__package__) / _MEASURED).read_text(encoding="utf-8"))
    longest: dict[str, float] = {}
    for name, seconds in table.items():
        of_any_size, _, size = name.rpartition("/")
        if _SIZE.fullmatch(size):
            longest[of_any_size] = max(seconds, longest.get(of_any_size, 0.0))
    return longest | table
