"""Which tests Avocado is asked for: files together where nothing has to be apart, and none for a name that is wrong."""

from pathlib import Path

import pytest

from hugepage_qa.cases.selection import EVERYTHING, Selection
from hugepage_qa.commands.chosen_tests import ChosenTests, choose_tests
from hugepage_qa.errors import InputError
from hugepage_qa.plugins.many_files import REFERENCE
from hugepage_qa.sizes import GIB, MIB

SIZES = (2 * MIB,)
_FILE = """\
from hugepage_qa.cases.case import Area
from hugepage_qa.plugins.{module} import {base}

AREA = Area("{name}")

@AREA.case("it is", "nowhere")
def {name}_is(live): ...

class Mine({base}):
    def test(self):
        self.run_area(AREA)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, module, base in (
        ("one", "avocado_test", "LiveTest"),
        ("two", "avocado_test", "LiveTest"),
        ("apart", "guest_test", "GuestTest"),
    ):
        text = _FILE.format(name=name, module=module, base=base)
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    (tmp_path / "none.py").write_text("x = 1", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_files_that_only_run_areas_are_one_test(folder: Path) -> None:
    chosen = choose_tests(["one.py", "apart.py", "two.py", "none.py"], EVERYTHING, SIZES)
    files = (str(folder / "one.py"), str(folder / "two.py"))
    assert chosen == ChosenTests((REFERENCE, "apart.py", "none.py"), files)


@pytest.mark.parametrize(
    "references", [["one.py"], ["one.py", "apart.py"], ["one.py:Mine.test", "two.py"], ["/bin/true", "hugepages..x"]]
)
@pytest.mark.usefixtures("folder")
def test_what_is_alone_stays_as_it_is(references: list[str]) -> None:
    assert choose_tests(references, EVERYTHING, SIZES) == ChosenTests(tuple(references))


@pytest.mark.usefixtures("folder")
def test_only_files_with_a_case_that_was_asked_for_are_run() -> None:
    chosen = choose_tests(["one.py", "apart.py", "two.py"], Selection(("apart-is", "/one/*/2M")), SIZES)
    assert chosen == ChosenTests(("one.py", "apart.py"))


@pytest.mark.parametrize(
    ("reference", "selection", "message"),
    [
        ("one.py", Selection(("two-is",)), "--case two-is: expected the name of a case"),
        ("one.py", Selection(sizes=(GIB,)), "--size 1G: expected a page size of the machine, which has 2M"),
        ("none.py", Selection(("one-is",)), "none.py: has no cases to choose from; --case and --size expect files"),
        ("not-there.py", Selection(("one-is",)), "not-there.py: no such file; --case and --size expect files"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_nobody_can_run_is_refused(reference: str, selection: Selection, message: str) -> None:
    with pytest.raises(InputError) as caught:
        choose_tests([reference], selection, SIZES)
    assert str(caught.value).startswith(message)
