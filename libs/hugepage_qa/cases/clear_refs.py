"""What was used, and what was written (soft-dirty), since /proc/PID/clear_refs was written (proc_pid_clear_refs(5))."""

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import SOFT_DIRTY, Memory
from hugepage_qa.kernel.smaps import read_smaps
from hugepage_qa.machine.host import CannotRun, ObservedTree

#: what is written, as fs/proc/task_mmu.c names it: all memory becomes unused, private memory, that of files, all is
#: soft-dirty no more, and the peak of what is resident (CLEAR_REFS_MM_HIWATER_RSS) is what there is
CLEAR_REFS_ALL, CLEAR_REFS_ANON, CLEAR_REFS_MAPPED, CLEAR_REFS_SOFT_DIRTY, CLEAR_REFS_PEAK = "1", "2", "3", "4", "5"
#: VmFlags of /proc/PID/smaps: a mapping is soft-dirty as a whole
_SOFT_DIRTY = "sd"


def clear_refs(live: Live, memory: Memory, what: str = CLEAR_REFS_SOFT_DIRTY) -> None:
    """Write ``what`` to the file of the process that has ``memory``. Raises Refused."""
    live.host.write(f"proc/{memory.actor.pid}/clear_refs", what)


def need_soft_dirty(live: Live, memory: Memory) -> None:
    """Raise CannotRun where the kernel does not tell what was written."""
    # of every new mapping, and the process has others than that of ``memory``, which may be what is wrong
    mappings = read_smaps(ObservedTree(live.host), memory.actor.pid) or ()
    if not any(_SOFT_DIRTY in found.flags for found in mappings):
        raise CannotRun("this kernel has no CONFIG_MEM_SOFT_DIRTY")


def soft_dirty_pages(memory: Memory) -> list[int]:
    """Return the numbers of the base pages of ``memory`` that were written since clear_refs was."""
    return [number for number, entry in enumerate(memory.whole_pagemap()) if entry & SOFT_DIRTY]
