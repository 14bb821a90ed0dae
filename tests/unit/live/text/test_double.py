"""The cases of hugetext pass on a right double, and for each rule that a double breaks one of them fails."""

from functools import cache

import pytest
from tests.unit.live.areas import read_areas
from tests.unit.live.text.double.behaviour import Wrong
from tests.unit.live.text.double.machine import TextDouble
from tests.unit.live.text.linked import link

from hugepage_qa.live.case import Area
from hugepage_qa.live.host import Host
from hugepage_qa.live.judge import LiveJudgement, run_area
from hugepage_qa.verdict import Verdict

NAMES = {f"text/{name}" for name in ("values", "merging", "processes", "anonymous-code", "clearing", "padding")}
EVERY_KERNEL = "text/every-kernel"
#: rules of later kernels than the double is, and one that needs a file system that reads text page by page
NOT_OF_THE_DOUBLE = {"collapsed-text", "text-in-tmpfs", "split-text", "absent-text"}


@cache
def areas() -> tuple[Area, ...]:
    return tuple(area for area in read_areas() if area.name in NAMES | {EVERY_KERNEL})


def judge(wrong: frozenset[Wrong] = frozenset(), *, is_switch: bool = False) -> list[LiveJudgement]:
    judgements: list[LiveJudgement] = []
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
