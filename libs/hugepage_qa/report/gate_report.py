"""A comparison as one HTML file that needs nothing else, or as Markdown: verdict first, then why."""

from collections.abc import Iterable, Mapping
from html import escape

from hugepage_gate.comparison import Comparison, MetricResult
from hugepage_qa.report.gate_figures import intervals_figure, metric_figure
from hugepage_qa.report.gate_page import GatePage, MetricPage
from hugepage_qa.report.gate_tables import MEANINGS, percent, why

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
.verdict { padding: 1rem 1.4rem; border-radius: 6px; color: white; background: #666; }
.verdict h1 { margin: 0; font-size: 1.6rem; }
.verdict p { margin: .3rem 0 0; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 14px; }
td, th { padding: .25rem .7rem; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top; }
td.number { text-align: right; white-space: nowrap; }
td.word { color: white; font-weight: 600; white-space: nowrap; background: #666; }
.verdict.pass, .verdict.improved, td.pass, td.improved { background: #117733; }
.verdict.regressed, td.regressed { background: #cc3311; }
svg { max-width: 100%; height: auto; }
section { margin-top: 2.2rem; }
details { margin: .6rem 0; }
.note { color: #666; font-size: 13px; }
"""


def render_html(page: GatePage) -> str:
    """Return the report as a text of HTML."""
    comparison = page.comparison
    verdict = comparison.verdict
    parts = [
        f'<div class="verdict {verdict.value}"><h1>{verdict.value}</h1><p>{escape(MEANINGS[verdict])}</p>'
        f"<p>{escape(comparison.reason)}</p></div>",
        f'<p class="note">suite {escape(comparison.suite)}: {escape(comparison.new)}, '
        f"against {escape(comparison.baseline)}</p>",
        *(f'<p class="note">{escape(note)}</p>' for note in comparison.notes),
        _differences(page),
    ]
    if any(one.change is not None for one in comparison.results):
        parts.append("<section><h2>Changes against the margin</h2>")
        parts.append(intervals_figure(comparison.results))
        parts.append(
            '<p class="note">A dot is the change, its line what it may be. Left of the dashed line altogether: pass. '
            "Right of the black line altogether, and confirmed: regressed. Else nobody knows yet.</p></section>"
        )
    if comparison.results:
        parts.append(_results(comparison.results))
        parts += map(_metric_section, page.metrics)
    parts.append(_facts("Machine", page.environment) + _facts("Under test", page.subject))
    title = f"{verdict.value}: {escape(comparison.suite)}"
    body = "\n".join(parts)
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}<title>{title}</title><style>{_STYLE}</style></head>\n'
        f"<body>\n{body}\n</body></html>\n"
    )


def _differences(page: GatePage) -> str:
    rows = [(one.key, one.kind, one.baseline, one.new) for one in page.comparison.differences]
    if not rows:
        return ""
    return "<h2>What differs</h2>" + _table(("fact", "kind", "baseline", "now"), (map(_cell, row) for row in rows))


def _results(results: Iterable[MetricResult]) -> str:
    rows = []
    for one in results:
        change = one.change
        between = "" if change is None else f"{percent(change.lower)} to {percent(change.upper)}"
        rows.append(
            [
                _cell(one.name),
                f'<td class="word {one.verdict.value}">{one.verdict.value}</td>',
                _number("" if change is None else percent(change.estimate)),
                _number(between),
                _number(f"{one.margin:.1%}"),
                _number(f"{one.baseline_blocks} + {one.new_blocks}"),
                _number(f"{one.samples} ({one.effective:.0f})"),
                _cell(why(one)),
            ]
        )
    head = ("metric", "verdict", "change", "between", "margin", "blocks", "samples (independent)", "why")
    return "<section><h2>Metrics</h2>" + _table(head, rows) + "</section>"


def _metric_section(page: MetricPage) -> str:
    head = ("", *(one.name or "new" for one in page.configurations))
    tables = [one.table for one in page.configurations]
    rows = {
        f"mean, {page.unit}": [f"{one.mean:.6g}" for one in tables],
        "samples": [str(one.samples) for one in tables],
        "of them independent": [f"{one.effective:.0f}" for one in tables],
        "standard deviation": [f"{one.deviation:.4g}" for one in tables],
        "min": [f"{one.lowest:.6g}" for one in tables],
        "max": [f"{one.highest:.6g}" for one in tables],
        "margin of error, 99.99 %": [f"{one.margin:.3g}" for one in tables],
        "the same, independent only": [f"{one.honest_margin:.3g}" for one in tables],
        "beyond 3 sigma": [str(one.beyond_3_sigma) for one in tables],
        "beyond 6 sigma": [str(one.beyond_6_sigma) for one in tables],
    }
    cells = ([_cell(title), *map(_number, values)] for title, values in rows.items())
    return (
        f"<section><h2>{escape(page.metric)}</h2>{metric_figure(page)}"
        f"<details><summary>Samples in figures</summary>{_table(head, cells)}</details></section>"
    )


def _facts(title: str, facts: Mapping[str, object]) -> str:
    if not facts:
        return ""
    rows = ([_cell(key), _cell(value)] for key, value in sorted(facts.items()))
    return f"<section><details><summary>{title}</summary>{_table(('fact', 'value'), rows)}</details></section>"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    first = "".join(f"<th>{escape(one)}</th>" for one in head)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f"<table><tr>{first}</tr>{body}</table>"


def _cell(value: object) -> str:
    return f"<td>{escape('unknown' if value is None else str(value))}</td>"


def _number(value: str) -> str:
    return f'<td class="number">{escape(value)}</td>'


def render_markdown(comparison: Comparison) -> str:
    """Return the verdict, what differs and a line per metric."""
    lines = [f"## {comparison.verdict.value}", "", MEANINGS[comparison.verdict], "", _text(comparison.reason), ""]
    lines += [f"* differs ({one.kind}): {_text(str(one))}" for one in comparison.differences]
    if comparison.results:
        lines += [
            "",
            "| metric | verdict | change | between | margin | blocks | why |",
            "|---|---|---:|---:|---:|---:|---|",
        ]
    for one in comparison.results:
        change = one.change
        cells = (
            _text(one.name),
            f"**{one.verdict.value}**",
            "" if change is None else percent(change.estimate),
            "" if change is None else f"{percent(change.lower)} to {percent(change.upper)}",
            f"{one.margin:.1%}",
            f"{one.baseline_blocks} + {one.new_blocks}",
            _text(why(one)),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _text(text: str) -> str:
    """Return ``text`` with what Markdown or HTML would take for markup made harmless."""
    return "".join(f"\\{one}" if one in "\\`*_[]|#" else {"<": "&lt;", "&": "&amp;"}.get(one, one) for one in text)
