"""What boots, reboots, live cases and random programs have in common: from what came of one to its verdict.

What was found decides it, and a machine that was lost is tried again before it is blamed on anybody.
"""

from collections import Counter
from collections.abc import Callable, Collection
from typing import TypeVar

from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.qemu.lost_machine import Loss, MachineLost

T = TypeVar("T")

#: how a machine is lost by what the kernel did, and by what it had no part in
BY_THE_KERNEL = (Loss.PANICKED, Loss.LOCKED_UP)
BY_THE_EMULATOR = (Loss.EMULATION_BROKE, Loss.EMULATOR_ENDED, Loss.STARVED)

#: how often it must be lost in the same way before that counts: the host may have been busy
_TRIES = 2
#: QEMU 7.2 broke in 5 of 72 boots of Linux 6.12
_TRIES_OF_EMULATION = 5


def decide(*, found: str = "", known: str = "", lacking: str = "", passed: str = "") -> tuple[Verdict, str]:
    """Return the worst verdict that there is something for, and that text as its reason; a pass needs none.

    ``found`` are differences, ``known`` the known issues that explain all of them, ``lacking`` is the fact by which it
    could not be judged, ``passed`` what is told with a pass.
    """
    for verdict, reason in ((Verdict.FAIL, found), (Verdict.KNOWN, known), (Verdict.SKIP, lacking)):
        if reason:
            return verdict, reason
    return Verdict.PASS, passed


def try_again(act: Callable[[], T], at_once: Collection[Loss] = BY_THE_KERNEL) -> tuple[T, MachineLost | None]:
    """Return what ``act`` returns, and how its machine was lost the last time before, if it was.

    Raises MachineLost where it is lost in the same way time and again, or once in one of those that count ``at_once``.
    """
    losses: Counter[Loss] = Counter()
    before = None
    while True:
        try:
            return act(), before
        except MachineLost as lost:
            losses[lost.loss] += 1
            tries = _TRIES_OF_EMULATION if lost.loss is Loss.EMULATION_BROKE else _TRIES
            if lost.loss in at_once or losses[lost.loss] >= tries:
                raise
            before = lost


def lost_result(name: str, lost: MachineLost, seconds: float) -> Result:
    """Return the result of a case whose machine was lost for good: a failure only by what the kernel did."""
    verdict = Verdict.FAIL if lost.loss in BY_THE_KERNEL else Verdict.ERROR
    return Result(name, verdict, (str(lost),), seconds, lost.evidence)
