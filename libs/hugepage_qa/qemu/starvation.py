"""Whether an emulator had CPU time when its machine complained of a lockup: without it every kernel seems to lock up.

The watchdogs of a kernel go by the clock, which goes on while the host lets the emulator wait, or reads its memory back
from a disk. A CPU that is really locked up spins: the emulator is busy all the while.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

from hugepage_qa.qemu.lost_machine import find_lockup

#: the shortest after which a watchdog complains is 20 s: twice kernel.watchdog_thresh; RCU waits for 21 s
_WATCHED_SECONDS = 20.0
#: what a CPU that spins has of that at least
_SHARE = 0.5
_LOOK_SECONDS = 1.0


class Starvation:
    """Looks at the CPU time of an emulator until it is closed, and tells for each lockup whose it is.

    ``cpu_seconds`` tells how much it has had so far.
    """

    def __init__(self, cpu_seconds: Callable[[], float]) -> None:
        self._cpu_seconds = cpu_seconds
        self._looks = deque([self._now()], maxlen=1 + int(_WATCHED_SECONDS / _LOOK_SECONDS))
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        #: the first lockup that the kernel has to answer for, as it printed it
        self.lockup = ""
        #: what the emulator had when the kernel complained and was not to blame, empty if it never did
        self.told = ""

    @property
    def seconds(self) -> float:
        """The CPU time in seconds that the emulator had when it was last looked at."""
        return self._looks[-1][1]

    def take(self, printed: str) -> None:
        """Look for lockups in what the machine has printed just now."""
        if line := find_lockup(printed):
            (began, had_before), (now, had) = self._looks[0], self._now()
            if had - had_before >= _SHARE * (now - began):
                self.lockup = self.lockup or line
            else:
                self.told = f"the emulator had {had - had_before:.0f} s of a CPU in {now - began:.0f} s: {line}"

    def close(self) -> None:
        """Look no more."""
        self._is_closed.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._is_closed.wait(_LOOK_SECONDS):
            self._looks.append(self._now())

    def _now(self) -> tuple[float, float]:
        return time.monotonic(), self._cpu_seconds()
