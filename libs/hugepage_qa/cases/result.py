"""The result of one case, whoever ran it: the common coin of the reports."""

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.cases import verdict


class Outcome(enum.StrEnum):
    """How a case ended: a verdict of the suite (``verdict.Verdict``), or WARN, which only Avocado knows."""

    PASS = "pass"  # noqa: S105 - a verdict
    KNOWN = "known"
    SKIP = "skip"
    WARN = "warn"
    FAIL = "fail"
    ERROR = "error"


_VERDICTS = {
    outcome: verdict.Verdict.FAIL if outcome is Outcome.WARN else verdict.Verdict(outcome.value) for outcome in Outcome
}

# from harmless to grave; the order of verdict.exit_code(): that something broke beside it makes no failure undone
_SEVERITY = (Outcome.PASS, Outcome.SKIP, Outcome.KNOWN, Outcome.ERROR, Outcome.WARN, Outcome.FAIL)


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


def exit_code(results: Iterable[CaseResult]) -> int:
    """Return the exit code that ``results`` stand for, by the rule of ``verdict``.

    Nothing at all is an error of the tool: it may not look like a pass. A warning is bad to tmt, so it is here.
    """
    outcomes = {result.outcome for result in results}
    if not outcomes:
        return verdict.exit_code([verdict.Verdict.ERROR])
    return verdict.exit_code(_VERDICTS[outcome] for outcome in outcomes)


def one_line(text: str) -> str:
    """Return ``text`` as one printable line of valid Unicode, whatever a kernel or an exception put into it."""
    words = " ".join(text.split())
    encodable = words.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in encodable)
