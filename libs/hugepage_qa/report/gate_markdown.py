"""A comparison as Markdown: for a comment on a merge request."""

from hugepage_qa.gate.comparison import Comparison
from hugepage_qa.report.gate_table import MEANINGS, percent, why


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
