"""A comparison on the console: a line a metric, as much of it as the console is wide.

Without frames and folded cells: a hundred metrics fit one screen, of 80 columns, too.
"""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from hugepage_gate.comparison import Comparison, Interval, MetricResult
from hugepage_gate.samples import Verdict
from hugepage_qa.report.gate_tables import MOST_ROWS, STYLES, amount, percent, rows_to_show, sum_up, why

#: characters of the picture of an interval; its ends are three margins from no change
_PICTURE = 31
_MARGINS_SHOWN = 3

_GAP = "  "
#: names may be long: they come last, and only those that are wrap
_HEADS = ("verdict", "change", "between", "old", "new", "margin", "blocks", "interval", "metric")
_USUAL_NAME = 40
#: columns that a narrow console does without, the first ones first
_DISPENSABLE = (("interval",), ("blocks",), ("margin",), ("old", "new"))
#: of these the reason is told where it fits: the numbers say as much
_PLAIN = frozenset({Verdict.PASS, Verdict.IMPROVED, Verdict.REGRESSED})
_RIGHT = frozenset({"change", "old", "new", "margin", "blocks"})


def print_comparison(
    console: Console,
    comparison: Comparison,
    *,
    shows_all: bool = False,
    most_rows: int = MOST_ROWS,
    more_in: str = "--all",
) -> None:
    """Print the verdict, what differs between the sides, and every metric with its reason.

    Without ``shows_all`` those that ask for a look alone where there are more than ``most_rows``; then ``more_in`` is
    the option, or the file, that shows the others.
    """
    console.print(
        Text.assemble((comparison.verdict.value, STYLES[comparison.verdict]), f"  {comparison.reason}"), soft_wrap=True
    )
    console.print(
        Text(f"suite {comparison.suite}: {comparison.new} against {comparison.baseline}", style="dim"), soft_wrap=True
    )
    for difference in comparison.differences:
        console.print(Text(f"differs ({difference.kind}): {difference}"), soft_wrap=True)
    rows = comparison.results if shows_all else rows_to_show(comparison.results, most_rows)
    for line in _lines(rows, console.width, shows_all=shows_all):
        console.print(line, soft_wrap=True)
    for rest in sum_up([one for one in comparison.results if one not in rows], more_in):
        console.print(Text(rest), soft_wrap=True)
    for note in comparison.notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)


def _lines(results: Sequence[MetricResult], width: int, *, shows_all: bool) -> Iterator[Text]:
    """Yield a head, and each result with its reason: in its line where that fits, else below."""
    if not results:
        return
    rows = [dict(zip(_HEADS, _cells(one), strict=True)) for one in results]
    widths = {head: max(len(head), *(len(row[head]) for row in rows)) for head in _HEADS}
    widths[_HEADS[-1]] = min(widths[_HEADS[-1]], _USUAL_NAME)
    heads = list(_HEADS)
    for group in _DISPENSABLE:
        if sum(widths[one] for one in heads) + len(_GAP) * len(heads) > width:
            heads = [one for one in heads if one not in group]
    yield Text(_joined({head: head for head in heads}, widths).rstrip(), style="dim")
    for result, row in zip(results, rows, strict=True):
        line = Text(_joined({head: row[head] for head in heads}, widths).rstrip())
        line.stylize(STYLES[result.verdict], 0, len(result.verdict))
        reason = Text(why(result), style="dim")
        if len(line) + len(_GAP) + len(reason) <= width:
            yield Text.assemble(line, _GAP, reason)
        else:
            yield line
            if shows_all or result.verdict not in _PLAIN:
                yield Text.assemble(2 * _GAP, reason)
    if "interval" in heads:
        yield Text("interval: worse is right, | no change, ) the margin. Blocks are baseline + new", style="dim")


def _joined(cells: dict[str, str], widths: dict[str, int]) -> str:
    return _GAP.join(
        cell.rjust(widths[head]) if head in _RIGHT else cell.ljust(widths[head]) for head, cell in cells.items()
    )


def _cells(result: MetricResult) -> tuple[str, ...]:
    """Return what is told of ``result``, in the order of the heads; the change is in the sign of the unit."""
    own = result.own_change
    return (
        result.verdict.value,
        "" if own is None else percent(own.estimate),
        "" if own is None else f"{percent(own.lower)} to {percent(own.upper)}",
        *(amount(one, result.unit) for one in result.levels),
        f"{result.margin:.1%}",
        f"{result.baseline_blocks} + {result.new_blocks}",
        "" if result.change is None else picture(result.change, result.margin),
        result.name if result.gates else f"{result.name} (only reported)",
    )


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
