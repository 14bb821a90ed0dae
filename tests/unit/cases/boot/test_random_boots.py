"""Random cases: the same ones for the same seed, and the smallest failing one."""

import re
from dataclasses import replace
from functools import cache

from tests.unit.cases.boot.test_named_boot_cases import target

from hugepage_qa.cases.boot.boot_case import BootCase
from hugepage_qa.cases.boot.boot_judge import BootResult
from hugepage_qa.cases.boot.random_boots import broken_rule, draw, shrink
from hugepage_qa.cases.result import Verdict
from hugepage_qa.oracle.compare import Difference
from hugepage_qa.oracle.rules import POOL_SIZE, THP_ENABLED


def wrong_kernel(case: BootCase) -> BootResult:
    """Judge as if the kernel broke one rule for every node form and another one for transparent_hugepage=."""
    differences = []
    if re.search(r"\bhugepages=\d+:", case.words):
        differences.append(Difference("pool", POOL_SIZE, "1", "2"))
    elif "transparent_hugepage=" in case.words:
        differences.append(Difference("thp", THP_ENABLED, "always", "never"))
    verdict = Verdict.FAIL if differences else Verdict.PASS
    return BootResult(case.name, verdict, case=case, command_line=case.words, differences=tuple(differences))


@cache
def drawn(count: int, seed: int) -> list[BootCase]:
    return draw(target(), count, seed)


def test_the_seed_decides() -> None:
    assert draw(target(), 10, 7) == drawn(10, 7)
    assert draw(target(), 10, 8) != drawn(10, 7)


def test_as_many_different_cases_as_asked_for() -> None:
    cases = drawn(200, 1)
    assert len(cases) == len({(case.words, case.memory, case.cpus) for case in cases}) == 200


def test_cases_are_as_various_as_people() -> None:
    words = [word for case in drawn(200, 1) for word in case.words.split()]
    assert {word.partition("=")[0] for word in words} >= set(target().parameters) - {"hugetlb_cma_only"}
    assert any(re.fullmatch(r"hugepages=(\d):\d+,\1:\d+", word) for word in words), "no node is named twice"
    assert len(set(words)) > 200


def test_parameters_that_the_kernel_does_not_know_are_not_drawn() -> None:
    plain = replace(target(), parameters=frozenset({"transparent_hugepage"}))
    words = " ".join(case.words for case in draw(plain, 100, 1))
    assert "transparent_hugepage=" in words
    assert "thp_anon=" not in words


def test_a_failing_case_is_shrunk() -> None:
    judged = [wrong_kernel(case) for case in drawn(20, 3)]
    smallest = {}
    for failed in (one for one in judged if one.verdict is Verdict.FAIL):
        one = shrink(target(), failed, wrong_kernel)
        if broken_rule(failed) not in smallest:
            on_other_cpu = replace(failed, case=replace(failed.case, name=f"{failed.case.name}@qemu64"))
            assert shrink(target(), on_other_cpu, wrong_kernel).case.words == one.case.words
        assert broken_rule(one) == broken_rule(failed)
        assert one.verdict is Verdict.FAIL
        smallest[broken_rule(one)] = one.case.words
    assert smallest == {POOL_SIZE.name: "hugepages=0:0", THP_ENABLED.name: "transparent_hugepage=always"}


def test_what_cannot_be_shrunk_stays_as_it_is() -> None:
    """A failure that does not come again, or only for the very case that was drawn, is still reported."""
    case = drawn(20, 3)[4]
    failed = replace(wrong_kernel(case), verdict=Verdict.FAIL, differences=(Difference("x", POOL_SIZE, "1", "2"),))
    passing = replace(failed, verdict=Verdict.PASS, differences=())
    assert shrink(target(), failed, lambda _: passing).case.words == case.words
