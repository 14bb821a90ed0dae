"""What of the host a run must not change, and what it left there, told from what others do meanwhile.

Nobody but a run has a reason to change these while it has the machine, so that any change counts against it, even if
another administrator made it: pools, THP knobs, sysctls of memory, mounts, our control groups and System V segments.
A run of throwaway machines does not ask for the machine: all of these, and the files that the kernel swaps to, are
another run's while that one has it.

Files and packages change all the time on a machine that others use. Those that a run left are known

* by their group: the processes of a run that root starts have the group nogroup, and the kernel gives what a process
  creates to its group (inode_init_owner() in fs/inode.c), whatever it is called and wherever it lies. A daemon of the
  machine with that group is taken for ours where it makes a file meanwhile. apt writes the list of packages that were
  installed automatically anew each time, with the group of whoever came last;
* by their name: all that carries our prefix, and for a user who is not root, who cannot choose a group, what Avocado,
  tmt and QEMU make.

What a process still uses when all of ours have ended belongs to another run. Not known as ours are files that a daemon
makes on our behalf, files that were removed or only written to, packages that rpm or dpkg installed without apt (both
give what they write to root), and files in a directory that hands down its own group (setgid, as in /var/local).
"""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hugepage_qa.kernel.pools import Pool, read_node_pools, read_pools
from hugepage_qa.kernel.proc_tables import Mount, read_mounts, read_swaps
from hugepage_qa.kernel.tree import DirectoryTree, Tree
from hugepage_qa.machine.run_lock import LOCK, read_holder
from hugepage_qa.machine.saved_state import MachineState
from hugepage_qa.process.marks import GROUP, PREFIX
from hugepage_qa.process.process_table import START_TIME, split_stat

# shmem_show_options() in mm/shmem.c shows these two where they are not what a new mount would get: half of MemTotal,
# which grows when a pool makes the struct pages of its pages anew (adjust_managed_page_count() for those of the boot)
_SHOWN_BY_MEMORY = ("size=", "nr_inodes=")
# systemd mounts there for everybody who logs in, and for services
_MOUNTS_OF_OTHERS = (Path("/run/user"), Path("/run/credentials"))
# only the names in these are looked at: what lies deeper belongs to programs that run on
_DIRECTORIES = ("", "etc", "run", "dev/hugepages", "tmp", "var/tmp", "dev/shm")
_TOOLS = ("avocado", ".avocado", "tmt", "qemu")
_SHARED_DIRECTORIES = ("tmp", "var/tmp", "dev/shm")
_KINDS = {stat.S_IFDIR: "directory", stat.S_IFREG: "file", stat.S_IFLNK: "link"}
_PACKAGE_STATES = ("var/lib/dpkg/status", "var/lib/apt/extended_states")
#: begins of the names of their processes; the second is RHEL's
_EMULATORS = ("qemu-system-", "qemu-kvm")


@dataclass(frozen=True)
class Snapshot:
    """The state of a host: subject -> value, each in words that a person can compare.

    ``values`` is what must stay as it is, ``made`` what looks like made by a run, ``of_a_holder`` what another run that
    has the machine answers for, ``of_others`` all else.
    """

    values: Mapping[str, str]
    made: Mapping[str, str] = field(default_factory=dict)
    of_others: Mapping[str, str] = field(default_factory=dict)
    of_a_holder: Mapping[str, str] = field(default_factory=dict)


def take_snapshot(ignore: Sequence[Path] = (), *, may_be_held: bool = False, root: Path = Path("/")) -> Snapshot:
    """Return the state of the host whose files lie below ``root``; what cannot be read is left out.

    It ``may_be_held`` by another run when ours never has it; else a run that still has it is one that we have left.
    Raises InputError for a kernel file of an unknown form.

    ``ignore`` names paths of the live machine that may come and go, with all below them: the cache and the run
    directory. Where it names any, only emulators that use files below them count: others are not ours.
    """
    tree = DirectoryTree(root)
    ignore = [path.absolute() for path in ignore]
    mounts = _mounts(tree, ignore, root)
    of_others = {point for point in mounts if _is_below(Path(point), _MOUNTS_OF_OTHERS)}
    files = {**_entries(root, ignore), **_packages(root)}
    ours = {subject for subject, (_, is_ours) in files.items() if is_ours}
    used = _used_paths(root) if ours else ""
    is_held = may_be_held and _is_held(root)
    # no process has the file that the kernel swaps to
    swaps = read_swaps(tree) if is_held else ()
    made = {path for path in ours if path not in swaps and not any(f"{path}{end}" in used for end in ("/", "\0"))}
    settings = {
        **replace(MachineState.read(root), mounts=()).values(),
        **_pools(tree),
        **{f"mount {point}": value for point, value in mounts.items() if point not in of_others},
    }
    return Snapshot(
        values={**({} if is_held else settings), **_emulators(tree, ignore)},
        of_a_holder=settings if is_held else {},
        made={subject: value for subject, (value, _) in files.items() if subject in made},
        of_others={
            **{f"mount {point}": mounts[point] for point in of_others},
            **{subject: value for subject, (value, _) in files.items() if subject not in made},
        },
    )


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    """Return one line for each subject that must be as it was and is not, and for each that was made meanwhile."""
    held = before.of_a_holder.keys() | after.of_a_holder.keys()
    subjects = _changed(before.values, after.values) - held | _made(before, after)
    then, now = ({**one.of_others, **one.made, **one.values} for one in (before, after))
    return [f"{name}: {then.get(name, 'absent')} before, {now.get(name, 'absent')} after" for name in sorted(subjects)]


def changes_of_others(before: Snapshot, after: Snapshot) -> list[str]:
    """Return the subjects that changed meanwhile, and that no run need have changed."""
    held = before.of_a_holder.keys() | after.of_a_holder.keys()
    then, now = (
        {
            **one.of_others,
            **one.made,
            **one.of_a_holder,
            **{name: one.values[name] for name in held & one.values.keys()},
        }
        for one in (before, after)
    )
    return sorted(_changed(then, now) - _made(before, after))


def _is_held(root: Path) -> bool:
    """Tell whether a run has the machine."""
    try:
        return read_holder(root) is not None
    except OSError:  # it is root's, and not for us to see
        return True


def _changed(then: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    return {name for name in then.keys() | now.keys() if then.get(name) != now.get(name)}


def _made(before: Snapshot, after: Snapshot) -> set[str]:
    then = {**before.of_others, **before.made}
    return {name for name, value in after.made.items() if then.get(name) != value}


def _pools(tree: Tree) -> dict[str, str]:
    values = _pool_values("", read_pools(tree))
    for node, pools in read_node_pools(tree).items():
        values.update(_pool_values(f"node{node}/", pools))
    return values


def _pool_values(prefix: str, pools: Sequence[Pool]) -> dict[str, str]:
    return {f"{prefix}{pool.name}/{name}": str(value) for pool in pools for name, value in pool.files.items()}


def _mounts(tree: Tree, ignore: Sequence[Path], root: Path) -> dict[str, str]:
    """Return for each mount point the types of what is mounted there, of memory file systems with their options."""
    values: dict[str, str] = {}
    for mount in read_mounts(tree):
        if not _is_below(Path(mount.point), ignore):
            value = _mounted(mount, root)
            values[mount.point] = f"{values[mount.point]}, {value}" if mount.point in values else value
    return values


def _mounted(mount: Mount, root: Path) -> str:
    if mount.type == "hugetlbfs":
        return f"{mount.type} {mount.options}"
    if mount.type != "tmpfs":
        return mount.type
    options = [option for option in mount.options.split(",") if not option.startswith(_SHOWN_BY_MEMORY)]
    try:
        limits = os.statvfs(root / mount.point.lstrip("/"))
    except OSError:  # it is gone, or nobody may look there
        return f"{mount.type} {','.join(options)}"
    return f"{mount.type} {','.join(options)}, {limits.f_blocks * limits.f_frsize} bytes, {limits.f_files} files"


def _emulators(tree: Tree, ours: Sequence[Path]) -> dict[str, str]:
    """Return the QEMU processes; the start time tells two processes with the same number apart."""
    values = {}
    for pid in (name for name in tree.names("proc") if name.isascii() and name.isdigit()):
        name = (tree.read(f"proc/{pid}/comm") or "").strip()
        fields = split_stat(tree.read(f"proc/{pid}/stat") or "")
        arguments = tree.read(f"proc/{pid}/cmdline") or ""
        is_ours = not ours or any(f"{path}/" in arguments for path in ours)
        if name.startswith(_EMULATORS) and is_ours and len(fields) > START_TIME:
            values[f"process {pid} {name}"] = f"running since tick {fields[START_TIME]}"
    return values


def _entries(root: Path, ignore: Sequence[Path]) -> dict[str, tuple[str, bool]]:
    """Return the kind of each entry of the directories that programs litter, and whether it looks like ours."""
    values = {}
    for directory in _DIRECTORIES:
        for name, status in _list_directory(root / directory):
            path = Path("/") / directory / name
            # a directory that had to be made to hold an ignored one is no litter either
            if not _is_below(path, ignore) and not any(other.is_relative_to(path) for other in ignore):
                kind = _KINDS.get(stat.S_IFMT(status.st_mode), "special file")
                values[str(path)] = (kind, _looks_like_ours(directory, name, status))
    return values


def _looks_like_ours(directory: str, name: str, status: os.stat_result) -> bool:
    if f"{directory}/{name}" == LOCK:  # that of whoever changes the machine now; one that is held by nobody is free
        return False
    if _is_of_a_run(status):
        return True
    is_of_tools = os.getuid() != 0 and directory in _SHARED_DIRECTORIES and name.startswith(_TOOLS)
    return status.st_uid == os.getuid() and (is_of_tools or name.startswith(PREFIX))


def _is_of_a_run(status: os.stat_result) -> bool:
    """Whether a process of a run made the file: its group alone is also that of Debian's user _apt."""
    return status.st_gid == GROUP and status.st_uid in (os.getuid(), GROUP)


def _used_paths(root: Path) -> str:
    """Return what the processes have in their environments, arguments and working directories, each ended by NUL."""
    found = []
    for process in root.glob("proc/[0-9]*"):
        try:
            texts = [(process / name).read_bytes() for name in ("environ", "cmdline")]
            found += [os.fsdecode(text) for text in texts] + [str((process / "cwd").readlink())]
        except OSError:  # it has ended, or belongs to somebody else
            continue
    return "\0".join((*found, ""))


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


def _packages(root: Path) -> dict[str, tuple[str, bool]]:
    """Return what dpkg and apt know of packages, and whether a process with our group wrote it."""
    values = {}
    for name in _PACKAGE_STATES:
        try:
            status = (root / name).lstat()
        except OSError:
            continue
        values[f"/{name}"] = (f"{status.st_size} bytes of {status.st_mtime_ns} ns", _is_of_a_run(status))
    return values


def _is_below(path: Path, directories: Sequence[Path]) -> bool:
    return any(path.is_relative_to(directory) for directory in directories)
