"""Documents that would drift from the code."""

import re
from pathlib import Path

from tests.unit.live.areas import read_areas

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


def test_every_case_on_text_is_in_the_table_of_rules_and_no_other() -> None:
    text = (DOCS / "hugetext.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| [^|]+ \| (text/\S+) \| [^|]+ \|$", text, re.MULTILINE)
    cases = [
        f"{area.name}/{case.name}" for area in read_areas() for case in area.cases if area.name.startswith("text/")
    ]
    assert sorted(named) == sorted(cases)
