"""The cases of hugetext pass on a right double, and for each rule that a double breaks one of them fails."""

from functools import cache

import pytest
from tests.unit.cases.areas import read_areas
from tests.unit.cases.text.double.behaviour import Wrong
from tests.unit.cases.text.double.machine import TextDouble
from tests.unit.cases.text.linked import link

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.judge import run_area
from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.machine.host import Host

NAMES = {f"text/{name}" for name in ("values", "merging", "processes", "anonymous-code", "clearing", "padding")}
EVERY_KERNEL = "text/every-kernel"
#: it needs a file system that reads text page by page. The rules of text/collapsed are of later kernels than the double
NOT_OF_THE_DOUBLE = {"absent-text"}


@cache
def areas() -> tuple[Area, ...]:
    return tuple(area for area in read_areas() if area.name in NAMES | {EVERY_KERNEL})


def judge(wrong: frozenset[Wrong] = frozenset(), *, is_switch: bool = False) -> list[Result]:
    judgements: list[Result] = []
    for area in areas():
        run_area(area, Host(TextDouble(link, wrong, is_switch=is_switch)), judgements.append)
    return judgements


def test_all_areas_are_there() -> None:
    assert {area.name for area in areas()} == NAMES | {EVERY_KERNEL}


def test_a_right_kernel_passes_every_case() -> None:
    judgements = judge()
    assert [f"{one.name}: {one.reason}" for one in judgements if one.verdict not in (Verdict.PASS, Verdict.SKIP)] == []
    assert {one.name.split("/")[3] for one in judgements if one.verdict is Verdict.SKIP} == NOT_OF_THE_DOUBLE


def test_a_kernel_with_a_switch_passes_what_it_has() -> None:
    judgements = judge(is_switch=True)
    assert {one.verdict for one in judgements} == {Verdict.PASS, Verdict.SKIP}, judgements
    skipped = {one.name.split("/")[2] for one in judgements if one.verdict is Verdict.SKIP}
    assert skipped == {"values", "merging", "anonymous-code", "padding", "every-kernel"}


@pytest.mark.parametrize("wrong", Wrong, ids=lambda wrong: wrong.name.lower().replace("_", "-"))
def test_a_kernel_that_breaks_a_rule_fails(wrong: Wrong) -> None:
    verdicts = {one.verdict for one in judge(frozenset({wrong}))}
    assert Verdict.FAIL in verdicts, wrong.value
    assert Verdict.ERROR not in verdicts


@pytest.mark.parametrize(
    ("wrong", "cases"),
    [
        (Wrong.MISPLACES_PIE, {"text-of-a-program", "both-kinds", "placement"}),
        (Wrong.MISPLACES_LIBRARY, {"text-of-a-library", "placement"}),
        (Wrong.MERGES_CONSTANTS, {"constants"}),
        (Wrong.PADS_CONSTANTS, {"constants"}),
        (Wrong.MERGES_INCONGRUENT, {"linker-script"}),
        (Wrong.NEEDS_A_MODE, {"advised-in-mode-0", "text-and-khugepaged"}),
        (Wrong.MERGES_IN_MODE_0, {"nothing-in-mode-0", "text-and-khugepaged"}),
    ],
    ids=lambda value: value.name.lower().replace("_", "-") if isinstance(value, Wrong) else "",
)
def test_the_cases_meant_for_a_rule_find_it_broken(wrong: Wrong, cases: set[str]) -> None:
    assert cases <= {one.name.split("/")[3] for one in judge(frozenset({wrong})) if one.verdict is Verdict.FAIL}


@pytest.mark.parametrize(("wrong", "inside"), [(Wrong.NOT_COUNTED, "4194304"), (Wrong.NEVER_MERGES, "0")])
def test_a_wrong_counter_and_a_khugepaged_that_makes_nothing_are_told_apart(wrong: Wrong, inside: str) -> None:
    failed = [one for one in judge(frozenset({wrong})) if one.name == "/text/merging/text-of-a-program"]
    assert f"FilePmdMapped of each text mapping, of which {inside} bytes are in huge pages" in failed[0].reason
