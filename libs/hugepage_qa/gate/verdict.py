"""What a comparison can end with, and the exit code of each."""

from collections.abc import Iterable
from enum import StrEnum


class Verdict(StrEnum):
    """How a metric, or a whole comparison, was judged."""

    PASS = "pass"  # noqa: S105 - no password
    IMPROVED = "improved"
    REGRESSED = "regressed"
    #: the data cannot decide, or not yet
    UNDECIDED = "undecided"
    #: another machine, or more than one thing has changed
    NOT_COMPARABLE = "not-comparable"
    #: something else used the machine meanwhile
    DISTURBED = "disturbed"
    #: too few blocks or boots in the baseline
    BASELINE_THIN = "baseline-thin"
    #: the newest block of the baseline is too old
    BASELINE_STALE = "baseline-stale"


#: the first of these that occurs among the metrics is the verdict on all of them
GRAVEST_FIRST = (
    Verdict.NOT_COMPARABLE,
    Verdict.REGRESSED,
    Verdict.DISTURBED,
    Verdict.BASELINE_THIN,
    Verdict.BASELINE_STALE,
    Verdict.UNDECIDED,
    Verdict.IMPROVED,
    Verdict.PASS,
)

_GOOD, _REGRESSED, _UNDECIDED = 0, 1, 2


def exit_code(verdict: Verdict) -> int:
    """Return 0 for pass and improved, 1 for regressed, 2 for what decides nothing; wrong input (3) has no verdict."""
    if verdict in (Verdict.PASS, Verdict.IMPROVED):
        return _GOOD
    return _REGRESSED if verdict is Verdict.REGRESSED else _UNDECIDED


def verdict_on_all(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict on a comparison from those on its metrics; without any it is undecided."""
    seen = set(verdicts)
    return next((verdict for verdict in GRAVEST_FIRST if verdict in seen), Verdict.UNDECIDED)
