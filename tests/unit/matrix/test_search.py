"""Random cases: the same ones for the same seed, and the smallest failing one."""

import re

from tests.unit.matrix.test_case import target

from hugepage_qa.matrix.case import BootCase
from hugepage_qa.matrix.judge import Judgement
from hugepage_qa.matrix.search import draw, smallest_failing
from hugepage_qa.model.compare import Difference
from hugepage_qa.model.rules import POOL_SIZE, THP_ENABLED
from hugepage_qa.verdict import Verdict


def wrong_kernel(case: BootCase) -> Judgement:
    """Judge as if the kernel broke one rule for every node form and another one for transparent_hugepage=."""
    differences = []
    if re.search(r"\bhugepages=\d+:", case.words):
        differences.append(Difference("pool", POOL_SIZE, "1", "2"))
    elif "transparent_hugepage=" in case.words:
        differences.append(Difference("thp", THP_ENABLED, "always", "never"))
    verdict = Verdict.FAIL if differences else Verdict.PASS
    return Judgement(case, verdict, "", case.words, differences=tuple(differences))


def test_the_seed_decides() -> None:
    assert draw(target(), 40, 7) == draw(target(), 40, 7)
    assert draw(target(), 40, 7) != draw(target(), 40, 8)


def test_as_many_different_cases_as_asked_for() -> None:
    cases = draw(target(), 200, 1)
    assert len(cases) == len({(case.words, case.memory, case.cpus) for case in cases}) == 200


def test_a_failing_case_is_shrunk_for_each_rule() -> None:
    cases = draw(target(), 60, 3)
    judged = {case: wrong_kernel(case) for case in cases}
    smallest = {one.differences[0].rule.name: one for one in smallest_failing(target(), 60, 3, judged, wrong_kernel)}
    assert re.fullmatch(r"hugepages=0:0", smallest[POOL_SIZE.name].case.words)
    assert smallest[THP_ENABLED.name].case.words == "transparent_hugepage=always"
    assert all(one.verdict is Verdict.FAIL for one in smallest.values())
