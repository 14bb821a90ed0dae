"""The gate's tables for people: a comparison in Markdown, the study's columns, error rates.

A comparison of a hundred metrics fits one screen: those that ask for a look, worst first, and in a few lines what
passed and what nobody could have seen.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from hugepage_gate.block_summary import summarise_set
from hugepage_gate.classic_table import ClassicTable
from hugepage_gate.comparison import Comparison, MetricResult
from hugepage_gate.error_rates import FEW_RUNS, SOME_RUNS, UNCHANGED, USUAL_RULES, Rates
from hugepage_gate.samples import Direction, SampleSet, Verdict
from hugepage_qa.report.fill_template import fill_template

STYLES = {
    Verdict.PASS: "green",
    Verdict.IMPROVED: "bold green",
    Verdict.REGRESSED: "bold red",
    Verdict.UNDECIDED: "yellow",
    Verdict.BLIND: "dim",
    Verdict.NOT_COMPARABLE: "magenta",
    Verdict.DISTURBED: "magenta",
    Verdict.BASELINE_THIN: "yellow",
    Verdict.BASELINE_STALE: "yellow",
}

#: the verdict in a sentence, for people who never saw a p value
MEANINGS = {
    Verdict.PASS: "No metric that can see its margin became worse by as much, and none has slow runs.",
    Verdict.IMPROVED: "Something became better, and nothing that can see its margin worse by as much.",
    Verdict.REGRESSED: "Something became worse, and further blocks confirm it.",
    Verdict.UNDECIDED: "The measurements do not suffice to tell.",
    Verdict.BLIND: "The metrics are too noisy for their margins.",
    Verdict.NOT_COMPARABLE: "The two sides are not of the same machine and set-up, so nothing was compared.",
    Verdict.DISTURBED: "Something else used the machine during the measurement.",
    Verdict.BASELINE_THIN: "The baseline is too small for a verdict.",
    Verdict.BASELINE_STALE: "The baseline is too old for a verdict.",
}

#: so many metrics are shown one by one; of more, those that pass or are blind are summed up
MOST_ROWS = 24
_MOST_BLIND = 8
_QUIET = frozenset({Verdict.PASS, Verdict.BLIND})


def rows_to_show(results: Sequence[MetricResult], most: int = MOST_ROWS) -> Sequence[MetricResult]:
    """Return all of ``results`` up to ``most``, of more of them those that ask for a look, no more than that."""
    if len(results) <= most:
        return results
    return [one for one in results if one.verdict not in _QUIET][:most]


def sum_up(results: Sequence[MetricResult], more_in: str = "", most_named: int = _MOST_BLIND) -> list[str]:
    """Return what there is to know of ``results`` that are not shown one by one, a line each.

    Those that are blind are named, unless there are more than ``most_named``. ``more_in`` is what shows those that no
    line names.
    """
    passed = [one for one in results if one.verdict is Verdict.PASS]
    blind = [one for one in results if one.verdict is Verdict.BLIND]
    others = len(results) - len(passed) - len(blind)
    shown = f"; see {more_in}" if more_in else ""
    lines = [f"and {others} more{shown}"] if others else []
    nearest = max(passed, key=lambda one: one.change.upper / one.margin if one.change else -1, default=None)
    if nearest is not None and nearest.change is not None:
        lines.append(f"pass: {len(passed)}, nearest to its margin {nearest.name}: at most {_bound(nearest)}")
    elif passed:
        lines.append(f"pass: {len(passed)}")
    if len(blind) <= most_named:
        return [*lines, *_blind_lines(blind)]
    return [*lines, *(f"{line}{shown}" for line in _blind_sums(blind))]


def _blind_lines(blind: Sequence[MetricResult]) -> Iterator[str]:
    alike: dict[tuple[float, str], list[MetricResult]] = {}
    for one in blind:
        alike.setdefault((one.margin, one.reason), []).append(one)
    for (margin, reason), several in alike.items():
        names = ", ".join(f"{one.name} sees {one.sees:.1%}" for one in several if one.sees is not None)
        yield f"blind at {margin:.1%} ({reason}): {names}"


def _blind_sums(blind: Sequence[MetricResult]) -> Iterator[str]:
    """Yield a line for each margin: how many are blind at it, what they do see, and what would help."""
    for margin in sorted({one.margin for one in blind}):
        several = [one for one in blind if one.margin == margin]
        seen = [one.sees for one in several if one.sees is not None]
        sight = f": the best sees {min(seen):.1%}, the worst {max(seen):.1%}" if seen else ""
        count = f"{len(several)} {'metric is' if len(several) == 1 else 'metrics are'}"
        yield f"{count} blind at {margin:.1%}{sight}; {_help_of_blocks(several)}"


def _help_of_blocks(blind: Sequence[MetricResult]) -> str:
    """Return how many more blocks show the margin of those of ``blind`` whose margin they can show."""
    helped = [one for one in blind if one.more_blocks or one.more_baseline]
    if not helped:
        return "more blocks would not help: larger margins, or less noise"
    blocks = max(one.more_blocks for one in helped)
    baseline = max(one.more_baseline for one in helped)
    parts = [f"{blocks} more blocks"] * bool(blocks) + [f"{baseline} more in the baseline"] * bool(baseline)
    whose = "it" if len(helped) == len(blind) == 1 else "all" if len(helped) == len(blind) else f"{len(helped)} of them"
    return f"{' and '.join(parts)} would help {whose}"


def _bound(result: MetricResult) -> str:
    own = result.own_change
    if own is None:
        return ""
    return percent(own.lower if result.direction is Direction.HIGHER else own.upper)


def amount(value: float | None, unit: str) -> str:
    """Return ``value`` with its unit in four digits for people, nothing for None."""
    return "" if value is None else f"{float(f'{value:.4g}'):,.10g} {unit}"


def render_markdown(comparison: Comparison) -> str:
    """Return as Markdown the verdict, what differs and a line per metric."""
    meaning = MEANINGS[comparison.verdict]
    rows = rows_to_show(comparison.results)
    # a file has room for the names
    rest = sum_up([one for one in comparison.results if one not in rows], most_named=len(comparison.results))
    return fill_template(
        "comparison.md.j2",
        comparison=comparison,
        rows=rows,
        rest=rest,
        meaning=meaning,
        percent=percent,
        why=why,
        amount=amount,
    )


def why(result: MetricResult) -> str:
    """Return the reason of a verdict, what is seen, what a contrast is now, and what else there is to know."""
    sees = [f"sees {result.sees:.1%}"] if result.verdict is Verdict.BLIND and result.sees is not None else []
    return "; ".join([*sees, result.reason, *_claim(result), *result.notes])


def percent(share: float) -> str:
    """Return ``share`` as a percentage with a sign; one that says nothing any more in short."""
    return f"{share:+.2%}" if abs(share) < 10 else f"{'+' if share > 0 else '-'}large"  # noqa: PLR2004 - 1000 %


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


_FOUND = ("+1%", "+2%", "+5%", SOME_RUNS[0], FEW_RUNS[0])


def print_rates(console: Console, found: Mapping[str, Rates]) -> None:
    """Print what share of comparisons ended how, per set of data and rule."""
    table = Table("data", Column("rule", no_wrap=True))
    heads = ("false alarms", *(f"finds {one}" for one in _FOUND), *(f"passes {one}" for one in _PASSED))
    for name in (*heads, "undecided", "blind", "runs that alarm", "runs that pass", "blocks", "n"):
        table.add_column(name, justify="right")
    for data, rates in found.items():
        table.add_row(data, "gate", *_gate_cells(rates))
        for rule in USUAL_RULES:
            table.add_row("", rule, *(_percent(rates.usual_share(rule, one)) for one in (UNCHANGED, *_FOUND)))
        table.add_section()
    console.print(table)


_PASSED = ("margin", SOME_RUNS[0], FEW_RUNS[0])


def _gate_cells(rates: Rates) -> list[str]:
    good = Verdict.PASS, Verdict.IMPROVED
    shares = [
        *(rates.share(one, Verdict.REGRESSED) for one in (UNCHANGED, *_FOUND)),
        *(rates.share(one, *good) for one in _PASSED),
        rates.share(UNCHANGED, Verdict.UNDECIDED),
        rates.share(UNCHANGED, Verdict.BLIND),
        rates.run_share(Verdict.REGRESSED),
        rates.run_share(*good),
    ]
    used = sum(rates.blocks_used) / len(rates.blocks_used)
    return [*map(_percent, shares), f"{used:.1f}", str(rates.verdicts[UNCHANGED].total())]


def _percent(share: float) -> str:
    return "" if math.isnan(share) else f"{share:.1%}"


def path_table(kernels: Sequence[SampleSet]) -> Iterator[str]:
    """Yield the lines of a table in Markdown: a path each, and what it takes in each of ``kernels``.

    The share is the change from the last kernel, which the others are set against. A path that a kernel lacks is empty.
    """
    levels = [_path_levels(one) for one in kernels]
    yield f"| instructions for a page | {' | '.join(one.source for one in kernels)} |"
    yield f"|---|{'---:|' * len(kernels)}"
    for metric in dict.fromkeys(metric for one in levels for metric in one):
        usual = levels[-1].get(metric)
        cells = [_path_cell(one.get(metric), usual if one is not levels[-1] else None) for one in levels]
        yield f"| {metric} | {' | '.join(cells)} |"


def _path_levels(samples: SampleSet) -> Mapping[str, float]:
    summaries = summarise_set(samples, dict.fromkeys((one.metric for one in samples), 1.0))
    return {metric: float(np.median([one.location for one in each.blocks])) for (metric, _), each in summaries.items()}


def _path_cell(level: float | None, usual: float | None) -> str:
    if level is None:
        return ""
    change = f" ({level / usual - 1:+.1%})" if usual else ""
    return f"{float(f'{level:.4g}'):,.10g}{change}"
