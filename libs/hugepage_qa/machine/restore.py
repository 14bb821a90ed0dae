"""Put a machine back to what its journal says, knobs in the order that the kernel needs, and tell what that took.

Kernel arguments of the entry that boots next are put back through the boot loader.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.proc_tables import Mount, huge_policy, read_mounts
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.machine.boot_loader.loader import BootLoader
from hugepage_qa.machine.cgroups import read_hugetlb_control, remove_hierarchies, write_hugetlb_control
from hugepage_qa.machine.journal import Journal, read_boot_id
from hugepage_qa.machine.kept_file import NOTHING, Repair, restore_file, unrestored
from hugepage_qa.machine.knobs import Kind, Knob, find_knobs, knob_name
from hugepage_qa.machine.leftovers import (
    end_processes,
    remove_cgroups,
    remove_directories,
    remove_mounts,
    remove_segments,
)
from hugepage_qa.machine.saved_state import KeptArguments, Record, describe_control
from hugepage_qa.machine.swap_file import remove_swap_files
from hugepage_qa.oracle.boot.unknown_parameters import PARAMETERS

#: from the root directory of a machine to its boot loader; raises InputError when it is not known
FindBootLoader = Callable[[Path], BootLoader]


def restore_arguments(kept: KeptArguments, find_boot_loader: FindBootLoader, root: Path = Path("/")) -> list[Repair]:
    """Remove what was not there, add what is missing, and return what that took; empty when nothing had changed.

    Raises InputError when the boot loader is not the one that was kept, or does not do as told.
    """
    loader = find_boot_loader(root)
    if loader.name != kept.loader:
        raise InputError(f"boot loader {loader.name}: expected {kept.loader}, whose kernel arguments were kept")
    before = loader.arguments()
    if before == kept.arguments:
        return []
    if added := _without(before, kept.arguments):
        loader.remove(added)
    if missing := _without(kept.arguments, loader.arguments()):
        loader.add(missing)
    after = loader.arguments()
    return [Repair(f"kernel arguments ({loader.name})", *map(" ".join, (kept.arguments, before, after)))]


def still_running(kept: KeptArguments, root: Path) -> tuple[str, ...]:
    """Return the huge page words that this boot was started with and that the kept arguments do not have."""
    words = (DirectoryTree(root).read("proc/cmdline") or "").split()
    return tuple(word for word in _without(words, kept.arguments) if word.partition("=")[0] in PARAMETERS)


def _without(words: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return ``words`` less ``others``, each as often as it is too many; the first ones stay."""
    spare = Counter(others)
    left = []
    for word in words:
        if spare[word]:
            spare[word] -= 1
        else:
            left.append(word)
    return left


_ATTEMPTS = 5
_PAUSE_SECONDS = 0.5

# Documentation/admin-guide/sysctl/vm.rst: free the page cache, dentries and inodes; then make whole blocks of the rest
_FREE_MEMORY = {"proc/sys/vm/drop_caches": "3", "proc/sys/vm/compact_memory": "1"}


def restore_knobs(wanted: Mapping[str, str], root: Path) -> list[Repair]:
    """Put the knobs back to the values in ``wanted`` (path to value) and return those that were not as wanted.

    Only what differs is written: a write of the same value is a change, too (after one to min_free_kbytes the kernel
    stops adapting it). The order:

    1. nr_overcommit_hugepages: no surplus pages come while the pools change
    2. sysctls: hugetlb_optimize_vmemmap and movable_gigantic_pages decide how pools grow
    3. pools that are too large: their memory serves the others
    4. pools that are too small, the largest pages first: these need the longest unbroken memory
    5. THP: switched on before, it would take that memory
    6. min_free_kbytes: switching THP on or off computes it anew (set_recommended_min_free_kbytes())

    Values can forbid one another (shmem_enabled=force and hugepages-64kB/shmem_enabled=inherit) and memory can be
    fragmented, so what was refused is tried again, after freeing and compacting memory.
    """
    knobs = {knob.path: knob for knob in find_knobs(root)}
    known = {knob: value for path, value in wanted.items() if (knob := knobs.get(path))}
    gone = [Repair(knob_name(path), value, NOTHING, NOTHING) for path, value in wanted.items() if path not in knobs]
    before = _deviating(known, root)
    left = before
    for attempt in range(_ATTEMPTS):
        if not left:
            break
        if attempt:
            time.sleep(_PAUSE_SECONDS)
        if attempt and any(knob.kind is Kind.POOL for knob in left):
            _free_memory(root)
        _write(left, known, root)
        left = _deviating(known, root)
    # what was put back may have moved another knob that was as wanted
    return gone + [
        Repair(knob.name, known[knob], before.get(knob, known[knob]), left.get(knob, known[knob]))
        for knob in known
        if knob in before or knob in left
    ]


def _deviating(wanted: Mapping[Knob, str], root: Path) -> dict[Knob, str]:
    """Return the knobs that are not as wanted, with their values."""
    tree = DirectoryTree(root)
    found = {knob: knob.read(tree) for knob in wanted}
    return {
        knob: NOTHING if found[knob] is None else str(found[knob]) for knob in wanted if found[knob] != wanted[knob]
    }


def _write(left: Iterable[Knob], wanted: Mapping[Knob, str], root: Path) -> None:
    tree = DirectoryTree(root)
    # from all that are wanted: writing one may move another
    grow = {knob for knob in left if knob in wanted and _must_grow(knob, wanted[knob], root)}
    for knob in sorted(wanted, key=lambda knob: (knob.kind, knob in grow, -knob.size)):
        if knob.read(tree) != wanted[knob]:
            with suppress(OSError):  # seen when it is read again
                knob.write(root, wanted[knob])


def _must_grow(knob: Knob, wanted: str, root: Path) -> bool:
    found = knob.read(DirectoryTree(root))
    return knob.kind is Kind.POOL and found is not None and int(found) < int(wanted)


def _free_memory(root: Path) -> None:
    for path, value in _FREE_MEMORY.items():
        with suppress(OSError):  # a kernel without compaction
            Knob(Kind.SYSCTL, path).write(root, value)


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
