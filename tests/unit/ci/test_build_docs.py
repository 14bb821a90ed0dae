"""The build of the documentation stops at a case that is not documented, before it builds anything."""

from pathlib import Path

import pytest
from ci import build_docs

from hugepage_qa.catalogue.catalogued_tests import CataloguedTest, Entry
from hugepage_qa.errors import InputError


def catalogued(source: str) -> CataloguedTest:
    entry = Entry("pool/grow", "the pool grows", source)
    return CataloguedTest("/tests/pool/resize", "Pools", "Resizes them.", "5m", (entry,))


@pytest.mark.parametrize("source", ["", "mm/hugetbl.c"])
def test_a_case_without_a_living_source_fails_the_build(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build_docs, "BUILD", tmp_path / "docs")
    monkeypatch.setattr(build_docs, "catalogued_tests", lambda _root: [catalogued(source)])
    assert build_docs.main() == 1
    assert "/tests/pool/resize: case pool/grow" in capsys.readouterr().err
    assert not (tmp_path / "docs").exists()


def test_a_tree_that_is_none_is_wrong_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_root: Path) -> list[CataloguedTest]:
        raise InputError("no tree")

    monkeypatch.setattr(build_docs, "BUILD", tmp_path / "docs")
    monkeypatch.setattr(build_docs, "catalogued_tests", refuse)
    assert build_docs.main() == 3
    assert capsys.readouterr().err == "docs: no tree\n"


def test_a_bad_record_of_a_kernel_is_wrong_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs" / "kernels").mkdir(parents=True)
    (tmp_path / "docs" / "kernels" / "sid-s390x.json").write_text("{}")
    monkeypatch.setattr(build_docs, "ROOT", tmp_path)
    monkeypatch.setattr(build_docs, "BUILD", tmp_path / "build")
    monkeypatch.setattr(build_docs, "catalogued_tests", lambda _root: [catalogued("mm/hugetlb.c")])
    assert build_docs.main() == 3
    told = capsys.readouterr().err
    assert told.startswith(f"docs: {tmp_path}/docs/kernels/sid-s390x.json: ")
    assert len(told.splitlines()) == 1
