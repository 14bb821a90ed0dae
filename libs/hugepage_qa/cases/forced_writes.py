"""Debuggers, which write what the owner of memory may not write: /proc/PID/mem and ptrace(2) with FOLL_FORCE."""

import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.thp_policy import base_pages
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.process.actor import Actor, Refused

#: what ``forced_write`` stores
FORCED_VALUE: Final = 8
# include/uapi/linux/ptrace.h, include/uapi/linux/wait.h
_PTRACE_POKEDATA, _PTRACE_ATTACH, _PTRACE_DETACH, _WALL = 5, 16, 17, 0x40000000
#: to attach, to open the memory, to write it
_FORBIDDEN = (errno.EPERM, errno.EACCES, errno.EIO)


@contextmanager
def debugging(live: Live, process: int) -> Iterator[tuple[Actor, int]]:
    """Have a debugger stop ``process``, but not what other threads it has; yield it, and its descriptor of the memory.

    With proc_mem.force_override=ptrace nobody else may write what is read-only, nor another thread of it (since Linux
    6.12).
    """
    debugger = live.actor()
    debugger.call("ptrace", _PTRACE_ATTACH, process, 0, 0)
    debugger.call("wait4", process, 0, _WALL, 0)
    try:
        yield debugger, live.open(debugger, f"/proc/{process}/mem", os.O_RDWR)
    finally:
        debugger.call("ptrace", _PTRACE_DETACH, process, 0, 0)
        debugger.end()


def forced_write(live: Live, memory: Memory, offset: int = 0) -> int:
    """Have a debugger store FORCED_VALUE in a word of ``memory``; return how many bytes it wrote. Raises Refused."""
    with debugging(live, memory.actor.pid) as (debugger, file):
        word = live.host.uapi.pack("Q", FORCED_VALUE)
        return debugger.call("pwrite64", file, word, WORD, memory.address + offset)


def poked(live: Live, memory: Memory, offset: int = 0) -> int:
    """Have a debugger store FORCED_VALUE as ``forced_write`` does, by ptrace(2) PTRACE_POKEDATA. Raises Refused."""
    with debugging(live, memory.actor.pid) as (debugger, _file):
        debugger.call("ptrace", _PTRACE_POKEDATA, memory.actor.pid, memory.address + offset, FORCED_VALUE)
        return WORD


def need_forced_writes(live: Live) -> None:
    """Raise CannotRun where a debugger may not write base pages that may only be read."""
    ordinary = base_pages(live)
    ordinary.protect(mmap.PROT_READ)
    try:
        forced_write(live, ordinary)
    except Refused as refusal:
        if refusal.errno not in _FORBIDDEN:
            raise
        raise CannotRun(
            "proc_mem.force_override= or its like forbids debuggers to write what is read-only"
        ) from refusal
