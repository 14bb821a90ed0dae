"""Reports for upstream: every open issue has one, and its reproducer is short, compiles and stands alone."""

import re
from pathlib import Path

import pytest

from hugepage_qa.cases.upstream.reproduction import BugReport, bug_reports
from hugepage_qa.errors import InputError
from hugepage_qa.oracle.issue_tables import ALL_ISSUES
from hugepage_qa.process.static_program import NAMES, build_static, compilers
from hugepage_qa.sizes import MIB
from hugepage_qa.version import KernelVersion

PAGE = Path(__file__).parents[4] / "docs" / "upstream-reports.md"
REPORTS = bug_reports()
PROGRAMS = [report.program for report in REPORTS.values() if report.program]
ISSUES = {quirk.value: issue for quirk, issue in ALL_ISSUES.items()}
#: Debian's, on x86_64
KERNELS = ("6.1.192", "6.12.107", "7.3.4")
OF_SHARED_TABLES = ("fork-loses-pages", "smaps-shows-shared", "move-waits-for-itself")
LONGEST = 60
#: who mails with a subject that is longer gets no answer
SUBJECT = 100
LISTS = {
    "linux-mm@kvack.org",
    "linux-kernel@vger.kernel.org",
    "linux-fsdevel@vger.kernel.org",
    "cgroups@vger.kernel.org",
    "linuxppc-dev@lists.ozlabs.org",
    "linux-arm-kernel@lists.infradead.org",
    "dri-devel@lists.freedesktop.org",
}
SECTIONS = ["What happens", "Reproducer", "Cause", "Effect", "Suggested fix"]


def source_id(source: Path) -> str:
    return source.parent.name


def seen(report: BugReport) -> dict[tuple[str, str], str]:
    """Return what its reproducer said, by architecture and version of the kernel."""
    rows = re.findall(r"^\| (\d\S+) \| (\S+) \| (right|bug|undecided)", report.text, re.MULTILINE)
    return {(architecture, version): answer for version, architecture, answer in rows}


def line_of_page(report: BugReport) -> str:
    """Return the line of the page's table: "-" where it cannot be decided, nothing where it was not run."""
    answers = {key: "-" if answer == "undecided" else answer for key, answer in seen(report).items()}
    columns = [answers.pop(("x86_64", version), "") for version in KERNELS]
    elsewhere = [f"{architecture} {version} {answer}" for (architecture, version), answer in answers.items()]
    return f"| {report.name} | {' | '.join(columns)} | {', '.join(elsewhere)} |"


def test_every_open_issue_has_a_report_and_no_other_thing_has() -> None:
    assert {name for name, issue in ISSUES.items() if issue.is_open} <= set(REPORTS) <= set(ISSUES)


def test_the_page_lists_them_with_their_subjects() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    for report in REPORTS.values():
        assert f"[{report.name}](known-issues.md#{report.name}): {report.subject}" in text
        assert " ".join(line_of_page(report).split()) in text
    assert text.count("(known-issues.md#") == len(REPORTS)


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_a_report_is_whole_and_names_lists_and_no_people(report: BugReport) -> None:
    lines = report.text.splitlines()
    assert lines[0].startswith(("# mm/", "# fs/proc/", "# hugetlbfs: "))
    assert len(report.subject) <= SUBJECT
    assert [line for line in lines if len(line) > 120] == []
    assert [line[3:] for line in lines if line.startswith("## ")][: len(SECTIONS)] == SECTIONS
    assert lines[4].startswith("* Fixes: ")
    assert set(re.findall(r"\S+@\S+?(?=,|\s|$)", report.text)) <= LISTS


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_a_report_says_on_what_it_was_seen(report: BugReport) -> None:
    answers = seen(report)
    assert "bug" in answers.values()
    for (architecture, version), answer in answers.items():
        # nobody there takes the table of a page for a shared one
        is_concerned = architecture in ("x86_64", "aarch64") or report.name not in OF_SHARED_TABLES
        has_it = is_concerned and ISSUES[report.name].applies_to(KernelVersion.parse(version), architecture)
        assert answer == "undecided" or (answer == "bug") == has_it, (architecture, version)


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_a_reproducer_is_a_program_or_files_to_read(report: BugReport) -> None:
    assert (report.program is None) == bool(report.machine.reads)
    assert min(report.memory) >= 512 * MIB


@pytest.mark.parametrize("source", PROGRAMS, ids=source_id)
def test_a_reproducer_is_short_and_stands_alone(source: Path) -> None:
    lines = source.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= LONGEST
    assert [line for line in lines if len(line.expandtabs(8)) > 120] == []
    assert lines[0] == "// SPDX-License-Identifier: GPL-2.0"
    assert [line for line in lines if line.startswith('#include "')] == []
    text = " ".join(lines)
    assert "Exit code: 0 the kernel is right, 1 it has the bug, 2 that cannot be tried here." in text
    assert "expected: " in text
    assert "found: " in text


@pytest.mark.parametrize("architecture", NAMES)
@pytest.mark.parametrize("source", PROGRAMS, ids=source_id)
def test_a_reproducer_compiles_without_a_warning(source: Path, architecture: str) -> None:
    if not any(compilers(architecture)):
        pytest.skip(f"no compiler for {architecture} is installed")
    assert build_static(source, architecture).exists()


@pytest.mark.parametrize(
    "text",
    [
        "words: quiet\n",
        "memory: 1G\nkernel: 7.3\n",
        "memory: 1G\nreads: {}\n",
        "memory: 1G\nreads: {proc/meminfo: {right: '1'}}\n",
        "memory: 1G\nreads: {/proc/meminfo: {right: '1', wrong: '2'}}\n",
        "memory: 1G\nsince: 6.13\n",
        "memory: 1G\ncpus: 0\n",
        "- memory\n",
    ],
)
def test_a_file_of_another_form_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "reproducer.yaml").write_text(text)
    with pytest.raises(InputError, match=r"reproducer\.yaml: "):
        _ = BugReport("made-up", tmp_path).machine
