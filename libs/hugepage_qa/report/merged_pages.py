"""The merged report as Markdown, as one HTML file that needs nothing else, and as JSON (``schemas/merged-report``)."""

from collections.abc import Sequence
from html import escape
from typing import Any

from hugepage_qa.cases.result import Verdict
from hugepage_qa.report.merged_runs import MergedReport, SampleSummary, Table, headline, tables

FORMAT = "hugepage-qa merged report"
VERSION = 1

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 90rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; font-size: 14px; }
td, th { padding: .25rem .7rem; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top; }
th { position: sticky; top: 0; background: #fff; }
td { overflow-wrap: anywhere; }
"""
_TITLE = "Huge pages"


def render_markdown(report: MergedReport, samples: Sequence[SampleSummary]) -> str:
    """Return the report as Markdown: for a comment, a wiki, a summary of a CI job."""
    lines = [f"# {_TITLE}", "", *([_text(report.about), ""] if report.about else []), f"**{_text(headline(report))}**"]
    for table in tables(report, samples):
        lines += ["", f"## {table.title}", "", *_markdown_table(table)]
    return "\n".join(lines) + "\n"


def _markdown_table(table: Table) -> list[str]:
    if not table.rows:
        return [table.note]
    rule = "|---" * len(table.head) + "|"
    return [f"| {' | '.join(map(_text, row))} |" if row else rule for row in (table.head, (), *table.rows)]


def _text(text: str) -> str:
    """Return ``text`` with what Markdown or HTML would take for markup made harmless."""
    return "".join(f"\\{one}" if one in "\\`*_[]|#" else {"<": "&lt;", "&": "&amp;"}.get(one, one) for one in text)


def render_html(report: MergedReport, samples: Sequence[SampleSummary]) -> str:
    """Return the report as a text of HTML."""
    about = f"<p>{escape(report.about)}</p>" if report.about else ""
    parts = [f"<h1>{_TITLE}</h1>{about}<p><strong>{escape(headline(report))}</strong></p>"]
    for table in tables(report, samples):
        parts.append(f"<h2>{escape(table.title)}</h2>{_html_table(table)}")
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    title = escape(headline(report))
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}<title>{title}</title><style>{_STYLE}</style></head>\n'
        f"<body>\n{chr(10).join(parts)}\n</body></html>\n"
    )


def _html_table(table: Table) -> str:
    if not table.rows:
        return f"<p>{escape(table.note)}</p>"
    head = "".join(f"<th>{escape(one)}</th>" for one in table.head)
    rows = "\n".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    return f"<table><tr>{head}</tr>\n{rows}</table>"


def as_json(report: MergedReport, samples: Sequence[SampleSummary]) -> dict[str, Any]:
    """Return the report as JSON can hold it; here every run is named, and every reason."""
    return {
        "format": FORMAT,
        "version": VERSION,
        **({"about": report.about} if report.about else {}),
        "exit_code": report.exit_code,
        "totals": _counts(report.totals),
        "runs": [{"path": path, "machine": machine} for path, machine in report.runs.items()],
        "counts": [{**vars(subject), "outcomes": _counts(count)} for subject, count in report.counts.items()],
        "failures": [{**vars(one), "outcome": one.verdict.value, "runs": list(one.runs)} for one in report.failures],
        "disagreements": [
            {**vars(one), "runs": {outcome.value: list(where) for outcome, where in one.runs.items()}}
            for one in report.disagreements
        ],
        "samples": [{**vars(one), "subject": dict(one.subject), "hosts": list(one.hosts)} for one in samples],
        "skips": [{"reason": reason, "cases": count} for reason, count in report.skips.items()],
    }


def _counts(count: Any) -> dict[str, int]:
    return {outcome.value: count[outcome] for outcome in Verdict if count.get(outcome)}
