"""The result of one case, whoever ran it: the common coin of the reports."""

import enum
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


class Outcome(enum.StrEnum):
    """How a case ended. PASS to SKIP are verdicts of the suite; WARN comes from Avocado alone."""

    PASS = "pass"  # noqa: S105 - a verdict
    KNOWN = "known"
    SKIP = "skip"
    WARN = "warn"
    FAIL = "fail"
    ERROR = "error"


class ExitCode(enum.IntEnum):
    """Exit codes of every command of the suite."""

    GOOD = 0
    BAD = 1
    UNDECIDED = 2
    WRONG = 3


# from harmless to grave
_SEVERITY = (Outcome.PASS, Outcome.SKIP, Outcome.KNOWN, Outcome.WARN, Outcome.FAIL, Outcome.ERROR)


@dataclass(frozen=True)
class CaseResult:
    """One case: its name (starting with ``/``), how it ended, why, how long it took, and the evidence."""

    name: str
    outcome: Outcome
    reasons: tuple[str, ...] = ()
    seconds: float = 0.0
    logs: tuple[Path, ...] = ()


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the gravest of ``outcomes``, PASS when there are none."""
    return max(outcomes, key=_SEVERITY.index, default=Outcome.PASS)


def exit_code(results: Iterable[CaseResult]) -> ExitCode:
    """Return the exit code that ``results`` stand for.

    Nothing at all is an error of the tool, and all cases skipped decide nothing: neither may look like a pass.
    """
    outcomes = Counter(result.outcome for result in results)
    if not outcomes or outcomes[Outcome.ERROR]:
        return ExitCode.WRONG
    if outcomes[Outcome.FAIL] or outcomes[Outcome.WARN]:
        return ExitCode.BAD
    return ExitCode.UNDECIDED if set(outcomes) == {Outcome.SKIP} else ExitCode.GOOD


def one_line(text: str) -> str:
    """Return ``text`` as one printable line of valid Unicode, whatever a kernel or an exception put into it."""
    words = " ".join(text.split())
    encodable = words.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in encodable)
