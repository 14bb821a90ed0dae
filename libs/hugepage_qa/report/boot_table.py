"""One boot for people: prediction, fact and difference side by side."""

import os
import sys

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from hugepage_qa.kernel.facts import Facts
from hugepage_qa.kernel.log import huge_page_lines
from hugepage_qa.machine.describe import boot_observations
from hugepage_qa.matrix.judge import Judgement
from hugepage_qa.model.compare import expected_value, is_met
from hugepage_qa.model.prediction import Expectation, Prediction, SumOf
from hugepage_qa.verdict import Verdict

STYLES = {
    Verdict.PASS: "green",
    Verdict.KNOWN: "cyan",
    Verdict.SKIP: "yellow",
    Verdict.FAIL: "bold red",
    Verdict.ERROR: "bold red",
}


#: characters in a line where there is no terminal: enough for the names of all facts
_WIDTH = 200


def open_console() -> Console:
    """Return a console on standard output, wide where it is no terminal."""
    return Console() if sys.stdout.isatty() or "COLUMNS" in os.environ else Console(width=_WIDTH)


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


def print_judgement(console: Console, judgement: Judgement, release: str) -> None:
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
