"""How much of memory may be committed: vm.overcommit_memory, as a case sets it."""

from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.sizes import MIB

OVERCOMMIT_MEMORY = "proc/sys/vm/overcommit_memory"
#: nothing beyond CommitLimit
NEVER = "2"
#: bytes that programs may ask for meanwhile
_ROOM = 64 * MIB


def set_overcommit_memory(live: Live, mode: str, more: int = 0) -> None:
    """Set vm.overcommit_memory until the case ends.

    Raises CannotRun where all that runs has committed so much that nobody would find memory with ``NEVER``, the case
    ``more`` bytes.
    """
    if mode == NEVER and _left(live) < more + _ROOM:
        raise CannotRun("with vm.overcommit_memory=2 the programs of this machine would find no memory")
    live.set_knob(OVERCOMMIT_MEMORY, mode)


def _left(live: Live) -> int:
    meminfo = read_meminfo(live.host)
    return meminfo["CommitLimit"] - meminfo["Committed_AS"]
