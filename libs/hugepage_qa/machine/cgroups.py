"""The cgroups that runs make (names ``hugepage-qa-*``), and the hierarchies of version 1 that they have mounted.

Such a hierarchy outlives its mount while it holds a group.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from hugepage_qa.kernel.hugetlb_cgroup import read_controllers
from hugepage_qa.kernel.proc_tables import read_mounts
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.machine import libc
from hugepage_qa.machine.kept_file import NOTHING, Repair
from hugepage_qa.machine.libc import retry_while_busy
from hugepage_qa.process.marks import PREFIX, RUN_DIRECTORY
from hugepage_qa.process.process_table import kill_and_wait

_SUBTREE_CONTROL = "cgroup.subtree_control"
_CONTROLLER = "hugetlb"


def find_cgroups(root: Path) -> tuple[str, ...]:
    """Return the directories of our cgroups, sorted, without those below them."""
    return tuple(sorted(path for point in _hierarchies(root, "cgroup", "cgroup2") for path in _ours(root, point)))


def remove_cgroup(path: Path) -> None:
    """Kill the processes in the cgroup ``path`` and below, and remove it. Raises OSError when it stays."""
    for directory, _, _ in os.walk(path, topdown=False):
        kill_and_wait(_processes(Path(directory)), partial(_is_in, Path(directory)))
        with suppress(FileNotFoundError):  # the same hierarchy is mounted elsewhere, too
            retry_while_busy(Path(directory).rmdir)


def read_hugetlb_control(root: Path) -> dict[str, bool]:
    """Return for each mounted version 2 hierarchy whether its root hands down the controller hugetlb.

    The other controllers are systemd's, which hands them down whenever a service asks for one.
    """
    tree = DirectoryTree(root)
    found = {point: tree.read(_control_file(point)) for point in _hierarchies(root, "cgroup2")}
    return {point: _CONTROLLER in text.split() for point, text in found.items() if text is not None}


def write_hugetlb_control(point: str, handed_down: bool, root: Path) -> None:
    """Have the root of the hierarchy at ``point`` hand the controller hugetlb down, or not. Raises OSError."""
    with (root / _control_file(point)).open("w") as stream:
        stream.write(f"{'+' if handed_down else '-'}{_CONTROLLER}")


def _hierarchies(root: Path, *types: str) -> list[str]:
    points = [mount.point for mount in read_mounts(DirectoryTree(root)) if mount.type in types]
    return list(dict.fromkeys(points))


def _ours(root: Path, point: str) -> Iterator[str]:
    for directory, names, _ in os.walk(root / point.lstrip("/")):
        for name in [name for name in names if name.startswith(PREFIX)]:
            names.remove(name)
            yield f"/{Path(directory, name).relative_to(root)}"


def _control_file(point: str) -> str:
    return f"{point.lstrip('/')}/{_SUBTREE_CONTROL}"


def _processes(cgroup: Path) -> list[int]:
    with suppress(OSError):
        return [int(pid) for pid in (cgroup / "cgroup.procs").read_text(encoding="ascii").split()]
    return []


def _is_in(cgroup: Path, pid: int) -> bool:
    return pid in _processes(cgroup)


_FOUND = "a hierarchy of version 1"
# A hierarchy goes a moment after its unmount, but not while a removed group is still remembered: then it is mounted
# and unmounted again. The moment is long on a loaded machine.
_SECONDS = 30.0
_BETWEEN_MOUNTS_SECONDS = 1.0
_PAUSE_SECONDS = 0.02


def read_hierarchies(root: Path) -> tuple[str, ...]:
    """Return the controllers that a hierarchy of version 1 has, mounted or not."""
    return tuple(sorted(name for name, one in read_controllers(DirectoryTree(root)).items() if one.hierarchy))


def remove_hierarchies(saved: Sequence[str], root: Path, seconds: float = _SECONDS) -> list[Repair]:
    """Give the controllers back that are not in ``saved`` and have a hierarchy that is mounted nowhere.

    A hierarchy that has not gone after ``seconds`` stays.
    """
    hierarchies = [mount for mount in read_mounts(DirectoryTree(root)) if mount.type == "cgroup"]
    mounted = {word for mount in hierarchies for word in mount.options.split(",")}
    left = [name for name in read_hierarchies(root) if name not in saved and name not in mounted]
    return [Repair(f"control groups of {name}", NOTHING, _FOUND, _remove(name, root, seconds)) for name in left]


def _remove(controller: str, root: Path, seconds: float) -> str:
    """Mount the hierarchy, remove our groups in it and unmount it until it is gone; return what is there then."""
    point = root / RUN_DIRECTORY / f"{PREFIX}{controller}"
    point.mkdir(mode=0o700, exist_ok=True)
    deadline = time.monotonic() + seconds
    try:
        while not _has_gone(controller, root, deadline):
            if time.monotonic() > deadline:
                return _FOUND
            libc.mount("cgroup", str(point), controller)
            for name in find_cgroups(root):
                if Path(name).is_relative_to(f"/{point.relative_to(root)}"):
                    remove_cgroup(root / name.lstrip("/"))
            retry_while_busy(partial(libc.unmount, str(point)))
        return NOTHING
    except OSError as error:
        return f"{_FOUND} ({os.strerror(error.errno or 0)})"
    finally:
        with suppress(OSError):  # it is busy where the unmount has failed, which is told
            point.rmdir()


def _has_gone(controller: str, root: Path, deadline: float) -> bool:
    end = min(deadline, time.monotonic() + _BETWEEN_MOUNTS_SECONDS)
    while controller in read_hierarchies(root):
        if time.monotonic() > end:
            return False
        time.sleep(_PAUSE_SECONDS)
    return True
