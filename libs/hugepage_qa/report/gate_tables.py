"""The gate's tables for people: the verdict with each metric's interval, the study's columns, error rates."""

import math
from collections.abc import Mapping

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from hugepage_gate.classic_table import ClassicTable
from hugepage_gate.comparison import Comparison, Interval, MetricResult
from hugepage_gate.error_rates import UNCHANGED, USUAL_RULES, Rates
from hugepage_gate.samples import Verdict
from hugepage_qa.report.fill_template import fill_template

STYLES = {
    Verdict.PASS: "green",
    Verdict.IMPROVED: "bold green",
    Verdict.REGRESSED: "bold red",
    Verdict.UNDECIDED: "yellow",
    Verdict.NOT_COMPARABLE: "magenta",
    Verdict.DISTURBED: "magenta",
    Verdict.BASELINE_THIN: "yellow",
    Verdict.BASELINE_STALE: "yellow",
}

#: the verdict in a sentence, for people who never saw a p value
MEANINGS = {
    Verdict.PASS: "Nothing became worse by as much as its margin.",
    Verdict.IMPROVED: "Something became better, and nothing worse by as much as its margin.",
    Verdict.REGRESSED: "Something became worse, and further blocks confirm it.",
    Verdict.UNDECIDED: "The measurements do not suffice to tell.",
    Verdict.NOT_COMPARABLE: "The two sides are not of the same machine and set-up, so nothing was compared.",
    Verdict.DISTURBED: "Something else used the machine during the measurement.",
    Verdict.BASELINE_THIN: "The baseline is too small for a verdict.",
    Verdict.BASELINE_STALE: "The baseline is too old for a verdict.",
}

#: characters of the picture of an interval; its ends are three margins from no change
_PICTURE = 31
_MARGINS_SHOWN = 3


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print the verdict, what differs between the sides, and every metric."""
    console.print(
        Text.assemble((comparison.verdict.value, STYLES[comparison.verdict]), f"  {comparison.reason}"), soft_wrap=True
    )
    console.print(
        Text(f"suite {comparison.suite}: {comparison.new} against {comparison.baseline}", style="dim"), soft_wrap=True
    )
    for difference in comparison.differences:
        console.print(Text(f"differs ({difference.kind}): {difference}"), soft_wrap=True)
    if comparison.results:
        console.print(_table(comparison))
        console.print(
            "change: + is worse; below [bold]|[/] no change, [bold])[/] the margin. "
            "Blocks are baseline + new; ESS: how many of the samples are independent",
            style="dim",
            soft_wrap=True,
            highlight=False,
        )
    for note in comparison.notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)


def _table(comparison: Comparison) -> Table:
    table = Table(
        Column("metric", overflow="fold"),
        "verdict",
        Column("change", justify="right"),
        Column("between", justify="right"),
        Column("margin", justify="right"),
        "interval",
        Column("blocks", justify="right"),
        Column("samples (ESS)", justify="right"),
        Column("why", overflow="fold"),
    )
    for result in comparison.results:
        table.add_row(
            Text(result.name),
            Text(result.verdict.value, style=STYLES[result.verdict]),
            "" if result.change is None else percent(result.change.estimate),
            "" if result.change is None else f"{percent(result.change.lower)} .. {percent(result.change.upper)}",
            percent(result.margin),
            Text("" if result.change is None else picture(result.change, result.margin)),
            f"{result.baseline_blocks} + {result.new_blocks}",
            f"{result.samples} ({result.effective:.0f})",
            Text(why(result)),
        )
    return table


def render_markdown(comparison: Comparison) -> str:
    """Return as Markdown the verdict, what differs and a line per metric."""
    meaning = MEANINGS[comparison.verdict]
    return fill_template("comparison.md.j2", comparison=comparison, meaning=meaning, percent=percent, why=why)


def why(result: MetricResult) -> str:
    """Return the reason of a verdict, what a contrast is now, and what else there is to know."""
    return "; ".join([result.reason, *_claim(result), *result.notes])


def percent(share: float) -> str:
    """Return ``share`` as a percentage with a sign; one that says nothing any more in short."""
    return f"{share:+.2%}" if abs(share) < 10 else f"{'+' if share > 0 else '-'}large"  # noqa: PLR2004 - 1000 %


def picture(interval: Interval, margin: float) -> str:
    """Return a line with the interval (``-``), its estimate (``o``), no change (``|``) and the margin (``)``)."""
    cells = [" "] * _PICTURE
    for place in range(_cell(interval.lower, margin), _cell(interval.upper, margin) + 1):
        cells[place] = "-"
    cells[_cell(0, margin)] = "|"
    cells[_cell(margin, margin)] = ")"
    cells[_cell(interval.estimate, margin)] = "o"
    return "".join(cells)


def _cell(share: float, margin: float) -> int:
    half = _PICTURE // 2
    return half + round(max(-1.0, min(1.0, share / (_MARGINS_SHOWN * margin))) * half)


def _claim(result: MetricResult) -> list[str]:
    if result.claim is None:
        return []
    if result.claimed is None:
        return ["too few sessions to tell its size"]
    size = f"{percent(result.claimed.estimate)} ({percent(result.claimed.lower)} .. {percent(result.claimed.upper)})"
    return [f"now {size}: {'not clear which is better' if result.claim == 'unknown' else result.claim}"]


_BARS = " ▁▂▃▄▅▆▇█"


def print_classic_table(console: Console, tables: Mapping[str, ClassicTable]) -> None:
    """Print ``tables`` side by side, and the histogram of each as a line of bars."""
    table = Table(Column("", no_wrap=True))
    for name in tables:
        table.add_column(Text(name), justify="right", no_wrap=True)
    for title, row in _rows(tables):
        table.add_row(title, *row)
    console.print(table)


def _rows(tables: Mapping[str, ClassicTable]) -> list[tuple[str, list[str]]]:
    columns = list(tables.values())
    return [
        ("mean", [f"{one.mean:.6g}" for one in columns]),
        ("samples", [str(one.samples) for one in columns]),
        ("independent samples", [f"{one.effective:.0f}" for one in columns]),
        ("standard deviation", [f"{one.deviation:.4g}" for one in columns]),
        ("min", [f"{one.lowest:.6g}" for one in columns]),
        ("max", [f"{one.highest:.6g}" for one in columns]),
        ("margin of error, 99.99 %", [f"{one.margin:.3g}" for one in columns]),
        ("the same, independent only", [f"{one.honest_margin:.3g}" for one in columns]),
        ("beyond 3 sigma", [str(one.beyond_3_sigma) for one in columns]),
        ("beyond 6 sigma", [str(one.beyond_6_sigma) for one in columns]),
        (
            "histogram",
            [
                "".join(_BARS[-(-count * (len(_BARS) - 1) // max(one.histogram))] for count in one.histogram)
                for one in columns
            ],
        ),
    ]


_SHIFTS = ("+1%", "+2%", "+5%")
_FURTHER = ("bimodal", "tail (p99)", "passes at margin", "A/A undecided", "A/A improved", "blocks", "comparisons")


def print_rates(console: Console, found: Mapping[str, Rates]) -> None:
    """Print what share of comparisons ended how, per set of data and rule."""
    table = Table("data", "rule")
    for name in ("false alarms", *(f"finds {one}" for one in _SHIFTS), *_FURTHER):
        table.add_column(name, justify="right")
    for data, rates in found.items():
        table.add_row(data, "gate", *_gate_cells(rates))
        for rule in USUAL_RULES:
            shares = [rates.usual_share(rule, one) for one in (UNCHANGED, *_SHIFTS, "bimodal", "tail")]
            table.add_row("", rule, *map(_percent, shares))
        table.add_section()
    console.print(table)


def _gate_cells(rates: Rates) -> list[str]:
    good = Verdict.PASS, Verdict.IMPROVED
    shares = [
        *(rates.share(one, Verdict.REGRESSED) for one in (UNCHANGED, *_SHIFTS, "bimodal")),
        rates.tail_share("tail"),
        rates.share("margin", *good),
        rates.share(UNCHANGED, Verdict.UNDECIDED),
        rates.share(UNCHANGED, Verdict.IMPROVED),
    ]
    used = sum(rates.blocks_used) / len(rates.blocks_used)
    return [*map(_percent, shares), f"{used:.1f}", str(rates.verdicts[UNCHANGED].total())]


def _percent(share: float) -> str:
    return "" if math.isnan(share) else f"{share:.1%}"
