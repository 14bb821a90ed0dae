"""Control group hierarchies of version 1 that a run has mounted: they outlive their mounts while they hold a group."""

import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from hugepage_qa.kernel.mounts import Mount, read_mounts
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.machine import libc
from hugepage_qa.machine.cgroups import find_cgroups, remove_cgroup
from hugepage_qa.machine.insist import insist
from hugepage_qa.machine.marks import PREFIX, RUN_DIRECTORY
from hugepage_qa.machine.repair import NOTHING, Repair

_FOUND = "a hierarchy of version 1"
# A hierarchy goes a moment after its unmount, but not while a removed group is still remembered: then it is mounted
# and unmounted again. The moment is long on a loaded machine.
_SECONDS = 30.0
_BETWEEN_MOUNTS_SECONDS = 1.0
_PAUSE_SECONDS = 0.02


def read_hierarchies(root: Path = Path("/")) -> tuple[str, ...]:
    """Return the controllers that a hierarchy of version 1 has, mounted or not (cgroups(7), /proc/cgroups)."""
    lines = (DirectoryTree(root).read("proc/cgroups") or "").splitlines()
    words = [line.split() for line in lines if not line.startswith("#")]
    return tuple(sorted(name for name, hierarchy, *_ in words if hierarchy != "0"))


def remove_hierarchies(saved: Sequence[str], root: Path = Path("/"), seconds: float = _SECONDS) -> list[Repair]:
    """Give the controllers back that are not in ``saved`` and have a hierarchy that is mounted nowhere.

    A hierarchy that has not gone after ``seconds`` stays.
    """
    mounted = {word for mount in read_mounts(DirectoryTree(root)) if mount.type == "cgroup" for word in _words(mount)}
    left = [name for name in read_hierarchies(root) if name not in saved and name not in mounted]
    return [Repair(_subject(name), NOTHING, _FOUND, _remove(name, root, seconds)) for name in left]


def _words(mount: Mount) -> list[str]:
    return mount.options.split(",")


def _subject(controller: str) -> str:
    return f"control groups of {controller}"


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
            insist(partial(libc.unmount, str(point)))
        return NOTHING
    except OSError as error:
        return f"{_FOUND} ({os.strerror(error.errno or 0)})"
    finally:
        point.rmdir()


def _has_gone(controller: str, root: Path, deadline: float) -> bool:
    end = min(deadline, time.monotonic() + _BETWEEN_MOUNTS_SECONDS)
    while controller in read_hierarchies(root):
        if time.monotonic() > end:
            return False
        time.sleep(_PAUSE_SECONDS)
    return True
