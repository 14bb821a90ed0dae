"""A process that was killed and is still there with its memory, as one is that waits for something on its way out.

A debugger that asked for it (PTRACE_O_TRACEEXIT) has it stop before it gives its memory back: ptrace(2).
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from hugepage_qa.cases.live import Live
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.process.actor import Actor, Refused

# include/uapi/linux/ptrace.h, include/uapi/linux/wait.h
_PTRACE_SEIZE, _PTRACE_O_TRACEEXIT, _PTRACE_EVENT_EXIT, _WALL = 0x4206, 1 << 6, 6, 0x40000000
_STOPPED: Final = 0x7F


@contextmanager
def on_its_way_out(live: Live, process: int) -> Iterator[Actor]:
    """Kill ``process``, and have it stay with all its memory meanwhile; yield who holds it. Raises CannotRun.

    When that one lets go it ends.
    """
    holder = live.actor()
    try:
        holder.call("ptrace", _PTRACE_SEIZE, process, 0, _PTRACE_O_TRACEEXIT)
    except Refused as refusal:
        raise CannotRun(f"no process may debug another one here: {refusal.strerror}") from refusal
    try:
        holder.call("kill", process, signal.SIGKILL)
        _process, (status,) = holder.call_with_buffers("wait4", process, bytes(4), _WALL, 0)
        expected = _PTRACE_EVENT_EXIT << 16 | signal.SIGTRAP << 8 | _STOPPED
        live.expect("wait status of who was killed", expected, live.host.uapi.unpack("I", status)[0])
        yield holder
    finally:
        # whom it holds goes on with its end then
        holder.end()
