"""Results for people: a line for each, one closing line, and why cases were bad or skipped."""

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from hugepage_qa.cases.result import Result, Verdict, rule_of, untested_rules

#: the styles of verdicts, of cases and of boots
STYLES = {
    Verdict.PASS: "green",
    Verdict.KNOWN: "cyan",
    Verdict.SKIP: "yellow",
    Verdict.FAIL: "bold red",
    Verdict.ERROR: "bold red",
}

# of what others changed, so that it stays one line
_NAMED = 8
# of the rules that went untested for one reason
_NAMED_RULES = 3


def print_result(console: Console, result: Result) -> None:
    """Print one line on ``result``: outcome, name, seconds and reasons."""
    # Text, so that square brackets of a kernel message are not taken for markup
    verdict = (f"{result.verdict:5}", STYLES[result.verdict])
    why = f": {result.reason}" if result.reason else ""
    console.print(Text.assemble(verdict, f" {result.name} {result.seconds:.1f} s{why}"), soft_wrap=True)


def progress_bar(console: Console, *further: ProgressColumn) -> Progress:
    """Return a bar with its description, what is done of how much, the time that went by, and ``further`` columns."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, *further, console=console, transient=True)


def print_reasons(console: Console, results: Sequence[Result], outcomes: Sequence[Verdict]) -> None:
    """Print the cases with one of ``outcomes``, worst first, each with its reasons and logs."""
    for outcome in outcomes:
        for result in (result for result in results if result.verdict is outcome):
            why = "; ".join(result.reasons) or "no reason given"
            console.print(Text.assemble((outcome, STYLES[outcome]), f" {result.name}: {why}"), soft_wrap=True)
            for log in result.logs:
                console.print(Text(f"     log {log}"), soft_wrap=True)


def closing_lines(results: Sequence[Result]) -> list[str]:
    """Return the line with the counts, then one for each reason to skip: how many cases, which rules went untested.

    A rule is untested where its case ran on no page size.
    """
    count = Counter(result.verdict for result in results)
    ran = len(results) - count[Verdict.SKIP]
    counts = (
        f"{ran} {'case' if ran == 1 else 'cases'} ran: {count[Verdict.PASS]} passed, {count[Verdict.KNOWN]} known, "
        f"{count[Verdict.FAIL]} failed, {count[Verdict.ERROR]} errors"
    )
    untested = untested_rules((result.name, result.verdict) for result in results)
    rules = f", {len(untested)} {'rule' if len(untested) == 1 else 'rules'} untested" if untested else ""
    return [f"{counts}; {count[Verdict.SKIP]} skipped{rules}", *skip_lines(results)]


def line_on_others(subjects: Sequence[str]) -> str:
    """Return the line on what others changed on the machine meanwhile."""
    named = ", ".join(subjects[:_NAMED])
    more = f" and {len(subjects) - _NAMED} more" if len(subjects) > _NAMED else ""
    return f"others changed {len(subjects)} {'thing' if len(subjects) == 1 else 'things'} meanwhile: {named}{more}"


def height_of(line: str, width: int) -> int:
    """Return how many lines of a console of ``width`` columns ``line`` takes."""
    return max(1, -(-cell_len(line) // width))


def skip_lines(results: Sequence[Result]) -> Iterator[str]:
    """Yield a line for each reason to skip: how many cases, and which rules went untested."""
    untested = untested_rules((result.name, result.verdict) for result in results)
    skipped: dict[str, list[str]] = {}
    for result in results:
        if result.verdict is Verdict.SKIP:
            skipped.setdefault(result.reason or "no reason given", []).append(rule_of(result.name))
    for reason, rules in sorted(skipped.items(), key=lambda item: -len(item[1])):
        of_them = [rule for rule in dict.fromkeys(rules) if rule in untested]
        more = f" and {len(of_them) - _NAMED_RULES} more" if len(of_them) > _NAMED_RULES else ""
        named = f"; untested: {', '.join(of_them[:_NAMED_RULES])}{more}" if of_them else ""
        yield f"  skipped {len(rules)}: {reason}{named}"
