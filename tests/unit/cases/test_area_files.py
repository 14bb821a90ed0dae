"""Which areas there are in the files below tests/, and what is no such file."""

import re
from pathlib import Path

import pytest

from hugepage_qa.cases import area_files
from hugepage_qa.cases.area_files import live_areas, read_areas
from hugepage_qa.errors import InputError

AREA = "from hugepage_qa.cases.case import Area\n"


@pytest.fixture
def tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of tests with two areas of pools and one of THP."""
    for name, text in {
        "main.fmf": "",
        "pool/a.py": f'{AREA}ONE = Area("one")\n',
        "pool/b.py": f'{AREA}TWO = Area("two")\nAGAIN = TWO\n',
        "pool/c.txt": "no Python",
        "thp/c.py": f'{AREA}THREE = Area("three")\n',
        "guest/d.py": f'{AREA}FOUR = Area("four")\n',
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(area_files, "_PLACES", (tmp_path / "none", tmp_path))
    return tmp_path


def names(*folders: str) -> list[str]:
    return [area.name for area in live_areas(folders)]


@pytest.mark.usefixtures("tests")
def test_a_folder_has_the_areas_of_its_files_each_once() -> None:
    assert names("pool") == ["one", "two"]
    assert names("thp", "pool") == ["three", "one", "two"]
    assert names("pool/b") == ["two"]
    assert names() == []


@pytest.mark.usefixtures("tests")
@pytest.mark.parametrize("folder", ["guest", "guest/d", "memory", "pool/none", "", "none", "../pool", "pool/a.py"])
def test_what_is_no_area_is_refused(folder: str) -> None:
    with pytest.raises(InputError, match=f"area {folder}: expected one of accounting, cgroup"):
        names(folder)


def test_a_file_that_cannot_be_imported_is_told_with_the_reason(tests: Path) -> None:
    (tests / "pool" / "a.py").write_text("import no_such_module\n")
    with pytest.raises(InputError, match=r"pool/a\.py: cannot be imported: ModuleNotFoundError: .*no_such_module"):
        names("pool")
    with pytest.raises(InputError, match=r"c\.txt: expected a Python file"):
        read_areas(tests / "pool" / "c.txt")


def test_without_tests_it_is_said_where_they_would_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(area_files, "_PLACES", (tmp_path,))
    with pytest.raises(InputError, match=f"no tests in {tmp_path}: run it from a checkout"):
        area_files.tests_directory()


def test_a_file_is_named_as_in_results_or_as_it_lies_there() -> None:
    assert names("userfaultfd/told-in-order") == names("userfaultfd/told_in_order") == ["userfaultfd/told-in-order"]


def test_every_folder_of_live_cases_has_some() -> None:
    assert all(names(folder) for folder in area_files.LIVE)


def test_an_area_is_called_as_its_file_is() -> None:
    # what --area takes is how the names of its results begin; one file may have the areas of both versions of cgroups
    directory = area_files.tests_directory()
    for folder in (*area_files.LIVE, "guest"):
        for file in sorted((directory / folder).glob("*.py")):
            begin = f"{folder}/{file.stem.replace('_', '-')}"
            assert all(re.fullmatch(rf"{begin}(?:[-/].+)?", area.name) for area in read_areas(file)), file
