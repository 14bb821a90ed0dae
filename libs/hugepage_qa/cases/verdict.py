"""The one rule for the outcome of a case.

FAIL   the kernel, QEMU or libvirt did wrong
KNOWN  it did wrong exactly as a recorded kernel bug says, in a version that has this bug
ERROR  the suite or its surroundings broke; nothing is known about the product
SKIP   this machine or kernel cannot, with the fact that proves it
PASS   a comparison was made and there was no difference
"""

from collections.abc import Iterable
from enum import Enum


class Verdict(Enum):
    """How a case ended."""

    PASS = "pass"  # noqa: S105 - no password
    KNOWN = "known"
    FAIL = "fail"
    ERROR = "error"
    SKIP = "skip"


def exit_code(verdicts: Iterable[Verdict]) -> int:
    """Return the exit code of a run: 0 good, 1 the product is bad, 2 nothing was decided, 3 the tool broke.

    A failure is one whatever broke beside it.
    """
    seen = set(verdicts)
    if Verdict.FAIL in seen:
        return 1
    if Verdict.ERROR in seen:
        return 3
    return 0 if seen & {Verdict.PASS, Verdict.KNOWN} else 2
