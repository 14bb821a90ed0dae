"""A result is shown while the tests still run, and none is lost at the end."""

from pathlib import Path
from threading import Event

from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.report.case_recorder import append_result, shown_as_they_come

FIRST = Result("/pool/grow/2M", Verdict.PASS, (), 0.5)
SECOND = Result("/pool/grow/1G", Verdict.FAIL, ("nr_hugepages: expected 1, found \u2028 0",), 2.0)
_LONG = 60


def test_results_come_while_the_run_goes_on_and_at_its_end(tmp_path: Path) -> None:
    shown: list[Result] = []
    came = Event()

    def show(result: Result) -> None:
        shown.append(result)
        came.set()

    with shown_as_they_come(tmp_path / "results", show):
        append_result(tmp_path / "results", FIRST)
        assert came.wait(_LONG)
        assert shown == [FIRST]
        append_result(tmp_path / "results", SECOND)
    assert shown == [FIRST, SECOND]


def test_a_line_is_shown_when_it_is_whole(tmp_path: Path) -> None:
    shown: list[Result] = []
    with shown_as_they_come(tmp_path / "results", shown.append):
        append_result(tmp_path / "results", FIRST)
        with (tmp_path / "results").open("a", encoding="utf-8") as file:
            file.write('["/half')
    assert shown == [FIRST]
