"""The processes that a run has started: found by the run id in their environment, and ended."""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from hugepage_qa.process.marks import RUN

# a process that sits in the kernel, giving back gigantic pages for example, takes its time
_DEADLINE_SECONDS = 30.0
_PAUSE_SECONDS = 0.01
_EXEC_SECONDS = 2.0

#: fields of proc_pid_stat(5), as ``stat_fields`` returns them; times are in ticks of the clock
STATE, PARENT, MINOR_FAULTS, MAJOR_FAULTS, USER_TIME, SYSTEM_TIME, START_TIME = 0, 1, 7, 9, 11, 12, 19
_DEAD = ("Z", "X")
_USER_HZ = 100


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


def children_of(parent: int) -> set[int]:
    """Return the direct children of ``parent``; those that have ended and were not waited for are among them."""
    stats = {int(stat.parent.name): stat_fields(stat) for stat in Path("/proc").glob("[0-9]*/stat")}
    return {pid for pid, fields in stats.items() if fields and int(fields[PARENT]) == parent}


def kill_and_wait(pids: Iterable[int], is_ours: Callable[[int], bool]) -> set[int]:
    """Kill those of ``pids`` that are ours, wait until they have given back their memory, return those that stay."""
    started = {pid: _start_time(pid) for pid in pids if is_ours(pid)}
    for pid in started:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while (left := {pid for pid in started if not _is_over(pid, started[pid])}) and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)
    return left


def has_ended(pid: int) -> bool:
    """Tell whether the process ``pid`` is gone, or only waits for its parent to take notice.

    A thread gives back its share of the memory before it is dead to the eye (do_exit() in kernel/exit.c), but the
    first one may be dead long before the others.
    """
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return True
    return all(not (fields := stat_fields(thread / "stat")) or fields[STATE] in _DEAD for thread in threads)


def stat_fields(stat: Path) -> list[str]:
    """Return the fields of the file ``stat`` after the name; empty when the process or thread is gone."""
    try:
        text = stat.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return split_stat(text)


def split_stat(text: str) -> list[str]:
    """Return the fields after the name in ``text`` of a stat file."""
    # the name in parentheses can hold spaces and parentheses itself
    return text.rpartition(")")[2].split()


def state_and_cpu_seconds(fields: Sequence[str]) -> tuple[str, float]:
    """Return the state and the CPU time in seconds of a process from the ``fields`` of its stat, none: it is gone."""
    if not fields:
        return "", 0.0
    # USER_HZ is 100 wherever huge pages are
    return fields[STATE], (int(fields[USER_TIME]) + int(fields[SYSTEM_TIME])) / _USER_HZ


def cpu_seconds(pid: int) -> float:
    """Return the CPU time in seconds that a process and its threads have had; one that has ended has had none."""
    return state_and_cpu_seconds(stat_fields(Path(f"/proc/{pid}/stat")))[1]


def _is_over(pid: int, started: str | None) -> bool:
    # the number may be given to another process meanwhile
    return _start_time(pid) != started or has_ended(pid)


def _start_time(pid: int) -> str | None:
    fields = stat_fields(Path(f"/proc/{pid}/stat"))
    return fields[START_TIME] if fields else None


def _ancestors(pid: int) -> Iterator[int]:
    """Yield ``pid``, its parent, and so on."""
    while pid > 0:
        yield pid
        fields = stat_fields(Path(f"/proc/{pid}/stat"))
        pid = int(fields[PARENT]) if fields else 0


def _environment(pid: int) -> list[bytes]:
    deadline = time.monotonic() + _EXEC_SECONDS
    while not (environment := _read(pid, "environ")) and _is_loading(pid) and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)
    return environment.split(b"\0")


def _is_loading(pid: int) -> bool:
    """Tell whether the process is about to execute a program.

    Its new memory has neither environment nor arguments until the program is loaded (create_elf_tables() in
    fs/binfmt_elf.c), but does have the program; a kernel thread and a dead process have none.
    """
    try:
        return not _read(pid, "cmdline") and bool(Path(f"/proc/{pid}/exe").readlink())
    except OSError:
        return False


def _name(pid: int) -> str:
    return _read(pid, "comm").decode("utf-8", "replace").strip()


def _read(pid: int, name: str) -> bytes:
    """Return the file ``name`` of a process; empty when it has ended or belongs to somebody else."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
