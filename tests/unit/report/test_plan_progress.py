"""A run of tmt that is not on a terminal tells how far it is."""

import os
import time
from pathlib import Path

import pytest

from hugepage_qa.report import tmt_results
from hugepage_qa.report.tmt_results import PlanProgress

_RESULTS = "- name: /one\n  result: pass\n- name: /two\n  result: skip\n- name: /three\n  result: pass\n"


class Run:
    """The directory of a run, and what was told of it."""

    def __init__(self, directory: Path, plan: str) -> None:
        self.plan = directory / "plans" / plan
        self.told: list[str] = []
        self.progress = PlanProgress(directory, self.told.append)
        discover = self.plan / "discover"
        discover.mkdir(parents=True)
        (discover / "tests.yaml").write_text("- name: /a\n  serial-number: 1\n- name: /b\n  serial-number: 2\n")

    def test(self, name: str) -> Path:
        directory = self.plan / "execute/data/guest/default-0/tests" / name
        (directory / "data").mkdir(parents=True, exist_ok=True)
        return directory

    def begin(self, name: str, minutes_ago: int = 0) -> Path:
        directory = self.test(name)
        file = directory / "tmt-test-topology.sh"
        file.write_text("")
        os.utime(file, (time.time() - 60 * minutes_ago,) * 2)
        return directory

    def end(self, name: str, results: str = _RESULTS, minutes_ago: int = 0) -> None:
        (self.begin(name, minutes_ago) / "data" / "results.yaml").write_text(results)

    def look(self, *, is_over: bool = False) -> list[str]:
        self.told.clear()
        self.progress.look(is_over=is_over)
        return [line.strip() for line in self.told]


@pytest.fixture(params=["thp", "guest"])
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Run:
    return Run(tmp_path, request.param)


def test_a_test_that_has_ended_is_told_once_with_what_came_of_its_cases(run: Run) -> None:
    assert run.look() == []
    run.test("thp/defrag-2")
    run.end("accounting/hugetlb/pool-1", minutes_ago=1)
    assert run.look() == []
    run.begin("thp/defrag-2")
    assert run.look() == ["/tests/accounting/hugetlb/pool: 2 pass, 1 skip; 1 of 2 tests"]
    assert run.look() == []


def test_results_that_are_there_while_it_runs_are_not_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tmt_results, "_SILENT_SECONDS", -1.0)
    run.end("reboot/cases-1", "- name: /not/run\n  result: error\n", minutes_ago=2)
    assert run.look() == ["/tests/reboot/cases runs for 2 min"]
    run.end("reboot/cases-1", minutes_ago=2)
    assert run.look(is_over=True) == ["/tests/reboot/cases: 2 pass, 1 skip; 1 of 2 tests"]


def test_they_are_told_in_the_order_in_which_they_began(run: Run) -> None:
    run.end("a-10", minutes_ago=1)
    run.end("b-9", minutes_ago=2)
    assert [line.partition(":")[0] for line in run.look(is_over=True)] == ["/tests/b", "/tests/a"]


def test_what_runs_is_told_after_a_silent_minute(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.begin("guest/balloon-1", minutes_ago=3)
    assert run.look() == []
    monkeypatch.setattr(tmt_results, "_SILENT_SECONDS", -1.0)
    assert run.look() == ["/tests/guest/balloon runs for 3 min"]


@pytest.mark.parametrize("results", ["", "no results", "- name: /one\n  result: fine\n"])
def test_results_that_cannot_be_read_are_the_readers_matter(run: Run, results: str) -> None:
    run.end("a-1", results)
    assert run.look(is_over=True) == ["/tests/a: ended; 1 of 2 tests"]


def test_it_looks_as_long_as_the_block_lasts(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tmt_results, "_LOOK_SECONDS", 0.01)
    with run.progress:
        run.end("a-1", minutes_ago=1)
        run.begin("b-2")
        end = time.monotonic() + 30
        while not run.told and time.monotonic() < end:
            time.sleep(0.01)
    run.end("c-3")
    time.sleep(0.05)
    assert [line.strip() for line in run.told] == ["/tests/a: 2 pass, 1 skip; 1 of 2 tests"]
