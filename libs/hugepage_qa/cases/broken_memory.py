"""Memory that is said to be broken: madvise(2) MADV_SOFT_OFFLINE and MADV_HWPOISON, and what is out of use by it."""

import errno
import signal

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.process.actor import Fault

# include/uapi/asm-generic/siginfo.h
_BUS_MCEERR_AR = 4


def break_page(live: Live, memory: Memory, offset: int, advice: int) -> None:
    """Tell the kernel that a base page at ``offset`` of ``memory`` is broken, or will be. Raises CannotRun, OSError."""
    try:
        memory.actor.call("madvise", memory.address + offset, live.base_page, advice)
    except OSError as error:
        if error.errno != errno.EINVAL or "HardwareCorrupted" in read_meminfo(live.host):
            raise
        raise CannotRun("this kernel has no CONFIG_MEMORY_FAILURE") from error


def expect_broken(live: Live, memory: Memory, offset: int = 0) -> None:
    """Expect a read at ``offset`` to end in the signal that broken memory has."""
    try:
        memory.actor.read(memory.address + offset)
    except Fault as fault:
        live.expect("signal and code", (signal.SIGBUS, _BUS_MCEERR_AR), (fault.signal, fault.code))
    else:
        live.expect("signal and code", (signal.SIGBUS, _BUS_MCEERR_AR), None)


def out_of_use(live: Live) -> int:
    """Return the base pages that are out of use."""
    return read_meminfo(ObservedTree(live.host)).get("HardwareCorrupted", 0) // live.base_page
