"""The case on defrag without free blocks tells each mode from each other one, and finds a kernel that takes another."""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from tests.unit.cases.areas import read_areas
from tests.unit.cases.kinds import X86_64

from hugepage_qa.cases.case import Area, Case
from hugepage_qa.cases.judge import judge
from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE
from hugepage_qa.machine.host import Host

PMD = 2 << 20
_BLOCKS = 300


@dataclass(frozen=True)
class Flags:
    """What mm/huge_memory.c vma_thp_gfp_mask() allows a fault."""

    direct_reclaim: bool = False
    kswapd_reclaim: bool = False


_DIRECT, _WAKE, _LIGHT = Flags(direct_reclaim=True), Flags(kswapd_reclaim=True), Flags()
#: mode -> without advice, with it
RIGHT = {
    "always": (_DIRECT, _DIRECT),
    "defer": (_WAKE, _WAKE),
    "defer+madvise": (_WAKE, _DIRECT),
    "madvise": (_LIGHT, _DIRECT),
    "never": (_LIGHT, _LIGHT),
}
Choice = Callable[[str, bool], Flags]


@dataclass
class Mapping:
    """Anonymous memory of the actor."""

    start: int
    length: int
    is_advised: bool = False
    huge: int = 0


class Kernel:
    """A machine of one process, in which ``choose`` says what a fault may do to get a huge page."""

    kind = X86_64

    def __init__(self, choose: Choice, used_by_others: int = 0, busy_others: float = 0.0) -> None:
        self._choose = choose
        #: the part of all moments in which others compact memory
        self._busy_others, self._random = busy_others, random.Random(1)  # noqa: S311 - no secret
        #: bytes of what is fragmented that others take
        self._used_by_others = used_by_others
        self._blocks, self._fragmented, self._clock = _BLOCKS, 0, 0.0
        self._mappings: list[Mapping] = []
        self._events = dict.fromkeys(
            ("compact_stall", "thp_fault_alloc", "thp_fault_fallback", "pageoutrun", "compact_daemon_wake"), 0
        )
        self._files = {
            "proc/sys/kernel/osrelease": "6.12.0",
            "proc/sys/kernel/tainted": "0",
            "proc/sys/vm/min_free_kbytes": "67584",
            "proc/sys/vm/drop_caches": "0",
            "proc/sys/vm/compact_memory": "0",
            f"{DIRECTORY}/hpage_pmd_size": str(PMD),
            f"{DIRECTORY}/enabled": "madvise",
            f"{DIRECTORY}/defrag": "madvise",
            f"{DIRECTORY}/khugepaged/defrag": "1",
        }

    def perform(self, operation: str, arguments: Sequence[Any]) -> Any:
        match operation:
            case "read" | "observe":
                return self._read(arguments[0])
            case "write":
                self._files[arguments[0]] = arguments[1]
            case "pause" | "clock":
                if operation == "pause" and self._random.random() < self._busy_others:
                    self._events["compact_stall"] += 1
                self._clock += arguments[0] if arguments else 0
                return self._clock
            case "names" | "new_kernel_log":
                return []
            case "start_actor":
                return 0, 1
            case "request":
                verb, *words = arguments[1].split()
                numbers = [int(word) for word in words if word.lstrip("-").isdigit()]
                return f"ok {self._answer(words[0] if verb == 'call' else verb, numbers)}", None
        return None

    def _read(self, path: str) -> str | None:
        if path == "proc/vmstat":
            return "".join(f"{name} {count}\n" for name, count in self._events.items())
        if path == "proc/meminfo":
            # of much that was fragmented compaction leaves most as it is
            left = _BLOCKS // 8 * PMD if self._fragmented or self._blocks < _BLOCKS else 0
            available = self._blocks * PMD + left - self._used_by_others
            return f"MemTotal: 4194304 kB\nMemAvailable: {available >> 10} kB\nHugetlb: 0 kB\n"
        if path == "proc/buddyinfo":
            return f"Node 0, zone Normal 512 0 0 0 0 0 0 0 0 {self._blocks} 0\n"
        if path == "proc/1/smaps":
            return "".join(
                f"{each.start:x}-{each.start + each.length:x} rw-p 00000000 00:00 0\n"
                f"Size: {each.length >> 10} kB\nKernelPageSize: 4 kB\nMMUPageSize: 4 kB\nRss: {each.huge >> 10} kB\n"
                f"AnonHugePages: {each.huge >> 10} kB\nVmFlags: rd wr\n"
                for each in self._mappings
            )
        return self._files.get(path)

    def _answer(self, call: str, numbers: list[int]) -> int:
        match call:
            case "mmap":
                is_fixed = numbers[0] != 0
                start = numbers[0] if is_fixed else sum(each.length for each in self._mappings) + (1 << 40)
                if is_fixed:
                    self._mappings.append(Mapping(start, numbers[1]))
                return start
            case "madvise":
                self._at(numbers[0]).is_advised = numbers[2] == MADV_HUGEPAGE
            case "fill" if numbers[2] == PMD:
                for _fault in range(numbers[1] // PMD):
                    self._fault(self._at(numbers[0]))
            case "fill":
                self._blocks -= numbers[1] // PMD
            case "discard":
                self._fragmented += numbers[1] // PMD
        return 0

    def _at(self, address: int) -> Mapping:
        return next(each for each in self._mappings if each.start == address)

    def _fault(self, mapping: Mapping) -> None:
        if self._files[f"{DIRECTORY}/enabled"] != "always" and not mapping.is_advised:
            return
        flags = self._choose(self._files[f"{DIRECTORY}/defrag"], mapping.is_advised)
        if not self._blocks:
            self._events["pageoutrun"] += flags.kswapd_reclaim
            self._events["compact_stall"] += flags.direct_reclaim
            if flags.direct_reclaim and self._fragmented:
                self._fragmented -= 1
                self._blocks += 1
        if self._blocks:
            self._blocks -= 1
            mapping.huge += PMD
        self._events["thp_fault_alloc" if self._blocks else "thp_fault_fallback"] += 1


@cache
def _case() -> tuple[Area, Case]:
    area = next(area for area in read_areas() if area.name == "thp/defrag")
    return area, next(case for case in area.cases if case.name == "without-free-blocks-in-each-mode")


def _judged(choose: Choice, used_by_others: int = 0, busy_others: float = 0.0) -> Result:
    area, case = _case()
    judgement = judge(area, case, Host(Kernel(choose, used_by_others, busy_others)), None)
    assert judgement is not None
    return judgement


def test_a_kernel_that_keeps_to_each_mode_passes() -> None:
    judgement = _judged(lambda mode, is_advised: RIGHT[mode][is_advised])
    assert judgement.verdict is Verdict.PASS, judgement.reason


def test_a_machine_whose_others_need_the_rest_of_the_memory_is_left_to_them() -> None:
    def choose(mode: str, is_advised: bool) -> Flags:
        return RIGHT[mode][is_advised]

    fragmented = _BLOCKS // 8 * PMD
    assert _judged(choose, fragmented // 2).verdict is Verdict.PASS
    result = _judged(choose, fragmented * 7 // 8)
    assert (result.verdict, result.reason) == (Verdict.SKIP, "others need the memory that is left")


@pytest.mark.parametrize(
    ("busy", "verdict"), [(0.2, Verdict.PASS), (0.5, Verdict.PASS), (0.9, Verdict.SKIP), (1.0, Verdict.SKIP)]
)
def test_what_others_compact_is_not_laid_to_a_fault(busy: float, verdict: Verdict) -> None:
    judgement = _judged(lambda mode, is_advised: RIGHT[mode][is_advised], busy_others=busy)
    assert judgement.verdict is verdict, judgement.reason
    assert ("others" in judgement.reason) == (verdict is Verdict.SKIP)


@pytest.mark.parametrize("busy", [0.1, 0.3, 0.5])
def test_a_wrong_effort_is_found_beside_others(busy: float) -> None:
    judgement = _judged(lambda _mode, _is_advised: _DIRECT, busy_others=busy)
    assert judgement.verdict is Verdict.FAIL, judgement.reason


@pytest.mark.parametrize("only", RIGHT)
def test_a_kernel_that_ignores_defrag_fails(only: str) -> None:
    """Whichever of its modes it has all the time."""
    judgement = _judged(lambda _mode, is_advised: RIGHT[only][is_advised])
    assert judgement.verdict is Verdict.FAIL, judgement.reason


@pytest.mark.parametrize(("mode", "is_advised"), list(itertools.product(RIGHT, (False, True))))
@pytest.mark.parametrize("wrong", [_DIRECT, _WAKE, _LIGHT])
def test_each_wrong_effort_is_found(mode: str, is_advised: bool, wrong: Flags) -> None:
    def choose(asked: str, advised: bool) -> Flags:
        return wrong if (asked, advised) == (mode, is_advised) else RIGHT[asked][advised]

    judgement = _judged(choose)
    if wrong == RIGHT[mode][is_advised]:
        assert judgement.verdict is Verdict.PASS, judgement.reason
    else:
        assert judgement.verdict is Verdict.FAIL, judgement.reason
        assert f"defrag={mode}, advice {MADV_HUGEPAGE if is_advised else None}" in judgement.reason
