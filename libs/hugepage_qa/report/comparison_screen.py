"""Comparisons on the console: a line a metric, as much of it as the console is wide.

Without frames and folded cells: a hundred metrics fit one screen, of 80 columns, too, and so do those of several
suites together.
"""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from hugepage_gate.comparison import Comparison, Interval, MetricResult, worst_first
from hugepage_gate.samples import WORST_FIRST, Verdict
from hugepage_qa.report.gate_tables import STYLES, amount, percent, rows_to_show, sum_up, why
from hugepage_qa.report.terminal import height_of

#: characters of the picture of an interval; its ends are three margins from no change
_PICTURE = 31
_MARGINS_SHOWN = 3

_GAP = "  "
#: names may be long: they come last, and only those that are wrap
_HEADS = ("verdict", "change", "between", "old", "new", "margin", "blocks", "interval", "metric")
_USUAL_NAME = 30
#: columns that a narrow console does without, the first ones first
_DISPENSABLE = (("interval",), ("blocks",), ("margin",), ("between",), ("old", "new"))
#: of these the reason is told where it fits: the numbers say as much
_PLAIN = frozenset({Verdict.PASS, Verdict.IMPROVED, Verdict.REGRESSED})
_RIGHT = frozenset({"change", "old", "new", "margin", "blocks"})


def print_comparison(console: Console, comparison: Comparison, *, shows_all: bool = False) -> None:
    """Print the verdict, what differs between the sides, and every metric with its reason.

    Without ``shows_all``, which is the option --all, those that ask for a look alone where there are many.
    """
    console.print(
        Text.assemble((comparison.verdict.value, STYLES[comparison.verdict]), f"  {comparison.reason}"), soft_wrap=True
    )
    console.print(
        Text(f"suite {comparison.suite}: {comparison.new} against {comparison.baseline}", style="dim"), soft_wrap=True
    )
    for difference in comparison.differences:
        console.print(Text(f"differs ({difference.kind}): {difference}"), soft_wrap=True)
    rows = comparison.results if shows_all else rows_to_show(comparison.results)
    for line in _lines(rows, console.width, shows_all=shows_all):
        console.print(line, soft_wrap=True)
    for rest in sum_up([one for one in comparison.results if one not in rows], "--all"):
        console.print(Text(rest), soft_wrap=True)
    for note in comparison.notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)


#: of what asks for a look so many metrics are shown, however low the console is
_FEWEST_ROWS = 3


def print_screen(console: Console, comparisons: Sequence[Comparison], more_in: str, next_step: str, spare: int) -> None:
    """Print what is known of several suites together on one screen, of which ``spare`` lines are left to others.

    The suites, the metrics that ask for a look, worst first, the sum of all others, what differs between the sides,
    and the ``next_step``, if any. ``more_in`` is where every metric is told.
    """
    width, height = console.width, console.height - spare
    head = list(_suite_lines(comparisons, width))
    results = worst_first(result for one in comparisons for result in one.results)
    notes = [Text(line) for line in _once_each(comparisons)]
    end = [Text(f"every metric: {more_in}")] * bool(results)
    if next_step:
        end.append(Text(f"next: {next_step}", style="bold"))

    def lines(most: int) -> list[Text]:
        rows = rows_to_show(results, most)
        rest = sum_up([one for one in results if one not in rows], most_named=0)
        return [*head, *_lines(rows, width, shows_all=False), *map(Text, rest), *notes, *end]

    for most in range(max(height, _FEWEST_ROWS), _FEWEST_ROWS - 1, -1):
        shown = lines(most)
        if sum(height_of(line.plain, width) for line in shown) <= height:
            break
    else:
        # rather than rows: the files have them whole
        for note in notes:
            note.truncate(width, overflow="ellipsis")
        shown = lines(_FEWEST_ROWS)
    for line in shown:
        console.print(line, soft_wrap=True)


def _suite_lines(comparisons: Sequence[Comparison], width: int) -> Iterator[Text]:
    """Yield the verdicts on suites with their reasons, worst first; suites of which the same is true have one line.

    Where metrics are told below, what fits a line of the console suffices.
    """
    alike: dict[tuple[Verdict, str], list[Comparison]] = {}
    for one in sorted(comparisons, key=lambda one: WORST_FIRST.index(one.verdict)):
        alike.setdefault((one.verdict, one.reason), []).append(one)
    for (verdict, reason), several in alike.items():
        names = ", ".join(one.suite for one in several)
        line = Text.assemble((verdict.value, STYLES[verdict]), f"{_GAP}{names}: {reason}")
        if all(one.results for one in several):
            line.truncate(width, overflow="ellipsis")
        yield line


def _once_each(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield what differs between the sides, and the notes: suites of one run mostly have the same."""
    differences = dict.fromkeys(
        (difference.kind, str(difference))
        for one in comparisons
        for difference in one.differences
        # the reason of the verdict names the others
        if one.results
    )
    for kind in dict.fromkeys(kind for kind, _ in differences):
        yield f"differs ({kind}): {'; '.join(text for other, text in differences if other == kind)}"
    for note in dict.fromkeys(note for one in comparisons for note in one.notes):
        yield f"note: {note}"


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
