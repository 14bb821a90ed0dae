"""The processes that a run has started: found by the run id in their environment, and ended."""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from hugepage_qa.machine.marks import RUN

# a process that sits in the kernel, giving back gigantic pages for example, takes its time
_DEADLINE_SECONDS = 30.0
_PAUSE_SECONDS = 0.01

# fields of proc_pid_stat(5), counted from the one after the name
_STATE, _PARENT = 0, 1
_DEAD = ("Z", "X")


def find_processes(run_id: str) -> dict[int, str]:
    """Return number and name of the processes that carry ``run_id``, without us and our ancestors.

    The kernel shows the environment that a program was started with: a child that was forked, and has not started a
    program since, is not found unless its parent carried the run id already.
    """
    spared = set(_ancestors(os.getpid()))
    numbers = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return {pid: _name(pid) for pid in numbers if pid not in spared and belongs_to(run_id, pid)}


def belongs_to(run_id: str, pid: int) -> bool:
    """Tell whether the process ``pid`` carries ``run_id``."""
    return f"{RUN}={run_id}".encode() in _environment(pid)


def kill_and_wait(pids: Iterable[int], is_ours: Callable[[int], bool]) -> set[int]:
    """Kill those of ``pids`` that are ours, wait until they no longer are, and return those that stay.

    A process that has given back its memory has no environment, and is in no cgroup.
    """
    ours = set(filter(is_ours, pids))
    for pid in ours:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while (ours := set(filter(is_ours, ours))) and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)
    return ours


def has_ended(pid: int) -> bool:
    """Tell whether the process ``pid`` is gone, or only waits for its parent to take notice."""
    fields = _stat(pid)
    return not fields or fields[_STATE] in _DEAD


def _ancestors(pid: int) -> Iterator[int]:
    """Yield ``pid``, its parent, and so on."""
    while pid > 0:
        yield pid
        fields = _stat(pid)
        pid = int(fields[_PARENT]) if fields else 0


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat after the name; empty when the process has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    # the name in parentheses can hold spaces and parentheses itself
    return text.rpartition(")")[2].split()


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or belongs to somebody else
        return []


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
