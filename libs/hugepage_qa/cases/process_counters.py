"""The counters of a process that /proc/PID/status shows, how exact they are, as VmHWM and VmSwap, and its faults."""

import re
from typing import NamedTuple

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.kernel.process_status import ProcessStatus, read_process_status
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.process.actor import Actor
from hugepage_qa.process.process_table import MAJOR_FAULTS, MINOR_FAULTS, split_stat
from hugepage_qa.version import KernelVersion

_DIRECTORY = "sys/devices/system/cpu"
_CPU = re.compile(r"cpu\d+")
#: base pages that a thread keeps for itself before CPUs do (TASK_RSS_EVENTS_THRESH in mm/memory.c)
_OF_A_THREAD = 64
#: base pages that a CPU keeps since Linux 6.2, or two for each CPU if these are more (compute_batch_value())
_OF_A_CPU = 32
_OF_CPUS = KernelVersion(6, 2)
#: what CPUs keep is added up for status and statm, but not for VmHWM (get_mm_counter_sum(), also in older series)
_ADDED_UP = KernelVersion(6, 17)


def process_status(live: Live, actor: Actor) -> ProcessStatus:
    """Return /proc/PID/status of ``actor``. Raises Failed where there is none."""
    status = read_process_status(ObservedTree(live.host), actor.pid)
    return status or live.fail(f"/proc/{actor.pid}/status", "a process", "none")


class Faults(NamedTuple):
    """The faults of a process and its threads that had to wait for a disk or swap, and the others."""

    major: int
    minor: int


def faults(live: Live, actor: Actor) -> Faults:
    """Return how many faults ``actor`` has had so far, without its children. Raises Failed where there is no process.

    Source: Documentation/filesystems/proc.rst maj_flt, min_flt.
    """
    path = f"proc/{actor.pid}/stat"
    fields = split_stat(ObservedTree(live.host).read(path) or "")
    if not fields:
        live.fail(f"/{path}", "a process", "none")
    return Faults(int(fields[MAJOR_FAULTS]), int(fields[MINOR_FAULTS]))


def may_lack(live: Live) -> int:
    """Return the bytes by which a counter may be off, which threads or CPUs have not added up yet.

    Source: mm/memory.c sync_mm_rss(); lib/percpu_counter.c, for counters of a process since f1a7941243c1.
    """
    if live.kernel_version < _OF_CPUS:
        return _OF_A_THREAD * live.base_page
    cpus = sum(bool(_CPU.fullmatch(name)) for name in live.host.names(_DIRECTORY))
    return cpus * max(_OF_A_CPU, 2 * cpus) * live.base_page


def tells_resident(live: Live, unit: int) -> bool:
    """Tell whether status and statm tell what is resident as exactly as in ``unit`` bytes, which is noted if not."""
    lack = 0 if live.kernel_version >= _ADDED_UP else may_lack(live)
    if lack >= unit // 2:
        _note_untold(live, "what is resident", lack)
    return lack < unit // 2


def anonymous_memory(live: Live, memory: Memory) -> int:
    """Return the bytes of anonymous memory (RssAnon) of the process that has ``memory``, as exact as ``may_lack``."""
    return process_status(live, memory.actor).sizes["RssAnon"]


def expect_process_swap(live: Live, memory: Memory, swap: int) -> None:
    """Expect VmSwap of the process that has ``memory`` to be ``swap`` bytes, in halves of a huge page or of all.

    Where it may be off by more with these CPUs it is not looked at, which is noted.
    """
    lack = may_lack(live)
    unit = next((unit for unit in (memory.size // 2, memory.length // 2) if lack < unit // 2), None)
    if unit:
        found = process_status(live, memory.actor).sizes["VmSwap"]
        live.expect(f"VmSwap, in {unit >> 10} KiB", round(swap / unit), round(found / unit))
    else:
        _note_untold(live, "VmSwap", lack)


def _note_untold(live: Live, what: str, lack: int) -> None:
    untold = f"{what} may be off by {lack >> 10} KiB with these CPUs: it was not looked at"
    if untold not in live.notes:
        live.notes.append(untold)
