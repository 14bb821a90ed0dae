"""Whether khugepaged sleeps: it does after each round of ``pages_to_scan``, and with nobody on its list.

Its clock, full_scans, stands still also while it works on a list that is long.
"""

import re
from collections.abc import Callable

from hugepage_qa.cases.cpu_time import cpu_seconds
from hugepage_qa.cases.live import Live

#: it waits for its next round, or for memory after a failed allocation (khugepaged_wait_work(),
#: khugepaged_alloc_sleep()): what else it waits for while it works is not interruptible
_SLEEPING = re.compile(r"^State:\tS\b.*^voluntary_ctxt_switches:\t(\d+)$", re.MULTILINE | re.DOTALL)
#: it runs, or would
_WORKING = re.compile(r"^State:\tR\b", re.MULTILINE)
#: longer than it sleeps after a failed allocation, as ``quicken`` has it
_PAUSE = 0.05
#: who works and had a processor for less than half of this time has waited for one
_LOOKS, _LOOK_SECONDS = 10, 2.0
#: which starts all others of the kernel
_FIRST_THREAD = "2"


def await_sleep(live: Live, seconds: float, is_done: Callable[[], bool] = lambda: False) -> None:
    """Wait until khugepaged sleeps, or until ``is_done``; at most ``seconds``.

    A write or an advice that wakes it has made it runnable when it returns. One that was stopped sleeps. In a container
    that sees none of the kernel's threads (pid_namespaces(7)) all of the time is waited for.
    """
    name = thread(live)
    if name is None and not shows_threads(live):
        live.host.wait_until(is_done, seconds)
        return
    before = _slept(live, name)
    end = live.host.clock() + seconds
    while not is_done() and live.host.clock() < end:
        live.host.pause(_PAUSE)
        now = _slept(live, name)
        if now is not None and now == before:
            return
        before = now


def is_starved(live: Live) -> bool:
    """Tell whether khugepaged has work, and waits for a processor: it has the lowest priority of all."""
    name = thread(live)
    if name is None:
        return False
    before = cpu_seconds(live, name)
    states = []
    for _look in range(_LOOKS):
        live.host.pause(_LOOK_SECONDS / _LOOKS)
        states.append(_WORKING.search(live.host.read(f"proc/{name}/status") or ""))
    return any(states) and cpu_seconds(live, name) - before < _LOOK_SECONDS / 2


def shows_threads(live: Live) -> bool:
    """Tell whether threads of the kernel are to be seen: in a container they are not (pid_namespaces(7))."""
    return _is_called(live, _FIRST_THREAD, "kthreadd")


def thread(live: Live) -> str | None:
    """Return the number of khugepaged, None without one: it is stopped while huge pages are allowed to nobody."""
    names = live.host.names("proc")
    return next((name for name in names if name.isdecimal() and _is_called(live, name, "khugepaged")), None)


def _is_called(live: Live, name: str, comm: str) -> bool:
    return (live.host.read(f"proc/{name}/comm") or "").strip() == comm


def _slept(live: Live, name: str | None) -> int | None:
    """Return how often khugepaged has gone to sleep, None while it is awake (proc_pid_status(5))."""
    status = None if name is None else live.host.read(f"proc/{name}/status")
    if status is None:
        return 0
    found = _SLEEPING.search(status)
    return int(found[1]) if found else None
