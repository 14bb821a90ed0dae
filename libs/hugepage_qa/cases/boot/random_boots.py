"""Random command lines by Hypothesis: drawn with a seed, and shrunk to the smallest that still fails.

The grammar draws what people write and what they get wrong: every parameter, in any order, repeated, with sizes and
counts in every notation, and nonsense between them. Counts are kept so small that most machines have the memory for
them. Gigantic pages are asked for in excess as well: pages of 1 GiB seldom fit often enough to take the kernel's last
memory.

Every case has a seed of its own, made of the seed of the run and its number. So cases are independent of each other and
can be judged side by side, and a failing one is found again, to be shrunk, by its number alone.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from hypothesis import Phase, given, seed
from hypothesis import strategies as st

from hugepage_qa.cases.boot.boot_case import CPU_MARK, BootCase, Target
from hugepage_qa.cases.boot.boot_judge import BootResult
from hugepage_qa.cases.hypothesis_search import nothing_stored, search_settings
from hugepage_qa.cases.result import Verdict
from hugepage_qa.oracle.boot.thp_parameters import ANON_POLICIES, GLOBAL_POLICIES, SHMEM_POLICIES, SHMEM_SIZE_POLICIES
from hugepage_qa.sizes import GIB, KIB, MIB, format_size

T = TypeVar("T")

_MEMORY: Sequence[tuple[int, ...]] = (
    (2 * GIB,),
    (GIB, GIB),
    (GIB, 0),
    (6 * GIB,),
    (3 * GIB, 4 * GIB),
    (512 * MIB,) * 4,
)
_MOST_WORDS = 7
_MOST_COUNT = 40
_BAD_SIZES = ("3M", "0", "", "huge", "-2M", "4K", "1T", "16E")
_BAD_COUNTS = ("", "many", "-1", "0x10", "1:", ":1", "0:1,2", "0:1,,1:1", "7:1", "9999999:1", "1;1")
_MISSPELT = (
    "transparent_hugepages=never",
    "hugepage=8",
    "hugepage_sz=2M",
    "default_hugepagesize=2M",
    "thp_anons=2M:never",
)
_BYSTANDERS = ("quiet", "nokaslr", "loglevel=7", "no_such_parameter=1")


def boot_cases(target: Target) -> st.SearchStrategy[BootCase]:
    """Return a strategy for cases on machines of ``target``'s kind."""
    single = st.sampled_from([memory for memory in _MEMORY if len(memory) == 1])
    memory = single if target.architecture == "s390x" else st.sampled_from(_MEMORY)
    words = st.lists(_word(target), min_size=1, max_size=_MOST_WORDS)
    return st.builds(
        lambda words, memory, cpus: BootCase(
            name="",
            architecture=target.architecture,
            cpu=target.cpu,
            words=" ".join(words),
            memory=memory,
            cpus=cpus,
            source="random",
        ),
        words,
        memory,
        st.sampled_from((1, 1, 1, 2)),
    )


def _word(target: Target) -> st.SearchStrategy[str]:
    hugetlb = st.one_of(
        _named("hugepages", _count()),
        _named("hugepagesz", _size(target)),
        _named("default_hugepagesz", _size(target)),
    )
    values = {
        "transparent_hugepage": st.sampled_from((*GLOBAL_POLICIES, "on", "Never", "")),
        "thp_anon": _size_policies(target, ANON_POLICIES),
        "thp_shmem": _size_policies(target, SHMEM_SIZE_POLICIES),
        "transparent_hugepage_shmem": st.sampled_from((*SHMEM_POLICIES, "huge")),
        "transparent_hugepage_tmpfs": st.sampled_from((*SHMEM_POLICIES, "huge")),
        "hugetlb_free_vmemmap": st.sampled_from(("on", "off", "1", "0", "y", "perhaps", "")),
        "hugetlb_cma": st.sampled_from(("0", "64M", "1G", "1500M", "0:1G", "1:1G", "9:1G", "0:1G,1:2G", "x", "20%")),
        "hugetlb_cma_only": st.sampled_from(("1", "1", "on", "0", "n", "only", "")),
        "hugepage_alloc_threads": st.sampled_from(("0", "1", "3", "0x2", "few")),
        "hugetext": st.sampled_from(("0", "1", "2", "3", "4", "x")),
    }
    # what the kernel does not know cannot be judged
    others = [_named(name, value) for name, value in values.items() if name in target.parameters]
    others.append(st.sampled_from((*_MISSPELT, *_BYSTANDERS)))
    # hugetlb parameters act on each other, the others hardly do
    return _weighted((3, hugetlb), (2, st.one_of(others)))


def _named(name: str, values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    # the kernel takes - and _ for the same
    names = st.sampled_from((name, name, name, name.replace("_", "-")))
    return st.builds(lambda name, value: f"{name}={value}", names, values)


def _size(target: Target) -> st.SearchStrategy[str]:
    sizes = tuple(target.mmu.hugetlb)
    return _weighted((4, st.sampled_from(sizes).flatmap(_spelt)), (1, st.sampled_from(_BAD_SIZES)))


def _spelt(size: int) -> st.SearchStrategy[str]:
    """Return the notations of one size that the kernel takes."""
    text = format_size(size)
    return st.sampled_from((text, text, text.lower(), f"{text}B", f"{size // KIB}K", hex(size), str(size)))


def _count() -> st.SearchStrategy[str]:
    number = _weighted((1, st.integers(0, 4)), (1, st.integers(0, _MOST_COUNT))).map(str)
    node = st.sampled_from((0, 0, 0, 1, 1, 2, 3, 5))
    node_form = st.lists(st.builds("{}:{}".format, node, number), min_size=1, max_size=3).map(",".join)
    return _weighted((3, number), (2, node_form), (1, st.sampled_from(_BAD_COUNTS)))


def _size_policies(target: Target, policies: Sequence[str]) -> st.SearchStrategy[str]:
    good = st.sampled_from(target.mmu.anonymous_thp_sizes())
    size = _weighted((9, good), (1, st.sampled_from((48 * KIB, target.mmu.pmd * 2)))).map(format_size)
    one = _weighted((2, size), (1, st.builds("{}-{}".format, size, size)))
    ranges = st.lists(one, min_size=1, max_size=3).map(",".join)
    policy = st.sampled_from((*policies, *policies, *policies, "sometimes"))
    entry = _weighted((9, st.builds("{}:{}".format, ranges, policy)), (1, ranges))
    return st.lists(entry, min_size=1, max_size=3).map(";".join)


def _weighted(*choices: tuple[int, st.SearchStrategy[T]]) -> st.SearchStrategy[T]:
    """Return a strategy that draws each of ``choices`` as often as its weight says.

    one_of() flattens nested choices and drops repeated ones, so it cannot.
    """
    strategies = [strategy for weight, strategy in choices for _ in range(weight)]
    return st.sampled_from(range(len(strategies))).flatmap(lambda index: strategies[index])


_RANDOM = "/random-"
#: the first example that Hypothesis tries is always the simplest one, the second one is random
_EXAMPLES = 2


def draw(target: Target, count: int, seed_number: int) -> list[BootCase]:
    """Return ``count`` different random cases for ``target``: the same ones for the same seed."""
    drawn: dict[BootCase, str] = {}
    # Hypothesis takes longer to look through a strategy than to draw from it
    cases = boot_cases(target)
    number = 0
    while len(drawn) < count:
        number += 1
        drawn.setdefault(_draw_one(cases, f"{seed_number}/{number}"), f"{_RANDOM}{seed_number}/{number}")
    return [replace(case, name=name) for case, name in drawn.items()]


def shrink(target: Target, failed: BootResult, judge: Callable[[BootCase], BootResult]) -> BootResult:
    """Return the judgement of the smallest case that breaks the same rule as the random case of ``failed``."""
    rule = broken_rule(failed)
    first = replace(failed.case, name="")
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
        _explore(boot_cases(target), seed_text, (Phase.generate, Phase.shrink), check)
    # Hypothesis runs the smallest example once more before it raises
    smallest = _without_needless_words(failing[-1] if failing else first, fails)
    case = replace(smallest, name=f"{failed.case.name}/smallest")
    found = known[smallest]
    return replace(found, name=case.name, case=case, reasons=(f"smallest for rule {rule}: {found.reason}",))


def broken_rule(judgement: BootResult) -> str:
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


def _draw_one(cases: st.SearchStrategy[BootCase], seed_text: str) -> BootCase:
    examples: list[BootCase] = []
    _explore(cases, seed_text, (Phase.generate,), examples.append)
    return examples[-1]


def _explore(
    cases: st.SearchStrategy[BootCase],
    seed_text: str,
    phases: tuple[Phase, ...],
    check: Callable[[BootCase], object],
) -> None:
    @seed(seed_text)
    @search_settings(phases, _EXAMPLES)
    @given(cases)
    def explore(case: BootCase) -> None:
        check(case)

    with nothing_stored():
        explore()
