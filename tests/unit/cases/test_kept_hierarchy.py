"""A version 1 hierarchy that is mounted once for all cases of an area, and what is expected of each case in it."""

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.cases.still_machine import StillMachine, judge_on

from hugepage_qa.cases.control_group import Version, keeping_hierarchy, new_group
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.result import Verdict
from hugepage_qa.errors import InputError
from hugepage_qa.machine.host import Host

_POINT = "/scratch/cgroup-1"


class Hierarchies:
    """The control groups of a kernel; ``remembered`` is how many groups stay in it when they were removed."""

    def __init__(self, remembered: int = 0, lasts: bool = False) -> None:
        self.remembered, self.lasts = remembered, lasts
        self.mounted = False
        self.groups = 1
        self.mounts = 0
        self.now = 0.0

    def machine(self, **others: Callable[..., Any]) -> StillMachine:
        operations: dict[str, Callable[..., Any]] = {
            "read": self.read,
            "mount": self.mount,
            "unmount": self.unmount,
            "make_directory": self.make,
            "remove_directory": self.remove,
            "clock": self.clock,
            "pause": self.pause,
        }
        return StillMachine(operations | others)

    def read(self, path: str) -> str | None:
        if path == "proc/cgroups":
            return f"#subsys_name\thierarchy\tnum_cgroups\tenabled\nhugetlb\t{7 * self.mounted}\t{self.groups}\t1\n"
        if path == "proc/self/mounts":
            return f"hugetlb {_POINT} cgroup rw,hugetlb 0 0\n" if self.mounted else ""
        text: str | None = StillMachine().perform("read", [path])
        return text

    def mount(self, _options: str, _type: str) -> str:
        self.mounted = True
        self.mounts += 1
        return _POINT

    def unmount(self, _point: str) -> None:
        self.mounted = self.lasts

    def make(self, _path: str) -> None:
        self.groups += 1

    def remove(self, _path: str) -> None:
        self.groups -= 0 if self.remembered else 1

    def clock(self) -> float:
        self.now += 0.01
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


def use_a_group(live: Live) -> None:
    new_group(live, "hugetlb", Version.ONE)


def test_all_cases_have_one_mount() -> None:
    kernel = Hierarchies()
    with keeping_hierarchy("hugetlb")(Host(kernel.machine())):
        for _case in range(3):
            assert judge_on(kernel.machine(), use_a_group).verdict is Verdict.PASS
    assert (kernel.mounts, kernel.mounted) == (1, False)


def test_a_case_alone_mounts_it_itself() -> None:
    kernel = Hierarchies()
    assert judge_on(kernel.machine(), use_a_group).verdict is Verdict.PASS
    assert (kernel.mounts, kernel.mounted) == (1, False)


def test_a_group_that_the_kernel_does_not_forget_fails_its_case() -> None:
    kernel = Hierarchies(remembered=1)
    with keeping_hierarchy("hugetlb")(Host(kernel.machine())):
        judgement = judge_on(kernel.machine(), use_a_group)
    assert judgement.verdict is Verdict.FAIL
    assert "groups of hugetlb in /proc/cgroups" in judgement.reason
    assert "expected 1, found 2" in judgement.reason


def test_a_hierarchy_that_outlives_its_mount_is_told() -> None:
    kernel = Hierarchies(lasts=True)
    with (
        pytest.raises(InputError, match="hierarchy of hugetlb outlives its mount"),
        keeping_hierarchy("hugetlb")(Host(kernel.machine())),
    ):
        pass


def test_a_hierarchy_of_the_machine_is_left_alone() -> None:
    kernel = Hierarchies()
    kernel.mounted = True
    with keeping_hierarchy("hugetlb")(Host(kernel.machine())):
        pass
    assert (kernel.mounts, kernel.mounted) == (0, True)


def test_a_controller_of_version_2_alone_is_there() -> None:
    # CONFIG_MEMCG_V1=n: /proc/cgroups does not name memory
    kernel = Hierarchies()
    files = {
        "proc/self/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
        "/sys/fs/cgroup/cgroup.controllers": "cpuset memory hugetlb\n",
        "/sys/fs/cgroup/cgroup.subtree_control": "memory\n",
    }
    machine = kernel.machine(read=lambda path: files.get(path) or kernel.read(path))
    assert judge_on(machine, lambda live: _use(live, Version.TWO)).verdict is Verdict.PASS
    judgement = judge_on(machine, lambda live: _use(live, Version.ONE))
    assert judgement.reason == "this kernel has no control group controller memory of version 1"


def _use(live: Live, version: Version) -> None:
    new_group(live, "memory", version)


def test_where_it_cannot_be_mounted_the_case_says_why() -> None:
    def refuse(*_: str) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    machine = Hierarchies().machine(mount=refuse)
    with keeping_hierarchy("hugetlb")(Host(machine)):
        judgement = judge_on(machine, use_a_group)
    assert (judgement.verdict, judgement.reason) == (
        Verdict.SKIP,
        "groups of version 2 use the controller hugetlb",
    )


@pytest.mark.parametrize("number", [errno.EBUSY, errno.EROFS, errno.EACCES])
def test_a_hierarchy_that_is_not_ours_is_a_skip(number: int) -> None:
    """In a container the root of what is seen has processes, or may only be read."""

    def refuse(path: str, *_text: str) -> None:
        if "cgroup" in path:
            raise OSError(number, os.strerror(number))

    def read(path: str) -> str | None:
        shown = {
            "proc/self/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
            "/sys/fs/cgroup/cgroup.controllers": "memory hugetlb\n",
            "/sys/fs/cgroup/cgroup.subtree_control": "memory\n",
        }
        return shown.get(path) or Hierarchies().read(path)

    machine = StillMachine({"read": read, "write": refuse, "make_directory": refuse})
    for controller in ("hugetlb", "memory"):

        def act(live: Live, controller: str = controller) -> None:
            new_group(live, controller, Version.TWO)

        judgement = judge_on(machine, act)
        assert judgement.verdict is Verdict.SKIP, judgement.reason
