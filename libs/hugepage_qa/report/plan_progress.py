"""How far a run of tmt is, where it does not say so itself: a line for each test that has ended, and for one that runs.

On a terminal tmt shows that. Elsewhere it is silent from the first test to the last, which may take an hour.
"""

import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from hugepage_qa.cases.result import Verdict
from hugepage_qa.report.tmt_results import read_results

_LOOK_SECONDS = 1.0
#: without news
_SILENT_SECONDS = 60.0
#: what tmt writes for a test when that begins
_AT_THE_BEGINNING = "tmt-test-topology.sh"
_SERIAL_NUMBER = re.compile(r"-\d+$")


class PlanProgress:
    """Looks at the directory ``run`` of a run of tmt as long as the block lasts, and gives lines to ``say``."""

    def __init__(self, run: Path, say: Callable[[str], None]) -> None:
        self._run = run
        self._say = say
        self._told: set[Path] = set()
        self._last = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        # the last test has just ended
        with suppress(OSError):
            self.look(is_over=True)

    def look(self, *, is_over: bool = False) -> None:
        """Tell what has ended since the last look, or what runs if there was nothing to tell for a minute.

        Results may be there before a test has ended, such as those of a chain of reboots that goes on: a test has ended
        when another one has begun on its guest, or all of them are over.
        """
        files = self._run.glob(f"plans/**/execute/data/guest/**/{_AT_THE_BEGINNING}")
        begun = {file.parent: file.stat().st_mtime for file in sorted(files, key=lambda one: one.stat().st_mtime)}
        running = set() if is_over else set({_guest(test): test for test in begun}.values())
        for test in begun:
            results = test / "data" / "results.yaml"
            if test not in self._told | running and results.is_file():
                self._told.add(test)
                self._print(f"{_name(test)}: {_sum(results)}; {len(self._told)} of {self._tests()} tests")
        if time.monotonic() - self._last > _SILENT_SECONDS:
            for test in running - self._told:
                self._print(f"{_name(test)} runs for {(time.time() - begun[test]) / 60:.0f} min")

    def _print(self, line: str) -> None:
        self._last = time.monotonic()
        self._say(f"      {line}")

    def _tests(self) -> int:
        """Return how many tests the plan has (discover/tests.yaml)."""
        files = self._run.glob("plans/**/discover/tests.yaml")
        return sum(file.read_text(encoding="utf-8").count("serial-number:") for file in files)

    def _watch(self) -> None:
        while not self._is_over.wait(_LOOK_SECONDS):
            # tmt moves and removes files meanwhile
            with suppress(OSError):
                self.look()


def _guest(test: Path) -> str:
    return test.parts[test.parts.index("guest") + 1]


def _name(test: Path) -> str:
    """Return the name of the test in the directory ``test``: guest/NAME/tests/thp/defrag-4."""
    return _SERIAL_NUMBER.sub("", "/" + "/".join(test.parts[test.parts.index("guest") + 2 :]))


def _sum(file: Path) -> str:
    try:
        count = Counter(result.verdict for result in read_results(file))
    except ValueError:
        # who reads all results in the end says what is wrong with them
        return "ended"
    return ", ".join(f"{count[verdict]} {verdict.value}" for verdict in Verdict if count[verdict]) or "ended"
