"""Random cases by Hypothesis: drawn with a seed, and shrunk to the smallest command line that still fails.

Hypothesis runs one example after the other, but boots can run side by side. So the examples are drawn first, without
booting; all are judged in parallel; then Hypothesis runs over the same seed again with the judgements at hand, and
boots only while it shrinks.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from hypothesis import HealthCheck, Phase, given, seed, settings

from hugepage_qa.matrix.case import BootCase, Target
from hugepage_qa.matrix.grammar import boot_cases
from hugepage_qa.matrix.judge import Judgement
from hugepage_qa.verdict import Verdict

#: Hypothesis may draw the same example again; after this many times the wanted number nothing new is to be expected
_PATIENCE = 4


def draw(target: Target, count: int, seed_number: int) -> list[BootCase]:
    """Return ``count`` different random cases for ``target``: the same ones for the same seed."""
    drawn: dict[BootCase, None] = {}
    _explore(target, count, seed_number, (Phase.generate,), drawn.setdefault)
    cases = list(drawn)[:count]
    return [replace(case, name=f"{case.name}-{seed_number}/{number}") for number, case in enumerate(cases, start=1)]


def smallest_failing(
    target: Target,
    count: int,
    seed_number: int,
    judged: Mapping[BootCase, Judgement],
    judge: Callable[[BootCase], Judgement],
) -> Iterator[Judgement]:
    """Yield, for each rule that failed, the judgement of the smallest command line that Hypothesis finds for it."""
    known = {_anonymous(case): judgement for case, judgement in judged.items()}
    failed = [judgement for judgement in judged.values() if judgement.verdict is Verdict.FAIL]
    for rule in dict.fromkeys(_broken_rule(judgement) for judgement in failed):
        judgement = _smallest(rule, target, count, seed_number, known, judge)
        case = replace(judgement.case, name=f"/random-{seed_number}/smallest-{rule}")
        yield replace(judgement, case=case, reason=f"smallest: {case.words!r}: {judgement.reason}")


def _smallest(
    rule: str,
    target: Target,
    count: int,
    seed_number: int,
    known: dict[BootCase, Judgement],
    judge: Callable[[BootCase], Judgement],
) -> Judgement:
    failing: list[Judgement] = []

    def check(case: BootCase) -> None:
        key = _anonymous(case)
        if key not in known:
            known[key] = judge(case)
        judgement = known[key]
        if judgement.verdict is Verdict.FAIL and _broken_rule(judgement) == rule:
            failing.append(judgement)
            raise _RuleBroken(rule)

    with suppress(_RuleBroken):
        _explore(target, count, seed_number, (Phase.generate, Phase.shrink), check)
    # Hypothesis runs the smallest example once more before it raises
    return failing[-1]


class _RuleBroken(AssertionError):
    """Tells Hypothesis that an example fails."""


def _explore(
    target: Target, count: int, seed_number: int, phases: tuple[Phase, ...], check: Callable[[BootCase], object]
) -> None:
    @seed(seed_number)
    @settings(
        # the same in both passes: Hypothesis lets it shape the sequence of examples
        max_examples=count * _PATIENCE,
        phases=phases,
        database=None,
        deadline=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(boot_cases(target))
    def explore(case: BootCase) -> None:
        check(case)

    explore()


def _anonymous(case: BootCase) -> BootCase:
    return replace(case, name="")


def _broken_rule(judgement: Judgement) -> str:
    return judgement.differences[0].rule.name
