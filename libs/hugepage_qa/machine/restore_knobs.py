"""Knobs are put back to what they were, in the order that the kernel needs."""

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.machine.knobs import Kind, Knob, find_knobs, knob_name
from hugepage_qa.machine.repair import NOTHING, Repair

_ATTEMPTS = 5
_PAUSE_SECONDS = 0.5

# Documentation/admin-guide/sysctl/vm.rst: free the page cache, dentries and inodes; then make whole blocks of the rest
_FREE_MEMORY = {"proc/sys/vm/drop_caches": "3", "proc/sys/vm/compact_memory": "1"}


def restore_knobs(wanted: Mapping[str, str], root: Path = Path("/")) -> list[Repair]:
    """Put the knobs back to the values in ``wanted`` (path to value) and return those that were not as wanted.

    Only what differs is written: a write of the same value is a change, too (after one to min_free_kbytes the kernel
    stops adapting it). The order:

    1. nr_overcommit_hugepages: no surplus pages come while the pools change
    2. sysctls: hugetlb_optimize_vmemmap and movable_gigantic_pages decide how pools grow
    3. pools that are too large: their memory serves the others
    4. pools that are too small, the largest pages first: these need the longest unbroken memory
    5. THP: switched on before, it would take that memory
    6. min_free_kbytes: switching THP on raises it, and nothing lowers it (set_recommended_min_free_kbytes())

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
    for knob in sorted(wanted, key=lambda knob: _order(knob, knob in left and _must_grow(knob, wanted[knob], root))):
        if knob.read(tree) != wanted[knob]:
            with suppress(OSError):  # seen when it is read again
                knob.write(root, wanted[knob])


def _order(knob: Knob, grows: bool) -> tuple[Kind, bool, int]:
    return knob.kind, grows, -knob.size


def _must_grow(knob: Knob, wanted: str, root: Path) -> bool:
    found = knob.read(DirectoryTree(root))
    return knob.kind is Kind.POOL and found is not None and int(found) < int(wanted)


def _free_memory(root: Path) -> None:
    for path, value in _FREE_MEMORY.items():
        with suppress(OSError):  # a kernel without compaction
            Knob(Kind.SYSCTL, path).write(root, value)
