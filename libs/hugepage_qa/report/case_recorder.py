"""What a test tells of its cases: in its whiteboard, which ``avocado_results`` reads, and of each as it comes.

The latter is a line of JSON for each finished case, from the tests to whoever shows them.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from hugepage_qa.cases.result import BAD, Result, Verdict, one_line


class CaseRecorder:
    """Collects judgements; ``text`` is the whiteboard at any time, so a test that is interrupted keeps its cases."""

    def __init__(self, data: Path) -> None:
        """Evidence is written into the directory ``data``, the test's ``outputdir``."""
        self._data = data
        self._cases: list[dict[str, object]] = []

    def add(self, case: Result) -> None:
        """Keep a case that has ended, and write its evidence to a file of its own."""
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


_POLL_SECONDS = 0.1


def append_result(file: Path, result: Result) -> None:
    """Append ``result`` to ``file``, without its evidence and logs."""
    line = json.dumps([result.name, result.verdict.value, list(result.reasons), result.seconds])
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


@contextmanager
def shown_as_they_come(file: Path, show: Callable[[Result], None]) -> Iterator[None]:
    """Make ``file``, and call ``show`` in a thread for each result that is appended to it until the block has ended."""
    file.touch()
    ended = Event()
    thread = Thread(target=_follow, args=(file, show, ended))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _follow(file: Path, show: Callable[[Result], None], ended: Event) -> None:
    with file.open(encoding="utf-8") as lines:
        begun = ""
        is_last = False
        while not is_last:
            # what was appended before the end is still read after it
            is_last = ended.wait(_POLL_SECONDS)
            for piece in lines:
                begun += piece
                if begun.endswith("\n"):
                    show(_parse(begun))
                    begun = ""


def _parse(line: str) -> Result:
    name, verdict, reasons, seconds = json.loads(line)
    return Result(name, Verdict(verdict), tuple(reasons), seconds)
