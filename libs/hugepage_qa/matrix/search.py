"""Random cases by Hypothesis: drawn with a seed, and shrunk to the smallest command line that still fails.

Every case has a seed of its own, made of the seed of the run and its number. So cases are independent of each other and
can be judged side by side, and a failing one is found again, to be shrunk, by its number alone.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from hypothesis import Phase, given, seed

from hugepage_qa.hypothesis_search import nothing_stored, search_settings
from hugepage_qa.matrix.case import BootCase, Target
from hugepage_qa.matrix.grammar import boot_cases
from hugepage_qa.matrix.judge import Judgement
from hugepage_qa.verdict import Verdict

#: between the name of a case and the CPU that it is tried on
CPU_MARK = "@"
_RANDOM = "/random-"
#: the first example that Hypothesis tries is always the simplest one, the second one is random
_EXAMPLES = 2


def draw(target: Target, count: int, seed_number: int) -> list[BootCase]:
    """Return ``count`` different random cases for ``target``: the same ones for the same seed."""
    drawn: dict[BootCase, str] = {}
    number = 0
    while len(drawn) < count:
        number += 1
        drawn.setdefault(_draw_one(target, f"{seed_number}/{number}"), f"{_RANDOM}{seed_number}/{number}")
    return [replace(case, name=name) for case, name in drawn.items()]


def shrink(target: Target, failed: Judgement, judge: Callable[[BootCase], Judgement]) -> Judgement:
    """Return the judgement of the smallest case that breaks the same rule as the random case of ``failed``."""
    rule = broken_rule(failed)
    first = _anonymous(failed.case)
    known = {first: failed}
    failing: list[BootCase] = []

    def fails(case: BootCase) -> bool:
        if case not in known:
            known[case] = judge(case)
        return known[case].verdict is Verdict.FAIL and broken_rule(known[case]) == rule

    def check(case: BootCase) -> None:
        # start from the example that was drawn, not from the simplest one, which Hypothesis tries before it
        if (failing or case == first) and fails(case):
            failing.append(case)
            raise _RuleBroken(rule)

    with suppress(_RuleBroken):
        seed_text = failed.case.name.removeprefix(_RANDOM).partition(CPU_MARK)[0]
        _explore(target, seed_text, (Phase.generate, Phase.shrink), check)
    # Hypothesis runs the smallest example once more before it raises
    smallest = _without_needless_words(failing[-1] if failing else first, fails)
    case = replace(smallest, name=f"{failed.case.name}/smallest")
    return replace(known[smallest], case=case, reason=f"smallest for rule {rule}: {known[smallest].reason}")


def broken_rule(judgement: Judgement) -> str:
    """Return the name of the first rule that a failed case broke."""
    return judgement.differences[0].rule.name


def _without_needless_words(case: BootCase, fails: Callable[[BootCase], bool]) -> BootCase:
    """Return ``case`` without the words that it fails without; Hypothesis does not always try each of them."""
    words = case.words.split()
    for index in reversed(range(len(words))):
        shorter = replace(case, words=" ".join(words[:index] + words[index + 1 :]))
        if len(words) > 1 and fails(shorter):
            case, words = shorter, shorter.words.split()
    return case


class _RuleBroken(AssertionError):
    """Tells Hypothesis that an example fails."""


def _draw_one(target: Target, seed_text: str) -> BootCase:
    examples: list[BootCase] = []
    _explore(target, seed_text, (Phase.generate,), examples.append)
    return examples[-1]


def _explore(target: Target, seed_text: str, phases: tuple[Phase, ...], check: Callable[[BootCase], object]) -> None:
    @seed(seed_text)
    @search_settings(phases, _EXAMPLES)
    @given(boot_cases(target))
    def explore(case: BootCase) -> None:
        check(case)

    with nothing_stored():
        explore()


def _anonymous(case: BootCase) -> BootCase:
    return replace(case, name="")
