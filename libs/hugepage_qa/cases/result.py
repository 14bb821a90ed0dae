"""What came of a case, whoever ran it: the one result, its verdict, and the exit code of many.

FAIL   the kernel, QEMU or libvirt did wrong
KNOWN  it did wrong exactly as a recorded kernel bug says, in a version that has this bug
ERROR  the suite or its surroundings broke; nothing is known about the product
SKIP   this machine or kernel cannot, with the fact that proves it
PASS   a comparison was made and there was no difference
"""

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple


class Verdict(enum.StrEnum):
    """How a case ended; from harmless to grave. That something broke beside a failure makes it none the less one."""

    PASS = "pass"  # noqa: S105 - no password
    SKIP = "skip"
    KNOWN = "known"
    ERROR = "error"
    FAIL = "fail"


#: verdicts after which somebody has to look: something broke, or the product did wrong
BAD = (Verdict.FAIL, Verdict.ERROR)
#: why a case was skipped that was left when the first failure ended the run
NOT_RUN = "not run: the first failure ended the run"
#: how the reason begins of a case for which memory was free, and not in one piece
FRAGMENTED = "memory is fragmented"
#: the same of one that takes memory away, where some has broken, even if it was mended
BROKEN_BEFORE = "memory of this machine has broken before"

_FROM_HARMLESS_TO_GRAVE = tuple(Verdict)


@dataclass(frozen=True)
class Result:
    """One case: its name (starting with ``/``), how it ended, why, how long it took, and the evidence.

    ``evidence`` is a text, such as what a serial console showed; ``logs`` are files. What judges boots and random
    programs adds what it found.
    """

    name: str
    verdict: Verdict
    reasons: tuple[str, ...] = ()
    seconds: float = 0.0
    evidence: str = ""
    logs: tuple[Path, ...] = ()

    @property
    def reason(self) -> str:
        """Why, in one line; empty where there is nothing to say."""
        return "; ".join(self.reasons)


def because(reason: str) -> tuple[str, ...]:
    """Return ``reason`` as the reasons of a Result, none where it is empty."""
    return (reason,) if reason else ()


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of ``verdicts``, PASS when there are none."""
    return max(verdicts, key=_FROM_HARMLESS_TO_GRAVE.index, default=Verdict.PASS)


class ExitCode(enum.IntEnum):
    """How every command of the suite ends, ``make qa`` and those in ``ci`` among them."""

    GOOD = 0
    BAD = 1
    #: nothing was decided
    UNDECIDED = 2
    #: the tool, its input or its surroundings are wrong
    BROKEN = 3

    @property
    def word(self) -> str:
        """What reports say: good, bad, undecided or broken."""
        return self.name.lower()


def exit_code(verdicts: Iterable[Verdict]) -> ExitCode:
    """Return the exit code of a run.

    A failure is one whatever broke beside it. Nothing at all is an error of the tool: it may not look like a pass.
    """
    seen = set(verdicts)
    if Verdict.FAIL in seen:
        return ExitCode.BAD
    if Verdict.ERROR in seen or not seen:
        return ExitCode.BROKEN
    return ExitCode.GOOD if seen & {Verdict.PASS, Verdict.KNOWN} else ExitCode.UNDECIDED


def one_line(text: str) -> str:
    """Return ``text`` as one printable line of valid Unicode, whatever a kernel or an exception put into it."""
    words = " ".join(text.split())
    encodable = words.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in encodable)


_NAME = re.compile(r"(?P<rule>.*?)(?:/(?P<size>[0-9]+[KMG]))?(?:@(?P<cpu>\w+))?", re.DOTALL)


class NameParts(NamedTuple):
    """The parts of the name of a result: its case, and the page size and the CPU, which can be empty."""

    rule: str
    size: str
    cpu: str


@cache
def name_parts(name: str) -> NameParts:
    """Return the parts of the name of a result."""
    match = _NAME.fullmatch(name)
    return NameParts(*(match.groups("") if match else (name, "", "")))


def rule_of(name: str) -> str:
    """Return the name of the case in that of a result, which may end with a page size and a CPU."""
    return name_parts(name).rule


def untested_rules(results: Iterable[tuple[str, Verdict]]) -> tuple[str, ...]:
    """Return the rules of which no result, given with its name, is more than a skip."""
    tested: dict[str, bool] = {}
    for name, verdict in results:
        rule = rule_of(name)
        tested[rule] = tested.get(rule, False) or verdict is not Verdict.SKIP
    return tuple(rule for rule, is_tested in tested.items() if not is_tested)
