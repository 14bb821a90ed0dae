"""Documents that would drift from the code."""

import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import pytest
from tests.unit.cases.areas import read_areas

from hugepage_qa.commands.check_kernel import check_kernel
from hugepage_qa.commands.qa_request import MACHINE_PLANS
from hugepage_qa.oracle.issue_tables import ALL_ISSUES, ISSUE_TABLES
from hugepage_qa.oracle.known_issues import KnownIssue
from hugepage_qa.report.survey_record import read_records

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: columns of a line
WIDTH = 120
README_LINES = 60
ISSUES = tuple(ALL_ISSUES.values())


def issue_table(issues: Iterable[KnownIssue]) -> Iterator[str]:
    """Yield the table of ``issues`` on the page on known issues."""
    yield from ("| issue | versions | upstream |", "|---|---|---|")
    for issue in issues:
        name, state = issue.quirk.value, "open" if issue.is_open else "fixed"
        yield f"| [{name}](#{name}) | {versions(issue)} | {state} |"


def issue_lines(issue: KnownIssue) -> Iterator[str]:
    """Yield what the page on known issues says of ``issue``."""
    yield from (f"### {issue.quirk.value}", "")
    told = {"Kernels do": issue.summary, "Versions": versions(issue), "Upstream": upstream(issue)}
    told |= {"Example": issue.example, "Cause": issue.cause} | ({"Seen": issue.seen} if issue.seen else {})
    for title, text in told.items():
        line = f"* {title}: {text}"
        yield from textwrap.wrap(line, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def upstream(issue: KnownIssue) -> str:
    state = issue.fix or "open"
    return f"{state}; {issue.reported}" if issue.reported else state


def versions(issue: KnownIssue) -> str:
    came = [issue.since] if issue.since else []
    since = ", ".join(map(short, (*came, *issue.brought_to)))
    mended = [issue.until] if issue.until else []
    until = ", ".join(map(short, (*mended, *issue.backports)))
    alone = f"; {issue.architecture} alone" if issue.architecture else ""
    branches = "" if issue.since else "; in these branches alone"
    return f"since {since}" + branches + (f"; not {until}" if until else "") + alone


def short(version: object) -> str:
    return str(version).removesuffix(".0")


def test_the_page_on_known_issues_says_what_the_code_says() -> None:
    """Lines that differ are copied from here: it is the code that the cases are judged by."""
    text = (DOCS / "known-issues.md").read_text(encoding="utf-8")
    for issues in ISSUE_TABLES:
        assert "\n".join(issue_table(issues.values())) in text
    for issue in ISSUES:
        assert "\n".join(issue_lines(issue)) in text
    assert len(re.findall(r"^### ", text, re.MULTILINE)) == len(ISSUES)


def test_readme_and_page_count_the_known_issues() -> None:
    fixed = sum(not issue.is_open for issue in ISSUES)
    count = f"{len(ISSUES)} kernel bugs so far, {len(ISSUES) - fixed} of them open and {fixed} fixed upstream"
    for document in (ROOT / "README.md", DOCS / "known-issues.md"):
        assert count in " ".join(document.read_text(encoding="utf-8").split()), document.name


def test_what_is_fixed_says_where_and_what_is_open_does_not() -> None:
    for issue in ISSUES:
        assert issue.is_open == (issue.fix is None), issue.quirk
        assert issue.summary, issue.quirk
        assert issue.example, issue.quirk
        assert issue.cause, issue.quirk


def test_every_case_on_text_is_in_the_list_of_rules_and_no_other() -> None:
    text = (DOCS / "hugetext.md").read_text(encoding="utf-8")
    named = re.findall(r"^\* \*\*(text/\S+)\*\*: ", text, re.MULTILINE)
    cases = [
        f"{area.name}/{case.name}" for area in read_areas() for case in area.cases if area.name.startswith("text/")
    ]
    assert sorted(named) == sorted(cases)


def test_what_surveys_kept_is_whole_and_names_issues_that_have_a_page() -> None:
    named = {issue for record in read_records(DOCS / "kernels") for one in record.differences for issue in one.issues}
    assert named <= {issue.quirk.value for issue in ISSUES}


def test_the_case_that_the_page_on_rules_goes_through_is_the_real_one() -> None:
    shown = re.findall(
        r"```python\n(@KHUGEPAGED_AREA.*?)```", (DOCS / "add-a-rule.md").read_text(encoding="utf-8"), re.DOTALL
    )
    # the version comes last on that page
    real = (ROOT / "tests" / "thp" / "khugepaged.py").read_text(encoding="utf-8").replace('    since="7.2",\n', "")
    assert [case in real for case in shown] == [True]


@pytest.mark.parametrize("document", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda path: path.name)
def test_documents_have_one_width(document: Path) -> None:
    lines = document.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > WIDTH] == []


def test_readme_names_the_plans_that_need_root() -> None:
    (names,) = re.findall(r"machine that it runs on \(`PLAN=([^)]*)\) is refused", (ROOT / "README.md").read_text())
    assert sorted(re.findall(r"[\w-]+", names.replace(" and ", " "))) == sorted(MACHINE_PLANS)


def test_the_page_on_checking_a_kernel_has_every_option() -> None:
    page = (DOCS / "check-a-kernel.md").read_text(encoding="utf-8")
    table = page.partition("| option | means |")[2].partition("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines() if row]
    told = {name for cell in cells for name in re.findall(r"`(--?[\w-]+)", cell)}
    options = [one for one in check_kernel.params if isinstance(one, click.Option)]
    assert told == {name for option in options for name in option.opts}


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES


def test_readme_leads_to_pages_that_exist() -> None:
    links = re.findall(r"\]\(([^)#]+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(links) > 1
    assert [link for link in links if not (ROOT / link).is_file()] == []


def test_every_folder_of_tests_is_told() -> None:
    """Whoever looks for a case finds what each folder is about on the page of how all is built."""
    page = (DOCS / "architecture.md").read_text("utf-8").partition("`tests/` has")[2]
    told = {
        folder
        for line in page.partition("```text\n")[2].partition("```")[0].splitlines()
        for folder in line.partition(":")[0].split()
    }
    assert told == {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name != "__pycache__"}
