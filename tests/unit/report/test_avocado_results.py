"""What an Avocado job left is read without trust: nothing garbled, missing or hostile turns into a pass."""

import json
from pathlib import Path
from typing import Any

import pytest

from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.report.avocado_results import read_job


class Job:
    """The directory of an Avocado job, as Avocado 113 lays it out."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.directory = root / "job-2026-01-01T00.00-abcdef0"
        self.directory.mkdir(parents=True)
        self.tests: list[dict[str, Any]] = []
        self.not_started = 0

    def add(self, status: str = "PASS", cases: object = None, **changes: Any) -> Path:
        """Add a test whose whiteboard holds ``cases``; return the directory of its files."""
        logs = self.directory / "test-results" / f"{len(self.tests) + 1}-boot.py_Boot.test"
        (logs / "data").mkdir(parents=True)
        (logs / "debug.log").write_text("debug\n", encoding="utf-8")
        whiteboard = "" if cases is None else json.dumps({"cases": cases})
        test = {"name": "tests/boot.py:Boot.test", "status": status, "time_elapsed": 1.25, "logdir": str(logs)}
        self.tests.append(test | {"whiteboard": whiteboard, "fail_reason": None} | changes)
        return logs / "data"

    def read(self) -> list[Result]:
        """Write results.json and read the job."""
        text = json.dumps({"tests": self.tests, "total": len(self.tests) + self.not_started})
        (self.directory / "results.json").write_text(text, encoding="utf-8")
        return read_job(self.root)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "jobs")


def case(name: str = "/a", verdict: str = "pass", **changes: Any) -> dict[str, Any]:
    return {"name": name, "verdict": verdict, "reason": "", "log": None, "seconds": 0.5} | changes


def only_error(results: list[Result]) -> str:
    """Return why the only result is an error."""
    assert [result.verdict for result in results] == [Verdict.ERROR]
    return " ".join(results[0].reasons)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        ("PASS", Verdict.PASS),
        ("FAIL", Verdict.FAIL),
        ("ERROR", Verdict.ERROR),
        ("SKIP", Verdict.SKIP),
        ("CANCEL", Verdict.SKIP),
        ("WARN", Verdict.FAIL),
        ("INTERRUPTED", Verdict.ERROR),
        ("STARTED", Verdict.ERROR),
    ],
)
def test_a_test_without_whiteboard_is_one_result(job: Job, status: str, outcome: Verdict) -> None:
    job.add(status, fail_reason="two\nlines")
    [result] = job.read()
    assert (result.name, result.verdict, result.seconds) == ("/boot/Boot.test", outcome, 1.25)
    assert "two lines" in result.reasons
    assert [log.name for log in result.logs] == ["debug.log"]


def test_a_test_that_could_not_be_loaded(job: Job) -> None:
    job.add("ERROR", whiteboard="<unknown>", fail_reason="No module named 'x'")
    assert job.read()[0].reasons == ("No module named 'x'",)


def test_each_case_is_a_result_with_its_log(job: Job) -> None:
    data = job.add("FAIL", [case("/a/b", log="b.log"), case("/a/c", "fail", reason="2 pages, not 4")])
    (data / "b.log").write_text("serial\n", encoding="utf-8")
    assert job.read() == [
        Result("/a/b", Verdict.PASS, (), 0.5, logs=(data / "b.log",)),
        Result("/a/c", Verdict.FAIL, ("2 pages, not 4",), 0.5),
    ]


@pytest.mark.parametrize("verdict", ["pass", "known", "fail", "error", "skip"])
def test_verdicts(job: Job, verdict: str) -> None:
    job.add("PASS", [case(verdict=verdict)])
    assert job.read()[0].verdict.value == verdict


@pytest.mark.parametrize(
    ("status", "verdict", "extra"),
    [
        ("ERROR", "pass", True),
        ("ERROR", "fail", True),
        ("INTERRUPTED", "pass", True),
        ("FAIL", "pass", True),
        ("ERROR", "error", False),
        ("FAIL", "fail", False),
        ("FAIL", "error", True),
        ("CANCEL", "skip", False),
        ("PASS", "known", False),
    ],
)
def test_a_failure_outside_the_cases_is_an_error(job: Job, status: str, verdict: str, extra: bool) -> None:
    job.add(status, [case(verdict=verdict)], fail_reason="boom")
    results = job.read()
    assert results[0].verdict.value == verdict
    if extra:
        assert "boom" in only_error(results[1:])
    else:
        assert len(results) == 1


@pytest.mark.parametrize(
    "whiteboard",
    [
        "plain text",
        '{"cases": [',
        "[]",
        "null",
        '{"cases": []}',
        '{"cases": {}}',
        '{"cases": [1]}',
        json.dumps({"cases": [case()], "more": 1}),
        json.dumps({"cases": [case() | {"more": 1}]}),
        json.dumps({"cases": [{"name": "/a", "verdict": "pass"}]}),
        json.dumps({"cases": [case("a")]}),
        json.dumps({"cases": [case("/")]}),
        json.dumps({"cases": [case("/a/../b")]}),
        json.dumps({"cases": [case("/a\n")]}),
        json.dumps({"cases": [case("/a b")]}),
        json.dumps({"cases": [case(verdict="passed")]}),
        json.dumps({"cases": [case(seconds=-1)]}),
        json.dumps({"cases": [case(seconds=float("nan"))]}),
        json.dumps({"cases": [case(seconds=float("inf"))]}),
        json.dumps({"cases": [case("/a"), case("/a", "fail")]}),
    ],
)
def test_a_garbled_whiteboard_is_an_error(job: Job, whiteboard: str) -> None:
    job.add("PASS", whiteboard=whiteboard)
    assert only_error(job.read()).startswith("whiteboard: ")


def test_a_whiteboard_with_something_else_leaves_the_test_one_result(job: Job) -> None:
    job.add("PASS", whiteboard='{"nanoseconds": 12}')
    assert [result.verdict for result in job.read()] == [Verdict.PASS]


@pytest.mark.parametrize(
    "name", ["../debug.log", "../../../../../../../../etc/passwd", "/etc/passwd", "link", "a\0b", "."]
)
def test_a_log_outside_the_data_is_refused(job: Job, name: str) -> None:
    data = job.add("FAIL", [case(verdict="fail", reason="why", log=name)])
    (data / "link").symlink_to("/etc/passwd")
    [result] = job.read()
    assert (result.verdict, result.logs, result.reasons[0]) == (Verdict.FAIL, (), "why")
    assert result.reasons[1].startswith("log ")


def test_a_loop_of_links_and_a_missing_log(job: Job) -> None:
    data = job.add("PASS", [case("/loop", log="loop"), case("/none", log="none.log")])
    (data / "loop").symlink_to("loop")
    results = job.read()
    assert [result.verdict for result in results] == [Verdict.PASS, Verdict.PASS]
    assert all(result.reasons and not result.logs for result in results)


def test_no_file_is_taken_from_a_directory_outside_the_job(job: Job, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.log").write_text("secret", encoding="utf-8")
    job.add("PASS", [case(log="a.log")], logdir=str(tmp_path))
    [result] = job.read()
    assert not result.logs
    assert "not inside the job" in result.reasons[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"tests": []}',
        '{"tests": [{}]}',
        '{"tests": [{"name": "a", "status": "PASS", "time_elapsed": NaN, "logdir": "/"}]}',
        "\xff",
    ],
)
def test_a_garbled_results_file_is_an_error(job: Job, text: str) -> None:
    (job.directory / "results.json").write_bytes(text.encode("latin-1"))
    assert "no results from Avocado" in only_error(read_job(job.root))


def test_a_job_that_ran_nothing_is_an_error(job: Job, tmp_path: Path) -> None:
    assert "ran no test" in only_error(read_job(job.root))
    assert "0 jobs" in only_error(read_job(tmp_path / "missing"))
    (job.root / "job-other").mkdir()
    assert "2 jobs" in only_error(read_job(job.root))


def test_reasons_are_one_printable_line(job: Job) -> None:
    job.add("FAIL", [case(verdict="fail", reason="a\n b\x1b[31m \ud800 ü")])
    assert job.read()[0].reasons == ("a b\\x1b[31m \\ud800 ü",)


def test_tests_that_were_not_started_are_told(job: Job) -> None:
    job.add("FAIL", [case(verdict="fail")])
    job.not_started = 3
    *_, last = job.read()
    assert (last.name, last.verdict) == ("/", Verdict.SKIP)
    assert last.reason == "3 tests of Avocado were not started: the run was ended before"
