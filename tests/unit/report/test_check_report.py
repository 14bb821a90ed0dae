"""What people and programs read of the check of a kernel, while it runs and at its end."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.errors import InputError
from hugepage_qa.report import check_report
from hugepage_qa.report.check_report import CheckReport

FAILED = Result("/pool/grow/2M", Verdict.FAIL, ("[red]1 page[/red]", "2 were\nwanted"), 1.234, "the evidence\n\udcff")


@pytest.fixture(autouse=True)
def has_a_terminal_that_can_move_its_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


def report(output: Path | None = None, *, is_terminal: bool = False) -> tuple[CheckReport, io.StringIO]:
    text = io.StringIO()
    return CheckReport(Console(file=text, width=100, force_terminal=is_terminal), output), text


def test_elsewhere_than_on_a_terminal_each_area_is_a_line() -> None:
    made, text = report()
    made.start("x86_64: kernel 6.1.0", 4)
    made.add(Result("/pool/a", Verdict.PASS))
    made.finished("pool 2M", [Result("/pool/a", Verdict.PASS), Result("/pool/b", Verdict.PASS), FAILED], 12.34)
    made.finished("thp once", [], 0.04)
    made.stop()
    assert text.getvalue() == (
        "x86_64: kernel 6.1.0\n      pool 2M: 2 pass, 1 fail, 12.3 s\n      thp once: no case for this machine, 0.0 s\n"
    )


def test_a_terminal_that_cannot_move_its_cursor_is_told_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    made, text = report(is_terminal=True)
    made.start("x86_64: kernel 6.1.0", 1)
    made.finished("pool 2M", [Result("/pool/a", Verdict.PASS)], 12.34)
    made.stop()
    assert text.getvalue() == "x86_64: kernel 6.1.0\n      pool 2M: 1 pass, 12.3 s\n"


def test_what_went_wrong_is_told_at_once_in_one_line() -> None:
    made, text = report()
    for verdict in Verdict:
        made.add(Result(f"/{verdict}", verdict, ("it [b]is\nso[/b]",)))
    assert text.getvalue() == (
        "known /known: it [b]is so[/b]\nerror /error: it [b]is so[/b]\nfail  /fail: it [b]is so[/b]\n"
    )


def test_elsewhere_than_on_a_terminal_it_says_now_and_then_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_report, "_BETWEEN_LINES", 0.0)
    made, text = report()
    made.start("title", 7)
    made.add(Result("/bad", Verdict.FAIL, ("it",)))
    made.add(Result("/good", Verdict.PASS))
    assert text.getvalue().splitlines()[-1] == "2 of some 7 cases, 1 failed, now /good"
    monkeypatch.setattr(check_report, "_BETWEEN_LINES", 1000.0)
    made.add(Result("/better", Verdict.PASS))
    made.under_way("3 of 5 random operations")
    assert "/better" not in text.getvalue()
    assert "random" not in text.getvalue()
    monkeypatch.setattr(check_report, "_BETWEEN_LINES", 0.0)
    made.under_way("4 of 5 random operations")
    assert text.getvalue().splitlines()[-1] == "      4 of 5 random operations"


def test_on_a_terminal_there_is_a_bar_that_counts_and_goes() -> None:
    made, text = report(is_terminal=True)
    made.start("x86_64: kernel 6.1.0", 3)
    made.add(Result("/good", Verdict.PASS))
    made.add(FAILED)
    made.finished("pool 2M", [FAILED], 1.0)
    made.under_way("4 of 5 random operations")
    made.stop()
    shown = text.getvalue()
    assert "1 failed, 4 of 5 random operations" in shown
    assert "0/3" in shown
    assert "2/3" in shown
    assert "1 failed" in shown
    assert "fail  /pool/grow/2M: [red]1 page[/red]; 2 were wanted" in shown
    assert "pool 2M: 1 fail" not in shown, "the bar tells how far it is"
    assert shown.endswith("\x1b[2K"), "the bar is gone"


def test_a_second_architecture_goes_on_counting() -> None:
    made, text = report(is_terminal=True)
    for number in range(2):
        made.start(f"title {number}", 1)
        made.add(Result(f"/{number}", Verdict.PASS))
        made.stop()
    assert "1/1" in text.getvalue()
    assert "2/2" in text.getvalue()


def test_the_end_has_the_counts_and_why_cases_were_bad_or_skipped() -> None:
    made, text = report()
    made.results += [
        FAILED,
        Result("/a", Verdict.ERROR, ("broken",)),
        Result("/b", Verdict.KNOWN, ("bug",)),
        Result("/c", Verdict.PASS, ("fine",)),
        Result("/d", Verdict.SKIP, ("no 1G pages",)),
    ]
    made.finish()
    lines = text.getvalue().splitlines()
    # what is known was told as it came
    assert [line.split()[0] for line in lines[:-2] if line and not line.startswith("wanted")] == ["fail", "error"]
    assert lines[-2] == "4 cases ran: 1 passed, 1 known, 1 failed, 1 errors; 1 skipped, 1 rule untested"
    assert lines[-1] == "  skipped 1: no 1G pages; untested: /d"
    assert "fine" not in text.getvalue()


def test_results_and_evidence_are_kept(tmp_path: Path) -> None:
    output = tmp_path / "new" / "output"
    made, text = report(output)
    made.start("title", 3)
    made.add(FAILED)
    made.add(Result("/a", Verdict.ERROR, ("broken",)))
    made.add(Result("/c@qemu64", Verdict.PASS, evidence="of no use"))
    assert [file.name for file in output.iterdir()] == ["pool-grow-2M.log"], "at once"
    assert (output / "pool-grow-2M.log").read_text() == (
        "/pool/grow/2M: fail: [red]1 page[/red]; 2 were\nwanted\nthe evidence\n?"
    )
    made.kernels["x86_64"] = "6.1.0"
    made.finish()
    assert json.loads((output / "kernels.json").read_text()) == {"x86_64": "6.1.0"}
    assert json.loads((output / "results.json").read_text()) == [
        {
            "name": "/pool/grow/2M",
            "verdict": "fail",
            "reasons": ["[red]1 page[/red]", "2 were\nwanted"],
            "seconds": 1.23,
        },
        {"name": "/a", "verdict": "error", "reasons": ["broken"], "seconds": 0.0},
        {"name": "/c@qemu64", "verdict": "pass", "reasons": [], "seconds": 0.0},
    ]
    assert f"results and evidence: {output}" in text.getvalue().replace("\n", "")


def test_without_an_output_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made, _text = report()
    made.start("title", 1)
    made.add(FAILED)
    made.finish()
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("file", "link", "."):
        with pytest.raises(InputError, match=r"--output .*: is there already; expected a new directory"):
            report(tmp_path / name)


def test_a_directory_that_cannot_be_made_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    made, _text = report(tmp_path / "file" / "output")
    with pytest.raises(InputError, match=r"--output .*: Not a directory; expected a new directory"):
        made.start("title", 1)


def test_wrong_input_leaves_no_directory(tmp_path: Path) -> None:
    report(tmp_path / "output")
    assert not (tmp_path / "output").exists()
