"""Whether an emulator was let run when its machine complained of a lockup: else every kernel seems to lock up.

The watchdogs of a kernel go by the clock, which goes on while the host lets the emulator wait for a CPU, or reads its
memory back from a disk. An emulator that has what it wants is not starved, whether its machine spins or sleeps.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.process.process_table import MAJOR_FAULTS, cpu_seconds, stat_fields
from hugepage_qa.qemu.lost_machine import find_lockup

#: the shortest after which a watchdog complains is 20 s: twice kernel.watchdog_thresh; RCU waits for 21 s
_WATCHED_SECONDS = 20.0
#: what an emulator has of a CPU that is let run all the while, or does not want to
_SHARE = 0.5
#: pages that were read back from a disk in that time
_MANY_FAULTS = 100
_LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Look:
    """What a process and its threads had so far: seconds of CPUs, seconds of waiting for one, and major faults."""

    had: float
    waited: float
    faults: int


def look_at(pid: int) -> Look:
    """Return what process ``pid`` has had; one that has ended has had nothing (proc_pid_stat(5), sched-stats.rst)."""
    waited = faults = 0
    with suppress(OSError):  # the process ends while it is looked at
        for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with suppress(OSError, ValueError, IndexError):  # the thread has ended, or the kernel does not tell
                waited += int(file.read_text(encoding="utf-8").split()[1])
    if fields := stat_fields(Path(f"/proc/{pid}/stat")):
        faults = int(fields[MAJOR_FAULTS])
    return Look(cpu_seconds(pid), waited / 1e9, faults)


class Starvation:
    """Looks at an emulator by ``look`` until it is closed, and tells for each lockup whose it is."""

    def __init__(self, look: Callable[[], Look]) -> None:
        self._look = look
        self._looks = deque([self._now()], maxlen=1 + int(_WATCHED_SECONDS / _LOOK_SECONDS))
        self._line = ""
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        #: the first lockup that the kernel has to answer for, as it printed it
        self.lockup = ""
        #: what the emulator had when the kernel complained and was not to blame, empty if it never did
        self.told = ""

    @property
    def seconds(self) -> float:
        """The CPU time in seconds that the emulator had when it was last looked at."""
        return self._looks[-1][1].had

    def forget(self) -> None:
        """Begin anew: what was before says nothing of what comes."""
        self.lockup = self.told = ""

    def take(self, printed: str) -> None:
        """Look for lockups in what the machine has printed just now; a line counts when it has come to its end."""
        *lines, self._line = (self._line + printed).split("\n")
        for line in filter(None, map(find_lockup, lines)):
            (began, before), (now, after) = self._looks[0], self._now()
            if starved := _starved(before, after, now - began):
                self.told = f"{starved}: {line}"
            else:
                self.lockup = self.lockup or line

    def close(self) -> None:
        """Look no more."""
        self._is_closed.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_closed.wait(_LOOK_SECONDS):
            self._looks.append(self._now())

    def _now(self) -> tuple[float, Look]:
        return time.monotonic(), self._look()


def _starved(before: Look, after: Look, seconds: float) -> str:
    """Return how an emulator was kept from running in ``seconds``, empty where it was not."""
    had, waited, faults = after.had - before.had, after.waited - before.waited, after.faults - before.faults
    if had >= _SHARE * seconds or (had + waited < _SHARE * seconds and faults < _MANY_FAULTS):
        return ""
    return f"the emulator had {had:.0f} s of a CPU in {seconds:.0f} s, and waited for {waited:.0f} s and {faults} pages"
