"""The table of what cases take: of which results it is made."""

from pathlib import Path

import pytest
from ci import case_seconds

from hugepage_qa.cases.result import Result, Verdict

CASES = {"/pool/grow", "/thp/once"}


def test_the_table_has_what_cases_took_on_the_default_cpu() -> None:
    results = [
        Result("/thp/once", Verdict.KNOWN, ("a-bug",), 2.06),
        Result("/pool/grow/2M", Verdict.PASS, (), 0.44),
        Result("/pool/grow/1G", Verdict.SKIP, ("no pages",), 0.01),
        Result("/pool/grow/2M@qemu64", Verdict.PASS, (), 9.0),
        Result("/counts/zero", Verdict.PASS, (), 3.0),
    ]
    assert case_seconds.seconds_of(results, CASES) == {"/pool/grow/2M": 0.4, "/thp/once": 2.1}


def test_what_is_no_check_is_refused_and_the_table_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = case_seconds.TABLE.read_bytes()
    assert case_seconds.main([str(tmp_path)]) == 3
    assert case_seconds.main([]) == 3
    assert capsys.readouterr().err.startswith("case-seconds: ")
    assert case_seconds.TABLE.read_bytes() == before
