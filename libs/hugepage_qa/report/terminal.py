"""Results for people: a table, one closing line, and why cases were bad or skipped."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from hugepage_qa.cases.result import Result, Verdict

#: the styles of verdicts, of cases and of boots
STYLES = {
    Verdict.PASS: "green",
    Verdict.KNOWN: "cyan",
    Verdict.SKIP: "yellow",
    Verdict.FAIL: "bold red",
    Verdict.ERROR: "bold red",
}


_WIDTH_OF_A_FILE = 160
# of what others changed, so that it stays one line
_NAMED = 8


def print_table(console: Console, results: Sequence[Result]) -> None:
    """Print every case with its outcome, seconds and reasons."""
    table = Table("case", "outcome", Column("seconds", justify="right"), "why")
    for result in results:
        # Text, so that square brackets of a kernel message are not taken for markup
        table.add_row(
            Text(result.name, overflow="fold"),
            Text(result.verdict, style=STYLES[result.verdict]),
            f"{result.seconds:.1f}",
            Text("\n".join(result.reasons), overflow="fold"),
        )
    # a file or a pipe has no width: what Rich takes for it would fold every name
    console.print(table, width=None if console.is_terminal else max(console.width, _WIDTH_OF_A_FILE))


def print_reasons(console: Console, results: Sequence[Result], outcomes: Sequence[Verdict]) -> None:
    """Print the cases with one of ``outcomes``, worst first, each with its reasons and logs."""
    for outcome in outcomes:
        for result in (result for result in results if result.verdict is outcome):
            why = "; ".join(result.reasons) or "no reason given"
            console.print(Text.assemble((outcome, STYLES[outcome]), f" {result.name}: {why}"), soft_wrap=True)
            for log in result.logs:
                console.print(Text(f"     log {log}"), soft_wrap=True)


def closing_lines(results: Sequence[Result]) -> list[str]:
    """Return the line with the counts, then one line for each reason to skip with how many cases it kept out."""
    count = Counter(result.verdict for result in results)
    ran = len(results) - count[Verdict.SKIP]
    counts = (
        f"{ran} {'case' if ran == 1 else 'cases'} ran: {count[Verdict.PASS]} passed, {count[Verdict.KNOWN]} known, "
        f"{count[Verdict.FAIL]} failed, {count[Verdict.ERROR]} errors"
    )
    reasons = Counter(
        "; ".join(result.reasons) or "no reason given" for result in results if result.verdict is Verdict.SKIP
    )
    skips = [f"  skipped {number}: {reason}" for reason, number in reasons.most_common()]
    return [f"{counts}; {count[Verdict.SKIP]} skipped", *skips]


def line_on_others(subjects: Sequence[str]) -> str:
    """Return the line on what others changed on the machine meanwhile."""
    named = ", ".join(subjects[:_NAMED])
    more = f" and {len(subjects) - _NAMED} more" if len(subjects) > _NAMED else ""
    return f"others changed {len(subjects)} {'thing' if len(subjects) == 1 else 'things'} meanwhile: {named}{more}"
