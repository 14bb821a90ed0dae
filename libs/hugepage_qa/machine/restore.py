"""Put a machine back to what its journal says, and tell what that took and what could not be done."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hugepage_qa.kernel.mounts import Mount, huge_policy, read_mounts
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.machine.cgroups import read_hugetlb_control, write_hugetlb_control
from hugepage_qa.machine.hierarchies import remove_hierarchies
from hugepage_qa.machine.journal import Journal, read_boot_id
from hugepage_qa.machine.kept_file import restore_file
from hugepage_qa.machine.kernel_arguments import FindBootLoader, restore_arguments, still_running
from hugepage_qa.machine.leftovers import (
    end_processes,
    remove_cgroups,
    remove_directories,
    remove_mounts,
    remove_segments,
)
from hugepage_qa.machine.record import Record
from hugepage_qa.machine.repair import NOTHING, Repair, unrestored
from hugepage_qa.machine.restore_knobs import restore_knobs
from hugepage_qa.machine.state import describe_control
from hugepage_qa.machine.swap import remove_swap_files


@dataclass(frozen=True)
class Restoration:
    """What putting back took: a repair for each subject that was not as saved, and ``notices`` for people."""

    repairs: tuple[Repair, ...]
    notices: tuple[str, ...]

    @property
    def unrestored(self) -> tuple[Repair, ...]:
        """What is still not as saved."""
        return unrestored(self.repairs)


def restore(journal: Journal, record: Record, find_boot_loader: FindBootLoader, root: Path = Path("/")) -> Restoration:
    """Put the machine below ``root`` back to ``record``, and remove the journal when all is back.

    After a reboot only what it does not reset is put back: files, kernel arguments, directories.
    What fails is among the repairs and keeps the rest from nothing. Raises InputError when the journal cannot go.
    """
    repairs = (
        *put_back(record, find_boot_loader, root),
        *_attempt("directories", partial(remove_directories, record.scratch, root)),
    )
    restoration = Restoration(repairs, tuple(_notices(record, root)))
    if not restoration.unrestored:
        journal.remove()
    return restoration


def put_back(record: Record, find_boot_loader: FindBootLoader, root: Path = Path("/")) -> tuple[Repair, ...]:
    """Put all back but the directories of the run, in which its results may be, and leave the journal."""
    steps = [
        *(_run_time_steps(record, root) if record.boot_id == read_boot_id(root) else ()),
        # a reboot leaves the files
        ("swap", partial(remove_swap_files, root)),
        # before its files: the boot loader's tool reads them
        *_argument_steps(record, find_boot_loader, root),
        *((f"file {file.path}", partial(restore_file, file)) for file in record.files),
    ]
    return tuple(repair for name, step in steps for repair in _attempt(name, step))


_Step = tuple[str, Callable[[], list[Repair]]]


def _run_time_steps(record: Record, root: Path) -> Iterator[_Step]:
    state = record.state
    # pages come free only when nothing holds them any more: knobs are last
    yield "processes", partial(end_processes, record.run_id)
    # a hierarchy that a run has mounted is found by its mount
    yield "cgroups", partial(remove_cgroups, state.cgroups, root)
    yield "mounts", partial(remove_mounts, state.mounts, record.scratch, root)
    yield "mounts", partial(_changed_mounts, state.mounts, root)
    yield "hierarchies", partial(remove_hierarchies, state.hierarchies, root)
    yield "controllers", partial(_restore_controllers, state.hugetlb_control, root)
    yield "shared memory", partial(remove_segments, state.segments, root)
    yield "knobs", partial(restore_knobs, state.knobs, root)


def _argument_steps(record: Record, find_boot_loader: FindBootLoader, root: Path) -> Iterator[_Step]:
    kept = record.arguments
    if kept is not None:
        yield "kernel arguments", partial(restore_arguments, kept, find_boot_loader, root)


def _attempt(name: str, step: Callable[[], list[Repair]]) -> list[Repair]:
    """Run one step; whatever is wrong with it must not keep the others from being done."""
    try:
        return step()
    except Exception as error:
        return [Repair(name, "as saved", "not known", f"{type(error).__name__}: {error}")]


def _changed_mounts(saved: Iterable[Mount], root: Path) -> list[Repair]:
    """Return the mounts that hold huge pages and are not as saved: what is not ours cannot be mounted again.

    A tmpfs may be gone: of those that systemd mounts for services and logins some always are.
    """
    now = {mount.point: mount for mount in read_mounts(DirectoryTree(root))}
    repairs = []
    for mount in {mount.point: mount for mount in saved}.values():
        found = now.get(mount.point)
        if mount.type == "hugetlbfs" or (mount.type == "tmpfs" and found is not None):
            wanted, left = _huge_options(mount), _huge_options(found) if found else NOTHING
            repairs += [Repair(f"mount {mount.point}", wanted, left, left)] if left != wanted else []
    return repairs


def _huge_options(mount: Mount) -> str:
    """Return what of a mount is about huge pages.

    Other options of a tmpfs change by themselves: it shows its number of inodes when that is not the default for the
    memory of the machine, which grows when vmemmap is optimized (free_vmemmap_page() in mm/hugetlb_vmemmap.c).
    """
    return f"tmpfs huge={huge_policy(mount)}" if mount.type == "tmpfs" else f"{mount.type} {mount.options}"


def _restore_controllers(saved: Mapping[str, bool], root: Path) -> list[Repair]:
    before = read_hugetlb_control(root)
    changed = [point for point in saved if point in before and before[point] != saved[point]]
    for point in changed:
        write_hugetlb_control(point, saved[point], root)
    after = read_hugetlb_control(root)
    return [
        Repair(f"hugetlb in {point}", *(describe_control(values[point]) for values in (saved, before, after)))
        for point in changed
    ]


def _notices(record: Record, root: Path) -> Iterator[str]:
    if record.boot_id != read_boot_id(root):
        yield "the machine was booted since: its pools and knobs are those of the boot"
    if record.arguments is not None and (words := still_running(record.arguments, root)):
        yield f"this boot was started with {' '.join(words)}: the next one will not be"
