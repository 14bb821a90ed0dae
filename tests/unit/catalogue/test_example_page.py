"""Somebody who does what the page "Add a case" says has a case that works, and that can fail."""

import ast
from pathlib import Path

import pytest
import yaml
from tests.unit.cases.recorded import WithoutEvidence
from tests.unit.catalogue.example_page import blocks, read_record, run

from hugepage_qa.cases.result import Verdict
from hugepage_qa.catalogue.catalogued_tests import catalogued_tests
from hugepage_qa.catalogue.pages import problems
from hugepage_qa.catalogue.references import References

LONGEST_CASE = 10


def python() -> str:
    (code,) = blocks("python")
    return code


def test_the_case_passes_on_a_machine_that_did_as_recorded() -> None:
    judgement = run(python(), WithoutEvidence(read_record()))
    assert (judgement.verdict, judgement.reason) == (Verdict.PASS, "")


@pytest.mark.parametrize(("true", "false"), [("surplus=1", "surplus=0"), ("nr=1", "nr=2"), ("free=0", "free=1")])
def test_a_case_that_claims_something_else_does_not_pass(true: str, false: str) -> None:
    assert true in python()
    assert run(python().replace(true, false), WithoutEvidence(read_record())).verdict is Verdict.FAIL


def test_the_case_has_ten_lines() -> None:
    (function,) = (node for node in ast.parse(python()).body if isinstance(node, ast.FunctionDef))
    first = min(decorator.lineno for decorator in function.decorator_list)
    assert function.end_lineno is not None
    assert function.end_lineno - first + 1 <= LONGEST_CASE


def test_what_the_page_says_is_found_and_documented(tmp_path: Path) -> None:
    metadata, _boot = blocks("yaml")
    mine = tmp_path / "tests" / "mine"
    mine.mkdir(parents=True)
    (tmp_path / ".fmf").mkdir()
    (tmp_path / ".fmf" / "version").write_text("1\n", encoding="utf-8")
    (tmp_path / "tests" / "main.fmf").write_text("require: []\n", encoding="utf-8")
    (mine / "main.fmf").write_text(metadata, encoding="utf-8")
    (mine / "mine.py").write_text(python(), encoding="utf-8")
    (test,) = catalogued_tests(tmp_path)
    assert [entry.name for entry in test.entries] == ["mine/mine/empty-while-used"]
    assert not list(problems([test], References.known()))


def test_the_boot_case_is_one() -> None:
    _metadata, boot = blocks("yaml")
    (case,) = yaml.safe_load(boot)
    assert {"name", "words", "source"} <= case.keys()
    assert not list(References.known().problems(case["source"]))
