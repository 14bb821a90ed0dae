"""What a survey keeps of a kernel, and the page that is made of it."""

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from ci.build_docs import render_survey

from hugepage_qa.cases.expectations import KnownBug
from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.errors import InputError
from hugepage_qa.oracle.issue_tables import ALL_ISSUES
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.report.survey_record import (
    Amounts,
    Measured,
    SurveyRecord,
    make_record,
    read_record,
    read_records,
    write_record,
)

MEASURED = Measured("6.12.107+deb13-amd64", "0" * 12, "a" * 12, Amounts(20, 400, 1))
DAY = date(2026, 11, 23)
COUNT = ALL_ISSUES[Quirk.COUNT_NOT_RESERVED]
FORK = ALL_ISSUES[Quirk.FORK_LOSES_PAGES]
RESULTS = [
    Result("/pool/b", Verdict.FAIL, ("nr: expected `1`", "found\n2\udcff"), 1.0, "\n".join(map(str, range(99)))),
    Result("/memory/fork/1G", Verdict.KNOWN, (str(KnownBug(FORK)),)),
    Result("/counts/twice", Verdict.KNOWN, (COUNT.summary,)),
    Result("/counts/again", Verdict.KNOWN, (COUNT.summary,)),
    Result("/random/2M", Verdict.KNOWN, ("demote-takes-reserved, fork-loses-pages (400 operations)",)),
    Result("/pool/a", Verdict.PASS),
    Result("/pool/c", Verdict.SKIP, ("no",)),
    Result("/thp/broken", Verdict.ERROR, ("KeyError: 'x'",), 0.0, "a ``` b"),
]


def record(name: str = "trixie/x86_64", results: list[Result] = RESULTS) -> SurveyRecord:
    return make_record(name, MEASURED, DAY, results)


def test_what_is_kept_is_read_as_it_was(tmp_path: Path) -> None:
    made = record()
    write_record(tmp_path / "kernels", made)
    assert read_record(tmp_path / "kernels", "trixie/x86_64") == made
    assert read_record(tmp_path / "kernels", "sid/x86_64") is None
    other = record("sid/aarch64-16k", [Result("/a", Verdict.PASS)])
    write_record(tmp_path / "kernels", other)
    assert read_records(tmp_path / "kernels") == [other, made]


def test_each_difference_is_a_line_in_the_order_of_the_cases(tmp_path: Path) -> None:
    write_record(tmp_path, record())
    lines = (tmp_path / "trixie-x86_64.json").read_text().splitlines()
    cases = [line.split('"')[3] for line in lines if '"case"' in line]
    assert cases == ["/counts/again", "/counts/twice", "/memory/fork/1G", "/pool/b", "/random/2M", "/thp/broken"]


def test_issues_are_found_by_name_and_by_their_words() -> None:
    issues = {one.case: one.issues for one in record().differences}
    assert issues["/counts/twice"] == ("count-not-reserved",)
    assert issues["/memory/fork/1G"] == ("fork-loses-pages",)
    assert issues["/random/2M"] == ("demote-takes-reserved", "fork-loses-pages")


@pytest.mark.parametrize("quirk", ALL_ISSUES)
def test_every_issue_is_found_and_no_other_with_it(quirk: Quirk) -> None:
    issue = ALL_ISSUES[quirk]
    for reason in (str(KnownBug(issue)), issue.summary):
        (one,) = record(results=[Result("/a", Verdict.KNOWN, (reason,))]).differences
        assert one.issues == (quirk.value,)


def test_the_last_words_of_a_machine_are_kept() -> None:
    (failed,) = (one for one in record().differences if one.verdict is Verdict.FAIL)
    assert failed.evidence[-1] == "98"
    assert len(failed.evidence) == 40
    assert failed.reason == r"nr: expected `1`; found 2\udcff"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (('"day": "2026-11-23"', '"day": "2026-13-23"'), "cannot be read"),
        (('"day": "2026-11-23"', '"day": "today"'), "'today' does not match"),
        (('"seed": 1', '"seed": -1'), "-1 is less than"),
        (('"verdict": "error"', '"verdict": "pass"'), "'pass' is not one of"),
        (('"name": "trixie/x86_64"', '"name": "sid/x86_64"'), "expected it in sid-x86_64.json"),
        (('"pass": 1', '"pass": NaN'), "NaN is not JSON"),
    ],
    ids=str,
)
def test_a_bad_file_is_one_line_that_names_it(tmp_path: Path, change: tuple[str, str], told: str) -> None:
    write_record(tmp_path, record())
    file = tmp_path / "trixie-x86_64.json"
    text = file.read_text()
    assert change[0] in text
    file.write_text(text.replace(*change))
    for read in (lambda: read_record(tmp_path, "trixie/x86_64"), lambda: read_records(tmp_path)):
        with pytest.raises(InputError, match=told) as raised:
            read()
        assert str(file) in str(raised.value)
        assert len(str(raised.value).splitlines()) == 1


# --- the page ---


def test_a_row_counts_and_leads_to_the_differences() -> None:
    page = render_survey([record()], ["trixie/x86_64", "sid/s390x"])
    assert (
        "| [trixie/x86_64](#kernel-trixie-x86_64) | `6.12.107+deb13-amd64` | 7 | 1 | 4 | 1 | 1 | 1 | seed 1: 20, 400 |"
        " `aaaaaaaaaaaa` | 2026-11-23 |"
    ) in page
    assert "Not measured: sid/s390x." in page
    assert "(kernel-trixie-x86_64)=" in page


def test_what_is_known_leads_to_its_issue_and_what_failed_shows_its_evidence() -> None:
    page = render_survey([record()], [])
    assert (
        "* known, [count-not-reserved](known-issues.md#count-not-reserved): `/counts/again`, `/counts/twice`\n" in page
    )
    assert "**fail** `/pool/b`: ``` nr: expected `1`; found 2\\udcff ```\n\n```text\n59\n" in page
    assert "\n``````text\na ``` b\n``````\n" in page


def test_a_kernel_without_differences_leads_nowhere() -> None:
    page = render_survey([record(results=[Result("/a", Verdict.PASS)])], ["trixie/x86_64"])
    assert "| trixie/x86_64 | " in page
    assert "##" not in page
    assert "Not measured" not in page


def test_kernels_are_in_the_order_of_the_suites_and_none_is_lost() -> None:
    gone = replace(record(), name="buster/x86_64")
    page = render_survey([gone, record("sid/x86_64"), record()], ["trixie/x86_64", "sid/x86_64"])
    places = [page.index(f"| [{name}]") for name in ("trixie/x86_64", "sid/x86_64", "buster/x86_64")]
    assert places == sorted(places)


def test_without_any_the_page_says_what_is_missing() -> None:
    assert "Not measured: a, b." in render_survey([], ["a", "b"])
