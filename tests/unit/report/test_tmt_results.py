"""results.yaml holds what tmt accepts, and nothing else."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hugepage_qa.cases.result import Result, Verdict, one_line
from hugepage_qa.report.tmt_results import format_duration, parse_duration, read_run, write_results
from hugepage_qa.schema import find_violation

# the keys that tmt's Result has and that a test may set; another one stops tmt's whole plan
_KEYS_OF_TMT = {"name", "result", "note", "log", "duration"}


def written(results: list[Result], data: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = yaml.safe_load(write_results(results, data).read_text(encoding="utf-8"))
    return entries


@pytest.mark.parametrize(
    ("outcome", "result"),
    [
        (Verdict.PASS, "pass"),
        (Verdict.KNOWN, "info"),
        (Verdict.SKIP, "skip"),
        (Verdict.FAIL, "fail"),
        (Verdict.ERROR, "error"),
    ],
)
def test_outcomes(outcome: Verdict, result: str, tmp_path: Path) -> None:
    assert written([Result("/a", outcome)], tmp_path)[0]["result"] == result


def test_logs_are_copied_and_named_relative_to_the_data(tmp_path: Path) -> None:
    log = tmp_path / "serial.log"
    log.write_text("serial\n", encoding="utf-8")
    data = tmp_path / "data"
    data.mkdir()
    # the same but for odd characters
    entries = written([Result(name, Verdict.FAIL, logs=(log,)) for name in ("/a:b", "/a;b")], data)
    paths = [path for entry in entries for path in entry["log"]]
    assert len(set(paths)) == 2
    assert all((data / path).read_text(encoding="utf-8") == "serial\n" for path in paths)
    assert not any(Path(path).is_absolute() or ".." in path for path in paths)


@given(
    st.lists(
        st.builds(
            Result,
            name=st.just("/") | st.just("/a/b"),
            verdict=st.sampled_from(Verdict),
            reasons=st.lists(st.text().map(one_line), max_size=2).map(tuple),
            seconds=st.floats(min_value=0, max_value=1e6),
        ),
        max_size=3,
    )
)
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, results: list[Result]) -> None:
    data = tmp_path_factory.mktemp("run") / "plans" / "execute"
    data.mkdir(parents=True)
    entries = written(results, data)
    assert all(entry.keys() <= _KEYS_OF_TMT for entry in entries)
    assert find_violation(entries, "hugepage_qa.report", "tmt-results") is None
    again = read_run(data.parent)
    assert [(one.name, one.verdict) for one in again] == [(one.name, one.verdict) for one in results]
    assert [one.reasons for one in again] == [one.reasons for one in results]


@pytest.mark.parametrize("outcome", [Verdict.FAIL, Verdict.ERROR])
def test_reasons_of_bad_results_are_where_tmt_takes_them_for_junit(outcome: Verdict, tmp_path: Path) -> None:
    reasons = ("free_hugepages is 1, expected 2: pool-size", "yes")
    (entry,) = written([Result("/a", outcome, reasons)], tmp_path)
    (log,) = entry["log"]
    assert Path(log).name == "failures.yaml"
    assert yaml.safe_load((tmp_path / log).read_text(encoding="utf-8")) == list(reasons)


@pytest.mark.parametrize("outcome", [Verdict.PASS, Verdict.KNOWN, Verdict.SKIP])
def test_reasons_of_other_results_are_no_failures(outcome: Verdict, tmp_path: Path) -> None:
    (entry,) = written([Result("/a", outcome, ("why",))], tmp_path)
    assert "log" not in entry


def test_nothing_but_results_and_logs_is_left(tmp_path: Path) -> None:
    write_results([Result("/a", Verdict.PASS)], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["results.yaml"]


@pytest.mark.parametrize(("seconds", "text"), [(0, "00:00:00"), (59.6, "00:01:00"), (36003, "10:00:03")])
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
    assert parse_duration(text) == round(seconds)
