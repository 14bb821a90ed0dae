"""A running matrix for people: a progress bar on a terminal, plain lines elsewhere, and the sum at the end."""

import shlex
import time
from collections import Counter

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from hugepage_qa.matrix.judge import Judgement, Kernel
from hugepage_qa.report.boot_table import STYLES
from hugepage_qa.sizes import format_size
from hugepage_qa.verdict import Verdict

_WORTH_A_LINE = (Verdict.FAIL, Verdict.ERROR, Verdict.KNOWN)


class MatrixReport:
    """Tells of every case as it ends, and of all of them at the end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._started = time.monotonic()
        self.judgements: list[Judgement] = []

    def start(self, architecture: str, kernel: Kernel, total: int, seed: int | None, append: str) -> None:
        """Begin with ``total`` cases on one kernel."""
        random = "" if seed is None else f", random with --seed {seed}"
        appended = f", appended: {append}" if append else ""
        self._print(Text(f"{architecture}: kernel {kernel.release}, {total} cases{random}{appended}"))
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._progress = Progress(*columns, console=self._console, transient=True)
            self._task = self._progress.add_task(architecture, total=total)
            self._progress.start()

    def add(self, judgement: Judgement) -> None:
        """Tell of one case."""
        self.judgements.append(judgement)
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task)
            if judgement.verdict not in _WORTH_A_LINE:
                return
        why = f": {judgement.reason}" if judgement.reason else ""
        words = f" [{replay(judgement)}]" if judgement.verdict in _WORTH_A_LINE else ""
        self._print(
            Text.assemble(
                (f"{judgement.verdict.value:5}", STYLES[judgement.verdict]),
                f" {judgement.case.architecture}{judgement.name} {judgement.seconds:.1f} s{words}{why}",
            )
        )

    def stop(self) -> None:
        """Take the progress bar away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def finish(self) -> None:
        """Print the sum: how many cases ended how, and why cases were skipped."""
        count = Counter(judgement.verdict for judgement in self.judgements)
        seconds = time.monotonic() - self._started
        parts = ", ".join(f"{count[verdict]} {verdict.value}" for verdict in Verdict)
        self._print(Text(f"{len(self.judgements)} cases in {seconds:.0f} s: {parts}"))
        reasons = Counter(one.reason for one in self.judgements if one.verdict is Verdict.SKIP)
        for reason, number in reasons.most_common():
            self._print(Text(f"  skip {number}: {reason}"))

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True, highlight=False)


def replay(judgement: Judgement) -> str:
    """Return the command that boots the same machine with the same words."""
    case = judgement.case
    memory = ",".join(format_size(size) for size in case.memory)
    options = f"--arch {case.architecture} --cpu {case.cpu} --memory {memory}"
    options += f" --cpus {case.cpus}" if case.cpus > 1 else ""
    return f"hugepage-qa boot {shlex.quote(judgement.command_line)} {options}"
