"""What a run left behind is removed; what was there before, and what is not ours, stays."""

import errno
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from hugepage_qa.kernel.proc_tables import Segment, read_mounts
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.machine import cgroups, leftovers, libc
from hugepage_qa.machine.cgroups import find_cgroups, read_hugetlb_control, remove_cgroup, write_hugetlb_control
from hugepage_qa.machine.kept_file import NOTHING, Repair
from hugepage_qa.machine.leftovers import remove_cgroups, remove_directories, remove_mounts, remove_segments
from hugepage_qa.machine.libc import retry_while_busy
from hugepage_qa.process import process_table

from .conftest import SHM_TITLE, value, write

CGROUPS = "none /cg cgroup2 rw 0 0\nnone /v1 cgroup rw,hugetlb 0 0\nnone /data ext4 rw 0 0\n"


def mount(root: Path, *points: str) -> None:
    lines = [f"none {point} hugetlbfs rw,pagesize=2M 0 0" for point in points]
    write(root / "proc/self/mounts", "\n".join([*lines, ""]))


def busy(*_: object) -> None:
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (leftovers, cgroups):
        monkeypatch.setattr(module, "retry_while_busy", partial(retry_while_busy, seconds=0.1))


# --- mounts ---


@pytest.fixture
def unmounted(monkeypatch: pytest.MonkeyPatch, machine: Path) -> list[str]:
    points: list[str] = []
    monkeypatch.setattr(libc, "unmount", lambda point: points.append(point.removeprefix(str(machine))))
    return points


def test_new_mounts_of_ours(machine: Path, unmounted: list[str]) -> None:
    mount(machine, "/dev/hugepages", "/run/hugepage-qa-0/old")
    saved = read_mounts(DirectoryTree(machine))
    mount(
        machine,
        "/dev/hugepages",
        "/run/hugepage-qa-0/old",
        "/run/hugepage-qa-1/a",
        "/run/hugepage-qa-1/a/b",
        "/tmp/hugepage-qa-2",
        "/tmp/hugepage-qa-2-of-others",
        "/mnt",
        "/dev/hugepages",
        "/run/hugepage-qa-0/old",
    )
    repairs = remove_mounts(saved, ["/tmp/hugepage-qa-2"], machine)
    # the last one first; over an old one there may lie one of ours
    assert unmounted == [
        "/run/hugepage-qa-0/old",
        "/tmp/hugepage-qa-2",
        "/run/hugepage-qa-1/a/b",
        "/run/hugepage-qa-1/a",
    ]
    assert repairs[1] == Repair("mount /tmp/hugepage-qa-2", NOTHING, "hugetlbfs rw,pagesize=2M", NOTHING)


def test_a_busy_mount_is_tried_again(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def busy_twice(point: str) -> None:
        calls.append(point)
        if len(calls) <= 2:
            busy()

    monkeypatch.setattr(libc, "unmount", busy_twice)
    mount(machine, "/run/hugepage-qa-1")
    (repair,) = remove_mounts((), (), machine)
    assert repair.succeeded
    assert len(calls) == 3


def test_a_mount_that_stays_busy_is_told(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libc, "unmount", busy)
    mount(machine, "/run/hugepage-qa-1", "/run/hugepage-qa-1/a")
    first, second = remove_mounts((), (), machine)
    assert str(first) == (
        "mount /run/hugepage-qa-1/a: NOT put back: wanted nothing, found hugetlbfs rw,pagesize=2M"
        " (Device or resource busy)"
    )
    assert not second.succeeded


def test_other_errors_are_told_at_once(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def refuse(point: str) -> None:
        calls.append(point)
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(libc, "unmount", refuse)
    mount(machine, "/run/hugepage-qa-1")
    (repair,) = remove_mounts((), (), machine)
    assert "Operation not permitted" in repair.after
    assert len(calls) == 1


def test_unmounting_what_is_no_mount() -> None:
    with pytest.raises(OSError, match="/proc/self/status") as caught:
        libc.unmount("/proc/self/status")
    assert caught.value.errno in (errno.EINVAL, errno.EPERM)


# --- cgroups ---


def make_cgroup(root: Path, path: str) -> None:
    (root / path.lstrip("/")).mkdir(parents=True)


def test_cgroups_of_every_hierarchy(machine: Path) -> None:
    write(machine / "proc/self/mounts", CGROUPS)
    for path in ("/cg/hugepage-qa-1/deep", "/cg/user.slice/hugepage-qa-2", "/v1/hugepage-qa-3", "/cg/other"):
        make_cgroup(machine, path)
    make_cgroup(machine, "/data/hugepage-qa-4")
    assert find_cgroups(machine) == ("/cg/hugepage-qa-1", "/cg/user.slice/hugepage-qa-2", "/v1/hugepage-qa-3")
    repairs = remove_cgroups(["/v1/hugepage-qa-3"], machine)
    assert [repair.subject for repair in repairs] == ["cgroup /cg/hugepage-qa-1", "cgroup /cg/user.slice/hugepage-qa-2"]
    assert all(repair.succeeded for repair in repairs)
    assert find_cgroups(machine) == ("/v1/hugepage-qa-3",)
    assert (machine / "cg/other").is_dir()
    assert (machine / "data/hugepage-qa-4").is_dir()


def test_the_processes_in_a_cgroup_end_before_it_is_removed(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # in a file the number stays
    monkeypatch.setattr(process_table, "_DEADLINE_SECONDS", 0)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    cgroup = machine / "hugepage-qa-1"
    write(cgroup / "deep" / "cgroup.procs", f"{child.pid}\n")
    # files of a real cgroup go with it
    with pytest.raises(OSError, match="not empty"):
        remove_cgroup(cgroup)
    assert child.wait() == -9


def test_a_hierarchy_that_is_mounted_twice(machine: Path) -> None:
    write(machine / "proc/self/mounts", CGROUPS.replace("/v1", "/cg2"))
    make_cgroup(machine, "/cg/hugepage-qa-1")
    (machine / "cg2").symlink_to(machine / "cg")
    assert [repair.succeeded for repair in remove_cgroups([], machine)] == [True, True]


def test_cgroup_that_stays_busy(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(machine / "proc/self/mounts", CGROUPS)
    make_cgroup(machine, "/cg/hugepage-qa-1")
    monkeypatch.setattr(Path, "rmdir", busy)
    (repair,) = remove_cgroups([], machine)
    assert repair.after == "a directory (Device or resource busy)"


def test_controller(machine: Path) -> None:
    write(machine / "proc/self/mounts", CGROUPS)
    control = "cg/cgroup.subtree_control"
    write(machine / control, "cpu memory\n")
    assert read_hugetlb_control(machine) == {"/cg": False}
    write_hugetlb_control("/cg", True, machine)
    assert value(machine, control) == "+hugetlb"
    write(machine / control, "cpu hugetlb\n")
    assert read_hugetlb_control(machine) == {"/cg": True}
    write_hugetlb_control("/cg", False, machine)
    assert value(machine, control) == "-hugetlb"


# --- System V segments ---


def test_segments(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"{key} {identifier} 600\n" for key, identifier in ((0x48510001, 5), (0x48510002, 6), (0x48500000, 7))]
    write(machine / "proc/sysvipc/shm", SHM_TITLE + "".join(lines))
    removed: list[int] = []
    monkeypatch.setattr(libc, "remove_segment", removed.append)
    repairs = remove_segments([Segment(0x48510001, 5)], machine)
    assert removed == [6]
    assert repairs == [Repair("shared memory 0x48510002", NOTHING, "segment 6", NOTHING)]


def test_a_segment_that_does_not_exist() -> None:
    with pytest.raises(OSError, match="segment 2147483647") as caught:
        libc.remove_segment(2147483647)
    assert caught.value.errno == errno.EINVAL


# --- directories ---


def test_directories(machine: Path) -> None:
    write(machine / "run/hugepage-qa-1/deep/file", "")
    (machine / "run/hugepage-qa-2").symlink_to(machine / "proc")
    repairs = remove_directories(["/run/hugepage-qa-1", "/run/hugepage-qa-2", "/run/hugepage-qa-3"], machine)
    assert repairs == [Repair("directory /run/hugepage-qa-1", NOTHING, "a directory", NOTHING)]
    assert not (machine / "run/hugepage-qa-1").exists()
    assert (machine / "proc/cmdline").exists()


def test_nothing_is_removed_below_a_mount(machine: Path) -> None:
    write(machine / "run/hugepage-qa-1/bound/file", "")
    mount(machine, "/run/hugepage-qa-1/bound")
    (repair,) = remove_directories(["/run/hugepage-qa-1"], machine)
    assert repair.after == "/run/hugepage-qa-1/bound mounted in it"
    assert (machine / "run/hugepage-qa-1/bound/file").exists()


def test_a_directory_of_somebody_else(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(machine / "tmp/hugepage-qa-1/file", "")
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert remove_directories(["/tmp/hugepage-qa-1"], machine) == []
    assert (machine / "tmp/hugepage-qa-1/file").exists()
