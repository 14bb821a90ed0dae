"""How much of memory may be committed: vm.overcommit_memory, as a case finds it or sets it."""

from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.sizes import MIB

_OVERCOMMIT_MEMORY = "proc/sys/vm/overcommit_memory"
#: nothing that is larger than memory and swap
GUESSED = "0"
#: nothing beyond CommitLimit
NEVER = "2"
#: bytes that programs may ask for meanwhile
_ROOM = 64 * MIB


def ignores_noreserve(live: Live) -> bool:
    """Tell whether MAP_NORESERVE counts for nothing: all that may be written is committed (do_mmap() in mm/mmap.c)."""
    return (live.host.read(_OVERCOMMIT_MEMORY) or "").strip() == NEVER


def need_overcommit(live: Live) -> None:
    """Raise CannotRun where nothing may be committed beyond CommitLimit."""
    if ignores_noreserve(live):
        raise CannotRun(f"vm.overcommit_memory is {NEVER}: with most memory in a pool nobody could commit any")


def need_noreserve(live: Live) -> None:
    """Raise CannotRun where ``ignores_noreserve`` says so."""
    if ignores_noreserve(live):
        raise CannotRun(f"vm.overcommit_memory is {NEVER}: MAP_NORESERVE is ignored")


def need_commit(live: Live, length: int) -> None:
    """Raise CannotRun where ``length`` bytes that may be written are more than can be committed.

    That is counted for all memory only where ``ignores_noreserve`` says so (__vm_enough_memory() in mm/util.c).
    """
    if ignores_noreserve(live) and _left(live) < length + _ROOM:
        raise CannotRun(f"vm.overcommit_memory is {NEVER}, and less than {length >> 20} MiB can be committed")


def set_overcommit_memory(live: Live, mode: str, more: int = 0) -> None:
    """Set vm.overcommit_memory until the case ends.

    Raises CannotRun where all that runs has committed so much that nobody would find memory with ``NEVER``, the case
    ``more`` bytes.
    """
    if mode == NEVER and _left(live) < more + _ROOM:
        raise CannotRun("with vm.overcommit_memory=2 the programs of this machine would find no memory")
    live.set_knob(_OVERCOMMIT_MEMORY, mode)


def _left(live: Live) -> int:
    meminfo = read_meminfo(live.host)
    return meminfo["CommitLimit"] - meminfo["Committed_AS"]
