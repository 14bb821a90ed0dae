"""The cgroups that runs make (names ``hugepage-qa-*``) in the hierarchies of both versions, and their controllers."""

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from hugepage_qa.kernel.mounts import read_mounts
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.machine.insist import insist
from hugepage_qa.machine.marks import PREFIX
from hugepage_qa.machine.processes import kill_and_wait

_SUBTREE_CONTROL = "cgroup.subtree_control"
_CONTROLLER = "hugetlb"


def find_cgroups(root: Path = Path("/")) -> tuple[str, ...]:
    """Return the directories of our cgroups, sorted, without those below them."""
    return tuple(sorted(path for point in _hierarchies(root, "cgroup", "cgroup2") for path in _ours(root, point)))


def remove_cgroup(path: Path) -> None:
    """Kill the processes in the cgroup ``path`` and below, and remove it. Raises OSError when it stays."""
    for directory, _, _ in os.walk(path, topdown=False):
        kill_and_wait(_processes(Path(directory)), partial(_is_in, Path(directory)))
        with suppress(FileNotFoundError):  # the same hierarchy is mounted elsewhere, too
            insist(Path(directory).rmdir)


def read_hugetlb_control(root: Path = Path("/")) -> dict[str, bool]:
    """Return for each mounted version 2 hierarchy whether its root hands down the controller hugetlb.

    The other controllers are systemd's, which hands them down whenever a service asks for one.
    """
    tree = DirectoryTree(root)
    found = {point: tree.read(_control_file(point)) for point in _hierarchies(root, "cgroup2")}
    return {point: _CONTROLLER in text.split() for point, text in found.items() if text is not None}


def write_hugetlb_control(point: str, handed_down: bool, root: Path = Path("/")) -> None:
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
