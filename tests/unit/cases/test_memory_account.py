"""Memory that a case leaves behind on a machine that nobody else uses."""

import re
from dataclasses import dataclass, replace

import pytest
from tests.unit.cases.still_machine import StillMachine, judge_on

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.result import Verdict
from hugepage_qa.sizes import KIB, MIB

_ZONEINFO = """\
Node 0, zone   Normal
  per-node stats
      nr_anon_transparent_hugepages {huge_0}
      nr_anon_pages {anonymous}
      nr_foll_pin_acquired 7{pin}
      nr_foll_pin_released 70
  pages free     50000
      nr_mlock     {locked}
  pagesets
    cpu: 0
              count:    {listed}
Node 1, zone   Normal
  per-node stats
      nr_anon_transparent_hugepages {huge_1}
  pagesets
    cpu: 0
              count: 5
"""


@dataclass
class Left:
    """What a case leaves: base pages, and bytes that are no longer free, or that there are more in all."""

    huge_0: int = 4
    huge_1: int = 4
    anonymous: int = 300
    pin: int = 0
    locked: int = 29
    listed: int = 100
    missing: int = 0
    more: int = 0


class CountingMachine(StillMachine):
    """Leaves what ``left`` says when it ``is_used``, until memory is compacted if that ``settles``."""

    def __init__(self, left: Left, *, settles: bool = False, is_accounted: bool = True) -> None:
        super().__init__()
        self.kind = replace(self.kind, is_accounted=is_accounted)
        self._left, self._settles = left, settles
        self._seconds = 0.0
        self.is_used = False

    def perform(self, operation: str, arguments: list[str]) -> object:
        """Answer."""
        path = arguments[0] if arguments else ""
        left = self._left if self.is_used else Left()
        if operation == "write" and path.endswith("compact_memory") and self._settles:
            self.is_used = False
        if operation == "clock":
            self._seconds += 1.0
            return self._seconds
        if path == "proc/zoneinfo":
            return _ZONEINFO.format(**vars(left))
        answer: object = super().perform(operation, arguments)
        if operation in ("read", "observe") and path == "proc/meminfo" and isinstance(answer, str):
            answer = re.sub(r"(MemFree: +)(\d+)", lambda found: _plus(found, -left.missing), answer)
            answer = re.sub(r"(MemTotal: +)(\d+)", lambda found: _plus(found, left.more), answer)
        return answer


def _plus(found: re.Match[str], change: int) -> str:
    return f"{found[1]}{int(found[2]) + change // KIB}"


@pytest.mark.parametrize(
    ("left", "reason"),
    [
        (Left(), None),
        (Left(huge_0=5), "nr_anon_transparent_hugepages of node 0: expected 4 as before, found 5"),
        (Left(huge_0=3, huge_1=5), "nr_anon_transparent_hugepages of node 1: expected 4 as before, found 5"),
        (Left(pin=3), "pinned pages of node 0: expected 0 as before, found 3"),
        (Left(locked=28), "nr_mlock of node 0: expected 29 as before, found 28"),
        (Left(anonymous=811), "nr_anon_pages of node 0: expected 300 as before, found 811"),
        (Left(anonymous=310), None),
        (Left(missing=2 * MIB), "memory that nobody has: expected 0 bytes more, found 2097152 bytes more"),
        (Left(missing=MIB // 2), None),
        (Left(missing=2 * MIB, listed=612), None),
        (Left(missing=2 * MIB, more=8 * MIB), None),
    ],
)
def test_what_is_left(left: Left, reason: str | None) -> None:
    machine = CountingMachine(left)

    def act(live: Live) -> None:
        machine.is_used = True
        live.expect("what is compared", 1, 1)

    judgement = judge_on(machine, act)
    assert judgement.verdict is (Verdict.FAIL if reason else Verdict.PASS), judgement.reason
    assert reason is None or (reason in judgement.reason and "memory-accounted" in judgement.reason)


@pytest.mark.parametrize(("settles", "is_accounted"), [(True, True), (False, False)])
def test_what_settles_and_what_others_may_have(settles: bool, is_accounted: bool) -> None:
    machine = CountingMachine(Left(huge_0=5, missing=2 * MIB), settles=settles, is_accounted=is_accounted)

    def act(live: Live) -> None:
        machine.is_used = True
        live.expect("what is compared", 1, 1)

    assert judge_on(machine, act).verdict is Verdict.PASS
