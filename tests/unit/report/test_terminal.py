"""What people read: counts that add up, reasons, and nothing taken for markup."""

import io

import pytest
from rich.console import Console

from hugepage_qa.cases.result import (
    CaseResult,
    Outcome,
    exit_code,
    worst,
)
from hugepage_qa.report.terminal import closing_lines, line_on_others, print_reasons, print_table

RESULTS = [
    CaseResult("/a", Outcome.PASS),
    CaseResult("/b", Outcome.KNOWN, ("bug",)),
    CaseResult("/c", Outcome.FAIL, ("HugeTLB: [red]x[/red] [/bad]",)),
    CaseResult("/d", Outcome.SKIP, ("no 1G pages",)),
    CaseResult("/e", Outcome.SKIP, ("no 1G pages",)),
]


def test_closing_lines_count_each_case_once() -> None:
    assert closing_lines(RESULTS) == [
        "3 cases ran: 1 passed, 1 known, 1 failed, 0 errors; 2 skipped",
        "  skipped 2: no 1G pages",
    ]


def test_text_of_a_kernel_is_no_markup() -> None:
    console = Console(file=io.StringIO(), width=200)
    print_table(console, RESULTS)
    print_reasons(console, RESULTS, [Outcome.FAIL])
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.count("[red]x[/red] [/bad]") == 2


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([], 3),
        (["pass"], 0),
        (["known"], 0),
        (["pass", "skip"], 0),
        (["skip"], 2),
        (["warn", "pass"], 1),
        (["fail", "pass"], 1),
        (["error", "pass"], 3),
        (["error", "fail"], 1),
    ],
)
def test_exit_codes(outcomes: list[str], code: int) -> None:
    assert exit_code([CaseResult("/a", Outcome(outcome)) for outcome in outcomes]) == code


def test_worst() -> None:
    assert worst([Outcome.SKIP, Outcome.FAIL, Outcome.WARN]) is Outcome.FAIL
    assert worst([]) is Outcome.PASS


def test_what_others_changed_is_one_line() -> None:
    assert line_on_others(["/etc/a"]) == "others changed 1 thing meanwhile: /etc/a"
    many = line_on_others([f"/tmp/{number}" for number in range(10)])
    assert many.startswith("others changed 10 things meanwhile: /tmp/0, /tmp/1, ")
    assert many.endswith("/tmp/7 and 2 more")
