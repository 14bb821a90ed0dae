"""The results of a tmt run are read back whatever tmt left."""

from pathlib import Path

import pytest

from hugepage_qa.cases.result import Verdict
from hugepage_qa.report.tmt_results import read_run

# as tmt 1.78 writes it
_OF_TMT = """\
- __class__:
    module: tmt.result
    name: Result
  check: []
  data-path: null
  duration: 10:00:03
  log:
  - data/guest/default-0/tests/env-1/data/logs/a.log
  name: /tests/env/a/b
  note:
  - yes
  result: info
  serial-number: 1
- name: /tests/never
  duration: null
  log: []
  note: []
  result: pending
"""


def run_with(tmp_path: Path, text: str) -> Path:
    execute = tmp_path / "plans" / "smoke" / "execute"
    execute.mkdir(parents=True)
    (execute / "results.yaml").write_text(text, encoding="utf-8")
    return tmp_path


def test_results_of_tmt(tmp_path: Path) -> None:
    known, never = read_run(run_with(tmp_path, _OF_TMT))
    assert (known.verdict, known.reasons, known.seconds) == (Verdict.KNOWN, ("yes",), 36003)
    assert known.logs[0] == tmp_path / "plans/smoke/execute/data/guest/default-0/tests/env-1/data/logs/a.log"
    assert (never.verdict, never.reasons) == (Verdict.ERROR, ("tmt did not execute it",))


@pytest.mark.parametrize("text", ["", "{", "[1]", "- {name: /a}", "- {name: /a, result: good}", "a: [", "\x00"])
def test_a_garbled_file_is_an_error(tmp_path: Path, text: str) -> None:
    results = read_run(run_with(tmp_path, text))
    assert [result.verdict for result in results] == [Verdict.ERROR]


def test_a_run_without_results_is_an_error(tmp_path: Path) -> None:
    assert [result.verdict for result in read_run(tmp_path)] == [Verdict.ERROR]


def test_a_text_that_looks_like_keys_stays_whole(tmp_path: Path) -> None:
    keys = "- name: /a\n  check: []\n  guest:\n    name: x\n    role: null\n"
    text = f"{keys}  note:\n  - |\n    check: []\n    guest:\n  result: fail\n"
    (one,) = read_run(run_with(tmp_path, text))
    assert (one.name, one.verdict, one.reasons) == ("/a", Verdict.FAIL, ("check: [] guest:",))
