"""Hierarchies of version 1 that outlive their mounts."""

import errno
import os
from pathlib import Path

import pytest

from hugepage_qa.machine import libc
from hugepage_qa.machine.cgroups import read_hierarchies, remove_hierarchies
from hugepage_qa.machine.kept_file import NOTHING

from .conftest import CGROUPS, write

POINT = "run/hugepage-qa-hugetlb"


class Hierarchy:
    """Takes the place of the kernel: the hierarchy goes when it is unmounted without groups, for the second time."""

    def __init__(self, root: Path, groups: list[str], remembered: int = 1) -> None:
        self.root, self.groups, self.remembered = root, groups, remembered
        write(root / "proc/cgroups", CGROUPS.format(hugetlb=24))

    def mount(self, file_system: str, point: str, options: str) -> None:
        assert (file_system, point, options) == ("cgroup", str(self.root / POINT), "hugetlb")
        write(self.root / "proc/self/mounts", f"x /{POINT} cgroup rw,hugetlb 0 0\n")
        for name in self.groups:
            Path(point, name).mkdir()

    def unmount(self, point: str) -> None:
        write(self.root / "proc/self/mounts", "")
        self.groups = [path.name for path in Path(point).iterdir()]
        for name in self.groups:
            Path(point, name).rmdir()
        if not self.groups:
            self.remembered -= 1
        if not self.groups and self.remembered < 0:
            write(self.root / "proc/cgroups", CGROUPS.format(hugetlb=0))


def use(hierarchy: Hierarchy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libc, "mount", hierarchy.mount)
    monkeypatch.setattr(libc, "unmount", hierarchy.unmount)


def test_our_groups_and_then_the_hierarchy_are_removed(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Hierarchy(machine, ["hugepage-qa-case"]), monkeypatch)
    (repair,) = remove_hierarchies((), machine)
    assert (repair.subject, repair.after) == ("control groups of hugetlb", NOTHING)
    assert read_hierarchies(machine) == ()
    assert not (machine / POINT).exists()


def test_groups_of_others_stay(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hierarchy = Hierarchy(machine, ["system.slice"])
    use(hierarchy, monkeypatch)
    (repair,) = remove_hierarchies((), machine, seconds=0.1)
    assert repair.after == "a hierarchy of version 1"
    assert hierarchy.groups == ["system.slice"]


def test_a_hierarchy_that_was_there_before_or_is_mounted_is_left_alone(machine: Path) -> None:
    write(machine / "proc/cgroups", CGROUPS.format(hugetlb=24))
    assert remove_hierarchies(("hugetlb",), machine) == []
    write(machine / "proc/self/mounts", "x /mine cgroup rw,hugetlb 0 0\n")
    assert remove_hierarchies((), machine) == []


def test_what_the_kernel_refuses_is_told(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Hierarchy(machine, []), monkeypatch)

    def refuse(*_: str) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(libc, "mount", refuse)
    (repair,) = remove_hierarchies((), machine)
    assert repair.after == f"a hierarchy of version 1 ({os.strerror(errno.EBUSY)})"
    assert not (machine / POINT).exists()


def test_an_unmount_that_the_kernel_refuses_is_told(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hierarchy = Hierarchy(machine, [])
    use(hierarchy, monkeypatch)

    def refuse(point: str) -> None:
        # rmdir(2) of a mount point fails with EBUSY, of a directory with something in it with ENOTEMPTY
        Path(point, "tasks").touch()
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(libc, "unmount", refuse)
    (repair,) = remove_hierarchies((), machine)
    assert repair.after == f"a hierarchy of version 1 ({os.strerror(errno.EPERM)})"
