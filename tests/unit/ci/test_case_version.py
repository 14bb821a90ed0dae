"""The version of a part changes with its cases and what they use, and with nothing else."""

from pathlib import Path

import pytest
from ci import survey as module
from ci.survey import case_versions

LIBRARY = (
    "cases/judge.py",
    "cases/boot/a.yaml",
    "oracle/rules.py",
    "kernel/smaps.py",
    "machine/knobs.py",
    "process/programs/agent/agent.c",
    "process/programs/agent/agent.h",
    "qemu/init.sh",
)
OF_OTHERS = ("cases/guest/g.py", "machine/boot_loader/l.py", "qemu/system/s.py", "report/r.py")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (*LIBRARY, *OF_OTHERS):
        _write(tmp_path / "library" / name)
    for name in ("pool/pool.py", "guest/start.py", "unit/test_a.py"):
        _write(tmp_path / "tests" / name)
    monkeypatch.setattr(module, "_LIBRARY", tmp_path / "library")
    monkeypatch.setattr(module, "tests_directory", lambda: tmp_path / "tests")
    return tmp_path


def _write(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(file.name)


@pytest.mark.parametrize("name", [*(f"library/{name}" for name in LIBRARY), "tests/pool/pool.py"])
def test_what_decides_about_a_kernel_makes_another_version(tree: Path, name: str) -> None:
    before = case_versions()
    (tree / name).rename((tree / name).with_stem("other"))
    assert case_versions() != before
    (tree / name).write_text("changed")
    (tree / name).with_stem("other").unlink()
    assert case_versions() != before


@pytest.mark.parametrize("name", [*(f"library/{name}" for name in OF_OTHERS), "tests/guest/start.py", "tests/a.py"])
def test_what_does_not_makes_none(tree: Path, name: str) -> None:
    before = case_versions()
    _write(tree / name)
    (tree / name).write_text("changed")
    (tree / "library" / "cases" / "__pycache__").mkdir()
    (tree / "library" / "cases" / "__pycache__" / "judge.pyc").touch()
    assert case_versions() == before


def test_cases_of_an_area_are_of_its_part_alone(tree: Path) -> None:
    before = case_versions()
    (tree / "tests" / "pool" / "pool.py").write_text("changed")
    assert {part for part, version in case_versions().items() if version != before[part]} == {"pool"}


def test_the_tree_itself_has_one_for_each_part() -> None:
    assert {len(version) for version in case_versions().values()} == {12}
