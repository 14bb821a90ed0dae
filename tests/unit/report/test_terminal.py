"""What people read: counts that add up, reasons, and nothing taken for markup."""

import io

import pytest
from rich.console import Console

from hugepage_qa.cases.result import (
    Result,
    Verdict,
    exit_code,
    worst,
)
from hugepage_qa.report.terminal import closing_lines, line_on_others, print_reasons, print_result

RESULTS = [
    Result("/a", Verdict.PASS),
    Result("/b", Verdict.KNOWN, ("bug",)),
    Result("/c", Verdict.FAIL, ("HugeTLB: [red]x[/red] [/bad]",)),
    Result("/d", Verdict.SKIP, ("no 1G pages",)),
    Result("/e", Verdict.SKIP, ("no 1G pages",)),
]


def test_closing_lines_count_each_case_once() -> None:
    assert closing_lines(RESULTS) == [
        "3 cases ran: 1 passed, 1 known, 1 failed, 0 errors; 2 skipped, 2 rules untested",
        "  skipped 2: no 1G pages; untested: /d, /e",
    ]


def test_a_rule_that_was_tested_on_another_page_size_is_not_untested() -> None:
    skips = [Result(f"/{name}/1G", Verdict.SKIP, ("no 1G pages",)) for name in "abcdef"]
    tested = [Result("/a/2M", Verdict.FAIL, ("it",)), Result("/b/2M", Verdict.PASS)]
    assert closing_lines([*skips, *tested]) == [
        "2 cases ran: 1 passed, 0 known, 1 failed, 0 errors; 6 skipped, 4 rules untested",
        "  skipped 6: no 1G pages; untested: /c, /d, /e and 1 more",
    ]
    assert closing_lines([*skips[:2], *tested])[1:] == ["  skipped 2: no 1G pages"]


def test_text_of_a_kernel_is_no_markup() -> None:
    console = Console(file=io.StringIO(), width=200)
    for result in RESULTS:
        print_result(console, result)
    print_reasons(console, RESULTS, [Verdict.FAIL])
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
        (["fail", "pass"], 1),
        (["error", "pass"], 3),
        (["error", "fail"], 1),
    ],
)
def test_exit_codes(outcomes: list[str], code: int) -> None:
    assert exit_code(map(Verdict, outcomes)) == code


def test_worst() -> None:
    assert worst([Verdict.SKIP, Verdict.FAIL, Verdict.ERROR]) is Verdict.FAIL
    assert worst([]) is Verdict.PASS


def test_what_others_changed_is_one_line() -> None:
    assert line_on_others(["/etc/a"]) == "others changed 1 thing meanwhile: /etc/a"
    many = line_on_others([f"/tmp/{number}" for number in range(10)])
    assert many.startswith("others changed 10 things meanwhile: /tmp/0, /tmp/1, ")
    assert many.endswith("/tmp/7 and 2 more")
