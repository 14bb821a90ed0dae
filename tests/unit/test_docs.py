"""Documents that would drift from the code."""

from pathlib import Path

from hugepage_qa.model.known import KNOWN_ISSUES

DOCS = Path(__file__).parents[2] / "docs"


def test_every_known_issue_is_documented() -> None:
    text = (DOCS / "known-issues.md").read_text(encoding="utf-8")
    for quirk in KNOWN_ISSUES:
        assert f"| {quirk.value} |" in text
        assert f"* **{quirk.value}**: " in text
