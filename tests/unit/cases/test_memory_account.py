"""Memory that a case leaves behind on a machine that nobody else uses."""

import re
from dataclasses import dataclass, replace

import pytest
from tests.unit.cases.still_machine import SIZE, StillMachine, judge_on

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.result import Verdict
from hugepage_qa.kernel.counters import VMSTAT
from hugepage_qa.sizes import GIB, KIB, MIB

_NODE = "sys/devices/system/node"
_ZONE = """\
Node 0, zone   Normal
  pages free     {free}
        spanned  5000000
        present  5000000
        managed  5000000
  pagesets
    cpu: 0
              count:    {listed}
"""
_COUNTERS = {
    "node0": """\
nr_anon_transparent_hugepages {huge_0}
nr_shmem_hugepages {shared}
nr_anon_pages {anonymous}
nr_page_table_pages {tables}
nr_mlock {locked}
nr_foll_pin_acquired 7{pin}
nr_foll_pin_released 70
""",
    "node1": "nr_anon_transparent_hugepages {huge_1}\n",
}
_OF_ALL_NODES = """\
nr_shmem {shmem}
nr_active_anon {active}
nr_inactive_anon {inactive}
nr_shmem_hugepages 0
"""


@dataclass
class Left:
    """What a case leaves: pages, and bytes: no longer free, cached, and what there are more in all."""

    huge_0: int = 4
    huge_1: int = 4
    anonymous: int = 300
    shared: int = 0
    tables: int = 200
    pin: int = 0
    locked: int = 29
    listed: int = 100
    missing: int = 0
    cached: int = 0
    more: int = 0
    shmem: int = 10
    active: int = 700
    inactive: int = 20
    committed: int = 0
    stored: int = 30
    #: None where the kernel does not count them
    struct_pages: int | None = None


class CountingMachine(StillMachine):
    """Leaves what ``left`` says when it ``is_used``, until memory is compacted if that ``settles``."""

    def __init__(
        self, left: Left, *, settles: bool = False, is_accounted: bool = True, kernel: str = "6.18.44"
    ) -> None:
        super().__init__({"file_system": self._use_of_the_root})
        self._kernel = kernel
        self.kind = replace(self.kind, is_accounted=is_accounted)
        self._left, self._settles = left, settles
        self._seconds = 0.0
        self.is_used = False

    def perform(self, operation: str, arguments: list[str]) -> object:
        """Answer."""
        path = str(arguments[0]) if arguments else ""
        left = self._left if self.is_used else Left()
        if operation == "write" and path.endswith("compact_memory") and self._settles:
            self.is_used = False
        if operation == "clock":
            self._seconds += 1.0
            return self._seconds
        if operation == "names" and path == _NODE:
            return [*_COUNTERS]
        shown = self._shown(path, left)
        if shown is not None:
            return shown
        answer: object = super().perform(operation, arguments)
        if operation in ("read", "observe") and path == "proc/meminfo" and isinstance(answer, str):
            answer = re.sub(r"(\nCached: +)(\d+)", lambda found: _plus(found, left.cached), answer)
            answer = re.sub(r"(Committed_AS: +)(\d+)", lambda found: _plus(found, left.committed), answer)
            answer = re.sub(r"(MemTotal: +)(\d+)", lambda found: _plus(found, left.more), answer)
        return answer

    def _shown(self, path: str, left: Left) -> str | None:
        if path == "proc/sys/kernel/osrelease":
            return f"{self._kernel}\n"
        if path == "proc/zoneinfo":
            return _ZONE.format(free=4000000 - left.missing // self.kind.base_page, listed=left.listed)
        if path == VMSTAT:
            shown = _OF_ALL_NODES.format(**vars(left))
            if self._left.struct_pages is None:
                return shown
            return f"{shown}nr_memmap_pages {left.struct_pages or 0}\n"
        if path.startswith(_NODE) and path.endswith("/vmstat"):
            return _COUNTERS[path.split("/")[-2]].format(**vars(left))
        return None

    def _use_of_the_root(self, _point: str) -> list[int]:
        stored = (self._left if self.is_used else Left()).stored
        return [self.kind.base_page, 1000, 1000 - stored, 10, 10]


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
        (Left(active=100, inactive=620), None),
        (Left(inactive=532), "nr_active_anon and nr_inactive_anon: expected 720 as before, found 1232"),
        (Left(shmem=522), "nr_shmem: expected 10 as before, found 522"),
        (Left(shmem=522, stored=542), None),
        (Left(shmem=522, stored=29), "nr_shmem: expected 10 as before, found 522"),
        (Left(committed=2 * MIB), "Committed_AS: expected"),
        (Left(committed=MIB), None),
        (Left(tables=712), "nr_page_table_pages of node 0: expected 200 as before, found 712"),
        (Left(missing=2 * MIB), "memory that nobody has: expected 0 bytes more, found 2097152 bytes more"),
        (Left(missing=MIB // 2), None),
        (Left(missing=2 * MIB, listed=612), None),
        (Left(missing=2 * MIB, cached=2 * MIB), None),
        (Left(missing=2 * MIB, more=8 * MIB), None),
        (Left(more=8 * MIB, struct_pages=2048), None),
        (Left(missing=2 * MIB, more=8 * MIB, struct_pages=2048), "memory that nobody has: expected 0 bytes more"),
        (Left(more=-4 * KIB), "MemTotal: expected"),
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


@pytest.mark.parametrize(
    ("left", "size", "verdict"),
    [
        (Left(missing=GIB, cached=GIB), GIB, Verdict.FAIL),
        (Left(missing=GIB // 4, cached=GIB // 4), GIB, Verdict.PASS),
        (Left(missing=GIB, cached=GIB), SIZE, Verdict.PASS),
    ],
)
def test_memory_of_a_gigantic_page(left: Left, size: int, verdict: Verdict) -> None:
    machine = CountingMachine(left)

    def act(_live: Live) -> None:
        machine.is_used = True

    judgement = judge_on(machine, act, size)
    assert judgement.verdict is verdict, judgement.reason
    assert ("memory-left" in judgement.reason) is (verdict is Verdict.FAIL)


@pytest.mark.parametrize(("settles", "is_accounted"), [(True, True), (False, False)])
def test_what_settles_and_what_others_may_have(settles: bool, is_accounted: bool) -> None:
    machine = CountingMachine(Left(huge_0=5, missing=2 * MIB), settles=settles, is_accounted=is_accounted)

    def act(live: Live) -> None:
        machine.is_used = True
        live.expect("what is compared", 1, 1)

    assert judge_on(machine, act).verdict is Verdict.PASS


@pytest.mark.parametrize(("kernel", "verdict"), [("6.1.176", Verdict.PASS), ("6.12.117", Verdict.FAIL)])
def test_a_shared_page_that_moved_is_on_the_wrong_node_before_6_5(kernel: str, verdict: Verdict) -> None:
    """Of all nodes together there is none: what /proc/vmstat shows stays 0."""
    machine = CountingMachine(Left(shared=4), kernel=kernel)

    def act(_live: Live) -> None:
        machine.is_used = True

    judgement = judge_on(machine, act)
    assert judgement.verdict is verdict, judgement.reason
