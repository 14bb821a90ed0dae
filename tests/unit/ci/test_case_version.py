"""The version of the cases changes with each of them, and with nothing else."""

from pathlib import Path

import pytest
from ci import survey as module
from ci.survey import case_version


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("cases/judge.py", "cases/boot/a.yaml", "cases/guest/g.py", "oracle/rules.py", "report/r.py"):
        _write(tmp_path / "library" / name)
    for name in ("pool/pool.py", "guest/start.py", "unit/test_a.py"):
        _write(tmp_path / "tests" / name)
    monkeypatch.setattr(module, "_LIBRARY", tmp_path / "library")
    monkeypatch.setattr(module, "tests_directory", lambda: tmp_path / "tests")
    return tmp_path


def _write(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(file.name)


@pytest.mark.parametrize(
    "name", ["library/cases/judge.py", "library/cases/boot/a.yaml", "library/oracle/rules.py", "tests/pool/pool.py"]
)
def test_what_decides_about_a_kernel_makes_another_version(tree: Path, name: str) -> None:
    before = case_version()
    (tree / name).rename((tree / name).with_stem("other"))
    assert case_version() != before
    (tree / name).write_text("changed")
    (tree / name).with_stem("other").unlink()
    assert case_version() != before


@pytest.mark.parametrize(
    "name", ["library/cases/guest/g.py", "library/report/r.py", "tests/guest/start.py", "tests/a.py"]
)
def test_what_does_not_makes_none(tree: Path, name: str) -> None:
    before = case_version()
    _write(tree / name)
    (tree / name).write_text("changed")
    (tree / "library" / "cases" / "__pycache__").mkdir()
    (tree / "library" / "cases" / "__pycache__" / "judge.pyc").touch()
    assert case_version() == before


def test_the_tree_itself_has_one() -> None:
    assert len(case_version()) == 12
