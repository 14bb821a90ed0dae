"""Boots for people: prediction, fact and difference side by side, and a matrix with its progress and its sum."""

import shlex
import time
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Column, Table
from rich.text import Text

from hugepage_qa.cases.boot.boot_judge import BootResult
from hugepage_qa.cases.result import BAD, NOT_RUN, Verdict
from hugepage_qa.kernel.facts import Facts
from hugepage_qa.kernel.log import huge_page_lines
from hugepage_qa.machine.describe import boot_observations
from hugepage_qa.oracle.compare import expected_value, is_met
from hugepage_qa.oracle.prediction import Expectation, Prediction, SumOf
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.report.terminal import STYLES, progress_bar
from hugepage_qa.sizes import format_size


def print_facts(console: Console, facts: Facts) -> None:
    """Print what a machine shows."""
    console.print(f"{facts.architecture} {facts.release}", markup=False)
    console.print(f"command line: {facts.command_line}", markup=False, soft_wrap=True)
    table = Table(Column("fact", overflow="fold"), Column("value", justify="right"))
    for subject, value in facts.observations().items():
        table.add_row(subject, Text(str(value)))
    console.print(table)


def print_prediction(console: Console, prediction: Prediction) -> None:
    """Print what a command line must do, each line with its rule and the source of the rule."""
    table = Table(Column("fact", overflow="fold"), "predicted", "rule", Column("source", overflow="fold"))
    for expectation in prediction.expectations:
        table.add_row(
            expectation.subject, Text(str(expectation.expected)), expectation.rule.name, Text(expectation.rule.source)
        )
    for message in prediction.messages:
        table.add_row("kernel log", Text(message.text), message.rule.name, Text(message.rule.source))
    console.print(table)
    _print_open(console, prediction)


def print_judgement(console: Console, judgement: BootResult, release: str) -> None:
    """Print one boot: every fact with its prediction, then the log, the differences and the verdict."""
    case = judgement.case
    console.print(f"{case.architecture} {case.cpu}, kernel {release}, {judgement.seconds:.1f} s", markup=False)
    if judgement.prediction is not None and judgement.facts is not None:
        console.print(_table(judgement.prediction, judgement.facts))
        for line in huge_page_lines(judgement.facts.log):
            console.print(f"log: {line.text}", markup=False, highlight=False, soft_wrap=True)
        _print_open(console, judgement.prediction)
    for difference in judgement.differences:
        console.print(Text(f"difference: {difference}", style="red"), soft_wrap=True)
    console.print(
        Text.assemble(
            (judgement.verdict.value, STYLES[judgement.verdict]), f" {judgement.reason}" if judgement.reason else ""
        ),
        soft_wrap=True,
    )


def _table(prediction: Prediction, facts: Facts) -> Table:
    observations = boot_observations(facts)
    table = Table(Column("fact", overflow="fold"), "predicted", "found", "difference", "rule")
    for expectation in prediction.expectations:
        met = is_met(expectation, observations)
        table.add_row(
            expectation.subject,
            Text(_predicted(expectation, observations)),
            Text(str(observations.get(expectation.subject, "absent"))),
            "" if met else Text("differs", style="bold red"),
            expectation.rule.name,
        )
    return table


def _predicted(expectation: Expectation, observations: dict[str, int | str]) -> str:
    # what a sum comes to is what a reader wants; its terms are in the table
    if isinstance(expectation.expected, SumOf):
        return expected_value(expectation, observations).partition(" ")[0]
    return str(expectation.expected)


def _print_open(console: Console, prediction: Prediction) -> None:
    for item in prediction.unjudged:
        console.print(f"not judged: {item.subject}: {item.reason}", markup=False, soft_wrap=True)
    for remark in prediction.remarks:
        console.print(f"remark: {remark}", markup=False, soft_wrap=True)


_WORTH_A_LINE = (*BAD, Verdict.KNOWN)


class MatrixReport:
    """Tells of every case as it ends, and of all of them at the end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._started = time.monotonic()
        self._total = 0
        self.judgements: list[BootResult] = []

    def start(self, architecture: str, kernel: KernelImage, total: int, seed: int | None, append: str) -> None:
        """Begin with ``total`` cases on one kernel."""
        self._total += total
        random = "" if seed is None else f", random with --seed {seed}"
        appended = f", appended: {append}" if append else ""
        self._print(Text(f"{architecture}: kernel {kernel.release}, {total} cases{random}{appended}"))
        if self._console.is_interactive:
            self._progress = progress_bar(self._console)
            self._task = self._progress.add_task(architecture, total=total)
            self._progress.start()

    def add(self, judgement: BootResult) -> None:
        """Take a boot, and print it; on a terminal only what is worth a line, beside the bar."""
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
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    @property
    def has_failed(self) -> bool:
        """Whether a case failed or broke."""
        return any(judgement.verdict in BAD for judgement in self.judgements)

    def finish(self, not_begun: Sequence[str] = ()) -> None:
        """Print the sum: how many cases ended how, why cases were skipped, and what the first failure left out.

        ``not_begun`` are architectures of which no case was run.
        """
        count = Counter(judgement.verdict for judgement in self.judgements)
        seconds = time.monotonic() - self._started
        parts = ", ".join(f"{count[verdict]} {verdict.value}" for verdict in Verdict)
        self._print(Text(f"{len(self.judgements)} cases in {seconds:.0f} s: {parts}"))
        reasons = Counter(one.reason for one in self.judgements if one.verdict is Verdict.SKIP)
        for reason, number in reasons.most_common():
            self._print(Text(f"  skip {number}: {reason}"))
        left = self._total - len(self.judgements)
        left_out = [*([f"{left} cases"] if left > 0 else []), *(f"all of {name}" for name in not_begun)]
        if left_out:
            self._print(Text(f"  {NOT_RUN}: {', '.join(left_out)}"))

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True, highlight=False)


def replay(judgement: BootResult) -> str:
    """Return the command that boots the same machine with the same words."""
    case = judgement.case
    memory = ",".join(format_size(size) for size in case.memory)
    options = f"--arch {case.architecture} --cpu {case.cpu} --memory {memory}"
    options += f" --cpus {case.cpus}" if case.cpus > 1 else ""
    return f"hugepage-qa boot {shlex.quote(judgement.command_line)} {options}"
