"""What of the host must not change while probe machines run on it, read before and after and compared."""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.kernel.mounts import read_mounts
from hugepage_qa.kernel.pools import Pool, read_node_pools, read_pools
from hugepage_qa.kernel.tree import DirectoryTree, Tree
from hugepage_qa.machine.knobs import Kind, read_knobs

_MEMORY_FILESYSTEMS = frozenset({"hugetlbfs", "tmpfs"})
# only the names in these are looked at: what lies deeper belongs to programs that run on
_DIRECTORIES = ("", "etc", "run", "dev/hugepages")
# in these, other programs of the same user come and go: only names that we or our tools choose count
_SHARED_DIRECTORIES = ("tmp", "var/tmp", "dev/shm")
_OUR_NAMES = ("hugepage-qa", "avocado", ".avocado", "tmt", "qemu")
_KINDS = {stat.S_IFDIR: "directory", stat.S_IFREG: "file", stat.S_IFLNK: "link"}
_PACKAGE_STATES = ("var/lib/dpkg/status", "var/lib/apt/extended_states")
_EMULATOR_PREFIX = "qemu-system-"

_START_TIME = 19  # of /proc/<pid>/stat, counted from the field after the name: field 22 in proc_pid_stat(5)


@dataclass(frozen=True)
class Snapshot:
    """The state of a host: subject -> value, each in words that a person can compare."""

    values: Mapping[str, str]


def take_snapshot(ignore: Sequence[Path] = (), *, root: Path = Path("/")) -> Snapshot:
    """Return the state of the host whose files lie below ``root``; what cannot be read is left out.

    Raises InputError for a kernel file of an unknown form.

    Kept are hugetlb pools, THP knobs, sysctls of memory, mounts, running emulators, the state of the packages and
    the current user's own entries in the directories that programs litter. ``ignore`` names paths of the live
    machine that may come and go, with all below them: the cache and the run directory. Where it names any, only
    emulators that use files below them count: others are not ours.
    """
    tree = DirectoryTree(root)
    ignore = [path.absolute() for path in ignore]
    return Snapshot(
        {
            **_pools(tree),
            **{knob.name: value for knob, value in read_knobs(root).items() if knob.kind is not Kind.POOL},
            **_mounts(tree, ignore),
            **_emulators(tree, ignore),
            **_entries(root, ignore),
            **_packages(root),
        }
    )


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    """Return one line for each subject that is not as it was; empty when the host is unchanged."""
    subjects = sorted(before.values.keys() | after.values.keys())
    return [
        f"{subject}: {before.values.get(subject, 'absent')} before, {after.values.get(subject, 'absent')} after"
        for subject in subjects
        if before.values.get(subject) != after.values.get(subject)
    ]


def _pools(tree: Tree) -> dict[str, str]:
    values = _pool_values("", read_pools(tree))
    for node, pools in read_node_pools(tree).items():
        values.update(_pool_values(f"node{node}/", pools))
    return values


def _pool_values(prefix: str, pools: Sequence[Pool]) -> dict[str, str]:
    return {f"{prefix}{pool.name}/{name}": str(value) for pool in pools for name, value in pool.files.items()}


def _mounts(tree: Tree, ignore: Sequence[Path]) -> dict[str, str]:
    """Return the options of each mount of a memory file system, and how many mounts of any kind there are."""
    mounts = [mount for mount in read_mounts(tree) if not _is_below(Path(mount.point), ignore)]
    values = {
        f"mount {mount.point}": f"{mount.type} {mount.options}" for mount in mounts if mount.type in _MEMORY_FILESYSTEMS
    }
    return {**values, "number of mounts": str(len(mounts))}


def _emulators(tree: Tree, ours: Sequence[Path]) -> dict[str, str]:
    """Return the QEMU processes; the start time tells two processes with the same number apart."""
    values = {}
    for pid in (name for name in tree.names("proc") if name.isascii() and name.isdigit()):
        name = (tree.read(f"proc/{pid}/comm") or "").strip()
        # the name in parentheses can hold spaces and parentheses itself
        fields = (tree.read(f"proc/{pid}/stat") or "").rpartition(")")[2].split()
        arguments = tree.read(f"proc/{pid}/cmdline") or ""
        is_ours = not ours or any(f"{path}/" in arguments for path in ours)
        if name.startswith(_EMULATOR_PREFIX) and is_ours and len(fields) > _START_TIME:
            values[f"process {pid} {name}"] = f"running since tick {fields[_START_TIME]}"
    return values


def _entries(root: Path, ignore: Sequence[Path]) -> dict[str, str]:
    """Return the kind of each entry that belongs to the current user: others may create files meanwhile."""
    values = {}
    for directory in (*_DIRECTORIES, *_SHARED_DIRECTORIES):
        for name, status in _list_directory(root / directory):
            if directory in _SHARED_DIRECTORIES and not name.startswith(_OUR_NAMES):
                continue
            path = Path("/") / directory / name
            # a directory that had to be made to hold an ignored one is no litter either
            expected = _is_below(path, ignore) or any(other.is_relative_to(path) for other in ignore)
            if status.st_uid == os.getuid() and not expected:
                values[str(path)] = _KINDS.get(stat.S_IFMT(status.st_mode), "special file")
    return values


def _list_directory(directory: Path) -> Iterator[tuple[str, os.stat_result]]:
    try:
        paths = list(directory.iterdir())
    except OSError:
        return
    for path in paths:
        try:
            yield path.name, path.lstat()
        except OSError:  # gone since it was listed
            continue


def _packages(root: Path) -> dict[str, str]:
    values = {}
    for name in _PACKAGE_STATES:
        try:
            status = (root / name).stat()
        except OSError:
            continue
        values[f"/{name}"] = f"{status.st_size} bytes of {status.st_mtime_ns} ns"
    return values


def _is_below(path: Path, directories: Sequence[Path]) -> bool:
    return any(path.is_relative_to(directory) for directory in directories)
