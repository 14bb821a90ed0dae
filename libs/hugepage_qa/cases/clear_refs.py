"""What was used, and what was written (soft-dirty), since /proc/PID/clear_refs was written (proc_pid_clear_refs(5))."""

from collections.abc import Callable
from typing import TypeVar

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import SOFT_DIRTY, Memory
from hugepage_qa.cases.thp_policy import huge_pages
from hugepage_qa.kernel.counters import read_vmstat
from hugepage_qa.kernel.smaps import read_smaps
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.version import KernelVersion

#: what is written, as fs/proc/task_mmu.c names it: all memory becomes unused, private memory, that of files, all is
#: soft-dirty no more, and the peak of what is resident (CLEAR_REFS_MM_HIWATER_RSS) is what there is
CLEAR_REFS_ALL, CLEAR_REFS_ANON, CLEAR_REFS_MAPPED, CLEAR_REFS_SOFT_DIRTY, CLEAR_REFS_PEAK = "1", "2", "3", "4", "5"
#: VmFlags of /proc/PID/smaps: a mapping is soft-dirty as a whole
_SOFT_DIRTY = "sd"
#: an entry of migration tells whether its page was used (2e3468778dbe)
_MIGRATION_KEEPS_USE = KernelVersion(6, 1)
_ATTEMPTS = 3
Made = TypeVar("Made")
_L1TF = "sys/devices/system/cpu/vulnerabilities/l1tf"


def clear_refs(live: Live, memory: Memory, what: str = CLEAR_REFS_SOFT_DIRTY) -> None:
    """Write ``what`` to the file of the process that has ``memory``. Raises Refused."""
    live.host.write(f"proc/{memory.actor.pid}/clear_refs", what)


def need_soft_dirty(live: Live, memory: Memory) -> None:
    """Raise CannotRun where the kernel does not tell what was written."""
    if not has_soft_dirty(live, memory):
        raise CannotRun("this kernel has no CONFIG_MEM_SOFT_DIRTY")


def has_soft_dirty(live: Live, memory: Memory) -> bool:
    """Tell whether the kernel tells what was written."""
    # of every new mapping, and the process has others than that of ``memory``, which may be what is wrong
    mappings = read_smaps(ObservedTree(live.host), memory.actor.pid) or ()
    return any(_SOFT_DIRTY in found.flags for found in mappings)


def soft_dirty_pages(memory: Memory) -> list[int]:
    """Return the numbers of the base pages of ``memory`` that were written since clear_refs was."""
    return [number for number, entry in enumerate(memory.whole_pagemap()) if entry & SOFT_DIRTY]


def huge_pages_not_dirty(live: Live) -> Memory:
    """Return two filled huge pages that were not written since clear_refs was. Raises as ``huge_pages`` does."""
    memory = huge_pages(live, 2)
    need_soft_dirty(live, memory)
    clear_refs(live, memory)
    live.expect("soft-dirty pages before", [], soft_dirty_pages(memory))
    return memory


def pages_moved(live: Live) -> int:
    """Return how many base pages were moved since the boot, whoever has them: those that are dirty are soft-dirty then.

    remove_migration_pte() of mm/migrate.c; pte_mkdirty() of x86 and others.
    """
    return read_vmstat(ObservedTree(live.host)).get("pgmigrate_success", 0)


def while_nothing_moves(live: Live, attempt: Callable[[], tuple[Made, bool]]) -> Made:
    """Return what ``attempt`` makes, once it tells that all is as it should be, or no page was moved.

    What is moved is in other frames then, and soft-dirty if it is dirty. Raises CannotRun where compaction moves pages
    again and again.
    """
    for _attempt in range(_ATTEMPTS):
        moved = pages_moved(live)
        made, is_right = attempt()
        if is_right or pages_moved(live) == moved:
            return made
    raise CannotRun("compaction moves base pages again and again: they are in other frames then, and soft-dirty")


def uses_what_is_protected(live: Live) -> bool:
    """Tell whether mprotect(2) marks pages as used, as pmd_modify() and pte_modify() of powerpc do."""
    return live.host.architecture.startswith("ppc")


def keeps_use_when_split(live: Live) -> bool:
    """Tell whether base pages are used that a huge page was split into, which was used: migration_entry_supports_ad().

    Where page table entries are inverted for a fault of the processor, an entry of migration has no room for the bit
    (arch_max_swapfile_size() of x86).
    """
    is_inverted = "PTE Inversion" in (live.host.read(_L1TF) or "")
    return live.kernel_version >= _MIGRATION_KEEPS_USE and not is_inverted
