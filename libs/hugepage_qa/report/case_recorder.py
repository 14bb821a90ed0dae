"""The whiteboard of a test that judges many cases, which ``avocado_results`` reads."""

import json
import re
from pathlib import Path

from hugepage_qa.cases.result import BAD, Result, Verdict, one_line


class CaseRecorder:
    """Collects judgements; ``text`` is the whiteboard at any time, so a test that is interrupted keeps its cases."""

    def __init__(self, data: Path) -> None:
        """Evidence is written into the directory ``data``, the test's ``outputdir``."""
        self._data = data
        self._cases: list[dict[str, object]] = []

    def add(self, case: Result) -> None:
        """Record one case and write its evidence."""
        self._cases.append(
            {
                "name": case.name,
                "verdict": case.verdict.value,
                "reason": one_line(case.reason),
                "log": self._write_evidence(case),
                "seconds": round(case.seconds, 3),
            }
        )

    def _write_evidence(self, case: Result) -> str | None:
        if not case.evidence:
            return None
        label = re.sub(r"[^\w.=+-]+", "-", case.name).strip(".-")
        name = f"{len(self._cases) + 1:04}-{label[:100]}.log"
        (self._data / name).write_text(case.evidence, encoding="utf-8", errors="backslashreplace")
        return name

    @property
    def text(self) -> str:
        """The whiteboard: the contract is ``schemas/whiteboard.json``; empty as long as there is no case."""
        return json.dumps({"cases": self._cases}) if self._cases else ""

    def summary(self, *outcomes: Verdict) -> str:
        """Return ``3 of 40 cases: /a: reason; ...`` for the cases with one of ``outcomes``, empty without any."""
        chosen = [case for case in self._cases if case["verdict"] in outcomes]
        named = "; ".join(f"{case['name']}: {case['reason']}" for case in chosen)
        return f"{len(chosen)} of {len(self._cases)} cases: {named}" if chosen else ""

    @property
    def has_failed(self) -> bool:
        """Whether a case failed or broke."""
        return any(case["verdict"] in BAD for case in self._cases)

    @property
    def all_skipped(self) -> bool:
        """Whether there are cases and none of them ran."""
        return bool(self._cases) and all(case["verdict"] == Verdict.SKIP for case in self._cases)
