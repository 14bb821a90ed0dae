"""What the miniature CI worker takes for a good run, and for a failure that was seen."""

from pathlib import Path

import pytest
from ci import worker_test
from ci.worker_test import Seen, judge_clean, judge_injected

from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.errors import InputError

GOOD = '<testcase name="/tests/pool/resize/pool/other-sizes-stay/2M"/>'
FAILED = '<testcase name="/tests/pool/resize/pool/grow-and-shrink/2M"><failure message="fail">{}</failure></testcase>'
REASON = "hugepages-2048kB free at pool.py:28: expected 2, found 1 (rule grow-and-shrink: the pool has as many)"


def seen(tmp_path: Path, code: int, *cases: str, outcome: Verdict = Verdict.PASS) -> Seen:
    junit = tmp_path / "junit.xml"
    junit.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>", encoding="utf-8")
    return Seen(code, [Result("/a", outcome)] * len(cases), junit, 1.0)


def test_a_good_run_is_good(tmp_path: Path) -> None:
    assert not judge_clean(seen(tmp_path, 0, GOOD))


@pytest.mark.parametrize(
    ("code", "cases", "outcome"),
    [
        (2, [GOOD], Verdict.PASS),
        (0, [GOOD, FAILED.format(REASON)], Verdict.PASS),
        (0, [GOOD], Verdict.SKIP),
        (0, [], Verdict.PASS),
    ],
)
def test_a_run_that_is_not_good_is_found(code: int, cases: list[str], outcome: Verdict, tmp_path: Path) -> None:
    assert judge_clean(seen(tmp_path, code, *cases, outcome=outcome))


def test_results_that_junit_lacks_are_found(tmp_path: Path) -> None:
    good = seen(tmp_path, 0, GOOD)
    assert judge_clean(Seen(0, [*good.results, *good.results], good.junit, 1.0))


def test_an_injected_failure_that_is_seen_is_good(tmp_path: Path) -> None:
    assert not judge_injected(seen(tmp_path, 1, GOOD, FAILED.format(REASON)))


@pytest.mark.parametrize(
    ("code", "cases"),
    [
        (0, [FAILED.format(REASON)]),
        (1, [GOOD]),
        (1, [FAILED.format("")]),
        (1, [FAILED.format(REASON), GOOD.replace("/>", "><error>x</error></testcase>")]),
    ],
)
def test_an_injected_failure_that_is_not_seen_is_found(code: int, cases: list[str], tmp_path: Path) -> None:
    assert judge_injected(seen(tmp_path, code, *cases))


def test_no_junit_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected the JUnit file"):
        judge_clean(Seen(0, [], tmp_path / "none.xml", 1.0))


def test_the_case_to_falsify_is_there() -> None:
    assert (worker_test.ROOT / worker_test.CASE).read_text(encoding="utf-8").count(worker_test.TRUE)
