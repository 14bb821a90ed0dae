"""Documents that would drift from the code."""

from pathlib import Path

from hugepage_qa.model.hugetlb_pool.known import POOL_ISSUES
from hugepage_qa.model.known import KNOWN_ISSUES

DOCS = Path(__file__).parents[2] / "docs"


def test_every_known_issue_is_documented() -> None:
    text = (DOCS / "known-issues.md").read_text(encoding="utf-8")
    for quirk in (*KNOWN_ISSUES, *POOL_ISSUES):
        assert f"| {quirk.value} |" in text
        assert f"* **{quirk.value}**: " in text


def test_issues_of_the_pools_are_documented_as_they_are_judged() -> None:
    text = (DOCS / "known-issues.md").read_text(encoding="utf-8")
    for issue in POOL_ISSUES.values():
        assert f"| {issue.summary} |" in text
        assert issue.evidence in text
