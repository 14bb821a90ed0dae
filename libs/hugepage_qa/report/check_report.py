"""How far the check of a kernel is, what came of it, and what ``check-kernel --output`` keeps of it.

On a terminal there is a bar, elsewhere a line for each area. Kernels, results and evidence of failures are read again.
"""

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

from rich.console import Console
from rich.progress import Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from hugepage_qa.cases.result import BAD, Result, Verdict, one_line
from hugepage_qa.durable import write_durably
from hugepage_qa.errors import InputError
from hugepage_qa.report.terminal import closing_lines, print_reasons, progress_bar
from hugepage_qa.schema import build, read_document

#: it is written last: a check whose directory has none was cut off
RESULTS = "results.json"
#: architecture -> release of the kernel that was checked there
KERNELS = "kernels.json"


def write_kernels(directory: Path, kernels: Mapping[str, str]) -> None:
    """Write the releases of ``kernels``, by architecture, into ``directory``. Raises OSError."""
    write_durably(directory / KERNELS, json.dumps(dict(kernels)))


def write_results(directory: Path, results: Sequence[Result]) -> None:
    """Write ``results`` into ``directory``. Raises OSError."""
    told = [
        {"name": one.name, "verdict": one.verdict, "reasons": one.reasons, "seconds": round(one.seconds, 2)}
        for one in results
    ]
    write_durably(directory / RESULTS, json.dumps(told, indent=1))


def write_evidence(directory: Path, result: Result) -> None:
    """Write the evidence of ``result`` into a file of its own in ``directory``. Raises OSError."""
    text = f"{result.name}: {result.verdict.value}: {result.reason}\n{result.evidence}"
    write_durably(_evidence_file(directory, result.name), text.encode(errors="replace"))


def read_check(directory: Path) -> list[Result]:
    """Return the results in ``directory``, with their evidence. Raises InputError where they are none."""
    results = [build(Result, entry) for entry in _read(directory / RESULTS, "check-results")]
    return [replace(result, evidence=_evidence(directory, result)) for result in results]


def read_kernels(directory: Path) -> dict[str, str]:
    """Return architecture -> release of the kernels of the check in ``directory``. Raises InputError."""
    kernels: dict[str, str] = _read(directory / KERNELS, "check-kernels")
    return kernels


def _read(file: Path, schema: str) -> Any:
    return read_document(file, __package__, schema, f"remove {file.parent}, and check that kernel again")


def _evidence(directory: Path, result: Result) -> str:
    file = _evidence_file(directory, result.name)
    # its first line tells the result once more
    return file.read_text(encoding="utf-8", errors="replace").partition("\n")[2] if file.is_file() else ""


def _evidence_file(directory: Path, name: str) -> Path:
    return directory / f"{name.strip('/').replace('/', '-')}.log"


_TOLD = (*BAD, Verdict.KNOWN)
#: seconds between two lines where there is no bar
_BETWEEN_LINES = 15.0


class CheckReport:
    """Tells of results as they come; ``finished`` may be called by any thread."""

    def __init__(self, console: Console, output: Path | None) -> None:
        """Keep results and evidence in ``output``, a directory to be made. Raises InputError where it is there."""
        self._console = console
        self._output = output
        self._lock = Lock()
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._said = time.monotonic()
        self._total = 0
        self.results: list[Result] = []
        #: architecture -> release of the kernel
        self.kernels: dict[str, str] = {}
        if output is not None and (output.exists() or output.is_symlink()):
            raise InputError(f"--output {output}: is there already; expected a new directory")

    def start(self, title: str, total: int) -> None:
        """Begin with some ``total`` further results. Raises InputError where no directory for them can be made."""
        self._make_output()
        self._total = len(self.results) + total
        self._print(Text(title))
        if self._console.is_interactive:
            self._progress = progress_bar(self._console, TextColumn("left"), TimeRemainingColumn())
            self._task = self._progress.add_task(self._state(), total=self._total, completed=len(self.results))
            self._progress.start()

    def add(self, result: Result) -> None:
        """Take a result, keep it on the disk, and move the bar."""
        self.results.append(result)
        self._keep(result)
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, advance=1, description=self._state())
        if result.verdict in _TOLD:
            told = one_line(f"{result.name}: {result.reason}")
            self._print(Text(f"{result.verdict.value:5} {told}"))
        elif self._is_silent():
            self._print(Text(f"{len(self.results)} of some {self._total} cases, {self._state()}, now {result.name}"))

    def under_way(self, words: str) -> None:
        """Tell how far something is that has no result for long."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=f"{self._state()}, {words}")
        elif self._is_silent():
            self._print(Text(f"      {words}"))

    def finished(self, name: str, results: Sequence[Result], seconds: float) -> None:
        """Tell that the area ``name`` is done."""
        if self._progress is None:
            count = Counter(result.verdict for result in results)
            parts = ", ".join(f"{count[verdict]} {verdict.value}" for verdict in Verdict if count[verdict])
            self._print(Text(f"      {name}: {parts or 'no case for this machine'}, {seconds:.1f} s"))

    def stop(self) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def finish(self) -> None:
        """Print what went wrong, the sum, and why cases were skipped; what is known was told as it came."""
        print_reasons(self._console, self.results, BAD)
        for line in closing_lines(self.results):
            self._print(Text(line))
        if self._output is not None:
            write_kernels(self._output, self.kernels)
            write_results(self._output, self.results)
            self._print(Text(f"results and evidence: {self._output}"))

    def _make_output(self) -> None:
        """Make the directory when there will be results: wrong input is to leave nothing."""
        if self._output is not None:
            try:
                self._output.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"--output {self._output}: {error.strerror}; expected a new directory") from error

    def _is_silent(self) -> bool:
        return self._progress is None and time.monotonic() - self._said > _BETWEEN_LINES

    def _state(self) -> str:
        bad = sum(result.verdict in BAD for result in self.results)
        return f"{bad} failed"

    def _keep(self, result: Result) -> None:
        """Write down the evidence of what went wrong."""
        if self._output is not None and result.verdict in BAD and result.evidence:
            write_evidence(self._output, result)

    def _print(self, text: Text) -> None:
        with self._lock:
            self._said = time.monotonic()
            self._console.print(text, soft_wrap=True, highlight=False)
