"""An emulator that runs: what it prints is read as it comes, and it is gone on every path.

When its machine complains of a lockup, it matters whether the emulator was let run: else every kernel seems to lock up.
The watchdogs of a kernel go by the clock, which goes on while the host lets the emulator wait for a CPU, or reads its
memory back from a disk. An emulator that has what it wants is not starved, whether its machine spins or sleeps.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Self

from hugepage_qa.process.child import Child
from hugepage_qa.process.process_table import MAJOR_FAULTS, cpu_seconds, stat_fields
from hugepage_qa.qemu.lost_machine import find_lockup
from hugepage_qa.sizes import MIB

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
        told, _, self._line = (self._line + printed).rpartition("\n")
        if not find_lockup(told):
            return  # line by line, megabytes would take longer than the machine that prints them
        for line in filter(None, map(find_lockup, told.split("\n"))):
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


OUTPUT_LIMIT = 4 * MIB
"""Bytes kept of what it printed last; a capture is about 150 KB."""
_END_SECONDS = 10.0
"""For the last that it has printed, or for its own end when it prints no more."""


class Stopped(Exception):
    """A machine was ended because the run is over; that says nothing about the machine."""


class Emulator:
    """An emulator with its console on standard output; as a context manager it is ended with the block.

    Any thread may ``kill`` it.
    """

    def __init__(self, child: Child) -> None:
        """Read what ``child`` prints to the PIPEs that both of its streams are."""
        self._child = child
        self._serial = bytearray()
        self._errors = bytearray()
        self.starvation = Starvation(partial(look_at, child.pid))
        #: bytes that came from its console
        self.printed = 0
        self._readers = [
            threading.Thread(target=self._read, args=(stream, into), daemon=True)
            for stream, into in ((child.output, self._serial), (child.errors, self._errors))
        ]
        for reader in self._readers:
            reader.start()

    @property
    def serial(self) -> str:
        """What it has printed on its console, at most the last ``OUTPUT_LIMIT`` bytes."""
        return self._serial.decode(errors="replace")

    def printed_last(self, count: int) -> str:
        """Return the last ``count`` bytes that it has printed on its console."""
        return self._serial[-count:].decode(errors="replace")

    @property
    def why_it_ended(self) -> str:
        """What it said last, else its exit code, in one line."""
        said = self._errors.decode(errors="replace").strip()
        return said.splitlines()[-1] if said else f"exit code {self.exit_code}"

    @property
    def exit_code(self) -> int | None:
        """How it ended, None while it runs."""
        return self._child.exit_code

    def wait(self, seconds: float) -> bool:
        """Wait until it has ended and all that it has printed is read; False when it runs on after ``seconds``."""
        self._readers[0].join(seconds)
        if self._readers[0].is_alive() or self._child.wait(_END_SECONDS) is None:
            return False
        self._readers[1].join(_END_SECONDS)
        return True

    def kill(self) -> None:
        """End it at once, whoever waits for it."""
        self._child.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        # who reads a stream must have ended before it is closed
        for reader in self._readers:
            reader.join(_END_SECONDS)
        self.starvation.close()
        self._child.__exit__(None, None, None)

    def _read(self, stream: IO[bytes] | None, into: bytearray) -> None:
        if stream is None:
            raise ValueError("the process needs pipes")
        while piece := os.read(stream.fileno(), 1 << 16):
            into += piece
            del into[:-OUTPUT_LIMIT]
            if into is self._serial:
                self.printed += len(piece)
                self.starvation.take(piece.decode(errors="replace"))


def quoted(path: Path) -> str:
    """Return ``path`` as a value in one of QEMU's comma separated options."""
    return str(path).replace(",", ",,")
