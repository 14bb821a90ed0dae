"""How far the check of a kernel is, and what came of it: a bar on a terminal, elsewhere a line for each area."""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from rich.console import Console
from rich.progress import Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from hugepage_qa.cases.result import BAD, Result, Verdict, one_line
from hugepage_qa.errors import InputError
from hugepage_qa.report.kept_check import write_evidence, write_kernels, write_results
from hugepage_qa.report.terminal import closing_lines, print_reasons, progress_bar

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
        if self._console.is_terminal:
            self._progress = progress_bar(self._console, TextColumn("left"), TimeRemainingColumn())
            self._task = self._progress.add_task(self._state(), total=self._total, completed=len(self.results))
            self._progress.start()

    def add(self, result: Result) -> None:
        """Take one result."""
        self.results.append(result)
        self._keep(result)
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, advance=1, description=self._state())
        if result.verdict in _TOLD:
            told = one_line(f"{result.name}: {result.reason}")
            self._print(Text(f"{result.verdict.value:5} {told}"))
        elif self._progress is None and time.monotonic() - self._said > _BETWEEN_LINES:
            self._print(Text(f"{len(self.results)} of some {self._total} cases, {self._state()}, now {result.name}"))

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
