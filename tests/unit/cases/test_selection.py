"""What a run has, and what nobody can choose."""

import pytest

from hugepage_qa.cases.case import Area, Case, Sizes
from hugepage_qa.cases.selection import EVERYTHING, Selection
from hugepage_qa.errors import InputError
from hugepage_qa.sizes import GIB, MIB

POOL = Area("pool")
ONCE = Area("thp/policy", sizes=Sizes.ONCE)


@POOL.case("it grows", "nowhere")
def grow(_live: object) -> None: ...


@POOL.case("it shrinks", "nowhere")
def shrink(_live: object) -> None: ...


@ONCE.case("it is read", "nowhere")
def read_back(_live: object) -> None: ...


GROW, SHRINK = POOL.cases
(READ_BACK,) = ONCE.cases


def included(selection: Selection) -> list[tuple[str, int | None]]:
    tried: list[tuple[Area, Case, int | None]] = [
        *((POOL, case, size) for case in POOL.cases for size in (2 * MIB, GIB)),
        (ONCE, READ_BACK, None),
    ]
    return [(case.name, size) for area, case, size in tried if selection.includes(area, case, size)]


def test_without_names_it_is_everything() -> None:
    assert len(included(EVERYTHING)) == 5


@pytest.mark.parametrize("name", ["grow", "/pool/grow", "gr*", "/pool/g*", "*/grow"])
def test_a_case_is_named_with_its_area_or_without(name: str) -> None:
    assert included(Selection((name,))) == [("grow", 2 * MIB), ("grow", GIB)]


def test_a_result_is_one_page_size() -> None:
    assert included(Selection(("/pool/shrink/1G",))) == [("shrink", GIB)]


def test_a_case_that_runs_once_is_of_every_size() -> None:
    assert included(Selection(sizes=(GIB,))) == [("grow", GIB), ("shrink", GIB), ("read-back", None)]


def test_names_and_sizes_choose_together() -> None:
    assert included(Selection(("grow", "read-back"), (2 * MIB,))) == [("grow", 2 * MIB), ("read-back", None)]


def test_what_is_there_can_be_chosen() -> None:
    Selection(("grow", "/thp/*"), (GIB,)).require([POOL, ONCE], [2 * MIB, GIB])


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection(("grwo",)), "--case grwo: expected the name of a case, or a pattern of names, such as grow"),
        (Selection(("/pool/grow/1G",)), "--case /pool/grow/1G: expected"),
        (Selection(sizes=(GIB,)), "--size 1G: expected a page size of the machine, which has 2M"),
    ],
)
def test_what_is_not_there_is_told_in_one_line(selection: Selection, message: str) -> None:
    with pytest.raises(InputError) as caught:
        selection.require([POOL, ONCE], [2 * MIB])
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_without_any_case_none_is_near() -> None:
    with pytest.raises(InputError, match="and these files have none"):
        Selection(("grow",)).require([], [])


def test_on_which_page_sizes_of_the_machine_a_case_is_planned() -> None:
    assert EVERYTHING.sizes_of(POOL, GROW, (2 * MIB, GIB)) == [2 * MIB, GIB]
    assert Selection(sizes=(GIB,)).sizes_of(ONCE, READ_BACK, (2 * MIB, GIB)) == [None]
    assert EVERYTHING.sizes_of(POOL, GROW, ()) == []


def test_what_is_asked_for_and_has_no_page_size_is_told() -> None:
    assert EVERYTHING.has(POOL, GROW, ())
    assert Selection(sizes=(16 * MIB,)).has(POOL, GROW, (2 * MIB, GIB))
    # a case that runs once has no result of that name
    assert not Selection(("*/2M",)).has(ONCE, READ_BACK, (2 * MIB,))
