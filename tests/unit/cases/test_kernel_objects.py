"""Structures of the kernel that a case leaves behind on a machine that nobody else uses."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from tests.unit.cases.still_machine import StillMachine, judge_on

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.result import Verdict
from hugepage_qa.kernel.slab import CACHES, SLABINFO
from hugepage_qa.kernel.thp import DIRECTORY

_IN_PARTS = "nr_anon_partially_mapped"
_GROUPS = "sys/fs/cgroup/cgroup.stat"
_BEFORE = {"anon_vma": 20, "shmem_inode_cache": 50, "numa_policy": 3, "dentry": 1000}


class CountingMachine(StillMachine):
    """Has ``left`` more objects when it ``is_used``; ``kept`` ones by processors until they have to give them back."""

    def __init__(self, left: Mapping[str, int], *, is_freed_late: bool = False, is_accounted: bool = True) -> None:
        super().__init__({"file_system": self._use_of_the_root})
        self.kind = replace(self.kind, is_accounted=is_accounted)
        self._left, self._is_freed_late = left, is_freed_late
        self._kept = dict.fromkeys(_BEFORE, 7)
        self._seconds = 0.0
        self.is_used = False

    def perform(self, operation: str, arguments: list[str]) -> object:
        """Answer."""
        path = str(arguments[0]) if arguments else ""
        if operation == "clock":
            self._seconds += 1.0
            return self._seconds
        if operation == "write" and path.startswith(CACHES):
            self._kept[path.split("/")[-2]] = 0
        if operation == "write" and path.endswith("compact_memory") and self._is_freed_late:
            self._left = {}
        if operation == "names" and path == DIRECTORY:
            return ["hugepages-2048kB"]
        shown = self._shown(path) if operation in ("read", "observe") else None
        if shown is not None:
            return shown
        return super().perform(operation, arguments)

    def _shown(self, path: str) -> str | None:
        left = self._left if self.is_used else {}
        if path == _GROUPS:
            return f"nr_descendants 2\nnr_dying_descendants {left.get('groups', 0)}\n"
        if path.endswith(f"/{_IN_PARTS}"):
            return f"{2 + left.get(_IN_PARTS, 0)}\n"
        return "".join(f"{name} {self._count(name)} 999\n" for name in _BEFORE) if path == SLABINFO else None

    def _use_of_the_root(self, _point: str) -> list[int]:
        stored = self._left.get("stored", 0) if self.is_used else 0
        return [4096, 1000, 900, 100, 90 - stored]

    def _count(self, name: str) -> int:
        return _BEFORE[name] + self._kept[name] + (self._left.get(name, 0) if self.is_used else 0)


@pytest.mark.parametrize(
    ("left", "reason"),
    [
        ({}, None),
        ({"numa_policy": 1}, "count of numa_policy: expected at most 3, found 4"),
        ({"anon_vma": 2}, None),
        ({"anon_vma": 3}, "count of anon_vma: expected at most 22, found 23"),
        ({"anon_vma": -20, "numa_policy": -3}, None),
        ({"dentry": 500}, None),
        ({"shmem_inode_cache": 9}, "count of shmem_inode_cache: expected at most 42, found 49"),
        ({"shmem_inode_cache": 9, "stored": 9}, None),
        ({_IN_PARTS: 1}, "count of 2048kB/nr_anon_partially_mapped: expected at most 2, found 3"),
        ({_IN_PARTS: -1}, None),
        ({"groups": 1}, "count of nr_dying_descendants: expected at most 0, found 1"),
    ],
)
def test_what_is_left(left: Mapping[str, int], reason: str | None) -> None:
    judgement = _judge(CountingMachine(left))
    assert judgement[0] is (Verdict.FAIL if reason else Verdict.PASS), judgement
    assert reason is None or (reason in judgement[1] and "objects-freed" in judgement[1])


@pytest.mark.parametrize(("is_freed_late", "is_accounted"), [(True, True), (False, False)])
def test_what_is_freed_late_and_what_others_may_have(is_freed_late: bool, is_accounted: bool) -> None:
    machine = CountingMachine({"anon_vma": 50}, is_freed_late=is_freed_late, is_accounted=is_accounted)
    assert _judge(machine)[0] is Verdict.PASS


def _judge(machine: CountingMachine) -> tuple[Verdict, str]:
    def act(live: Live) -> None:
        machine.is_used = True
        live.expect("what is compared", 1, 1)

    judgement = judge_on(machine, act)
    return judgement.verdict, judgement.reason
