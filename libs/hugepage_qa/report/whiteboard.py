"""What an Avocado test that judges many cases leaves for the reports: outcomes in its whiteboard, logs in its data."""

import enum
import json
import re
from pathlib import Path
from typing import Protocol

from hugepage_qa.report.case_result import Outcome, one_line


class JudgedCase(Protocol):
    """What is read of a judgement (``hugepage_qa.matrix``)."""

    @property
    def name(self) -> str:
        """The name of the case, starting with ``/``."""

    @property
    def verdict(self) -> enum.Enum:
        """Its value is pass, known, fail, error or skip."""

    @property
    def reason(self) -> str:
        """Why, in one line; may be empty."""

    @property
    def seconds(self) -> float:
        """How long the case took."""

    @property
    def serial(self) -> str:
        """The text of the serial log; may be empty."""


class CaseRecorder:
    """Collects judgements; ``text`` is the whiteboard at any time, so a test that is interrupted keeps its cases."""

    def __init__(self, data: Path) -> None:
        """Serial logs are written into the directory ``data``, the test's ``outputdir``."""
        self._data = data
        self._cases: list[dict[str, object]] = []

    def add(self, case: JudgedCase) -> None:
        """Record one case and write its serial log."""
        self._cases.append(
            {
                "name": case.name,
                "verdict": Outcome(case.verdict.value).value,
                "reason": one_line(case.reason),
                "log": self._write_serial(case),
                "seconds": round(case.seconds, 3),
            }
        )

    def _write_serial(self, case: JudgedCase) -> str | None:
        if not case.serial:
            return None
        label = re.sub(r"[^\w.=+-]+", "-", case.name).strip(".-")
        name = f"{len(self._cases) + 1:04}-{label[:100]}.log"
        (self._data / name).write_text(case.serial, encoding="utf-8", errors="backslashreplace")
        return name

    @property
    def text(self) -> str:
        """The whiteboard: the contract is ``schemas/whiteboard.json``; empty as long as there is no case."""
        return json.dumps({"cases": self._cases}) if self._cases else ""

    def summary(self, *outcomes: Outcome) -> str:
        """Return ``3 of 40 cases: /a: reason; ...`` for the cases with one of ``outcomes``, empty without any."""
        chosen = [case for case in self._cases if case["verdict"] in outcomes]
        named = "; ".join(f"{case['name']}: {case['reason']}" for case in chosen)
        return f"{len(chosen)} of {len(self._cases)} cases: {named}" if chosen else ""

    @property
    def all_skipped(self) -> bool:
        """Whether there are cases and none of them ran."""
        return bool(self._cases) and all(case["verdict"] == Outcome.SKIP for case in self._cases)
