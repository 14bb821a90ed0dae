"""What a run left behind: its processes, cgroups, mounts, System V segments and directories, removed in this order."""

import os
import shutil
import stat
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from hugepage_qa.kernel.proc_tables import Mount, Segment, read_mounts
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.machine import libc
from hugepage_qa.machine.cgroups import find_cgroups, remove_cgroup
from hugepage_qa.machine.kept_file import NOTHING, Repair, remove_by
from hugepage_qa.machine.libc import retry_while_busy
from hugepage_qa.machine.saved_state import find_segments
from hugepage_qa.process.marks import PREFIX, RUN_DIRECTORY
from hugepage_qa.process.process_table import belongs_to, find_processes, kill_and_wait

# each round finds what the killed ones had forked meanwhile
_ROUNDS = 100


def end_processes(run_id: str) -> list[Repair]:
    """Kill the processes that carry ``run_id`` and wait until they have given back their memory."""
    found: dict[int, str] = {}
    left: set[int] = set()
    for _ in range(_ROUNDS):
        new = {pid: name for pid, name in find_processes(run_id).items() if pid not in left}
        if not new:
            break
        found |= new
        left |= kill_and_wait(new, partial(belongs_to, run_id))
    return [
        Repair(f"process {pid} ({name})", NOTHING, "running", "running" if pid in left else NOTHING)
        for pid, name in found.items()
    ]


def remove_mounts(saved: Sequence[Mount], directories: Iterable[str], root: Path) -> list[Repair]:
    """Unmount what is mounted below ``directories`` or /run/hugepage-qa-* and is not among the mounts ``saved``."""
    spare = Counter(mount.point for mount in saved)
    ours = []
    for mount in read_mounts(DirectoryTree(root)):
        if spare[mount.point]:
            spare[mount.point] -= 1
        elif mount.point.startswith(f"/{RUN_DIRECTORY}/{PREFIX}") or any(
            Path(mount.point).is_relative_to(directory) for directory in directories
        ):
            ours.append(mount)
    # what was mounted last may lie on top of the others
    return [_remove_mount(mount, root) for mount in reversed(ours)]


def remove_cgroups(saved: Sequence[str], root: Path) -> list[Repair]:
    """Remove our cgroups that are not among ``saved``, with all that runs in them."""
    return [
        remove_by(partial(remove_cgroup, root / name.lstrip("/")), f"cgroup {name}", "a directory")
        for name in sorted(set(find_cgroups(root)) - set(saved))
    ]


def remove_segments(saved: Sequence[Segment], root: Path) -> list[Repair]:
    """Remove the System V segments with our prefix that are not among ``saved``."""
    return [
        remove_by(
            partial(libc.remove_segment, segment.identifier),
            f"shared memory 0x{segment.key:08x}",
            f"segment {segment.identifier}",
        )
        for segment in find_segments(root)
        if segment not in saved
    ]


def remove_directories(directories: Iterable[str], root: Path) -> list[Repair]:
    """Remove ``directories`` with what is in them, but never what is still mounted below one."""
    repairs = []
    for name in directories:
        path = root / name.lstrip("/")
        if _is_our_directory(path):
            repairs.append(_remove_directory(name, path, root))
    return repairs


def _is_our_directory(path: Path) -> bool:
    """Tell whether there is such a directory, and not one that somebody else made in /tmp after ours had gone."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _remove_directory(name: str, path: Path, root: Path) -> Repair:
    subject = f"directory {name}"
    mounted = [mount.point for mount in read_mounts(DirectoryTree(root)) if Path(mount.point).is_relative_to(name)]
    if mounted:
        return Repair(subject, NOTHING, "a directory", f"{mounted[-1]} mounted in it")
    return remove_by(partial(shutil.rmtree, path), subject, "a directory")


def _remove_mount(mount: Mount, root: Path) -> Repair:
    unmount = partial(libc.unmount, str(root / mount.point.lstrip("/")))
    return remove_by(partial(retry_while_busy, unmount), f"mount {mount.point}", f"{mount.type} {mount.options}")
