"""Run one emulator process: read its console until it ends, and end it on every path."""

import os
import selectors
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hugepage_qa.process.child import PIPE, Child

OUTPUT_LIMIT = 4 << 20
"""Bytes of console output kept of one run; a machine that prints more is stopped. A capture is about 150 KB."""

LONGEST = 5
"""Deadlines that a machine may take which goes on printing: what an emulated machine emulates is that slow."""

_ERROR_LIMIT = 64 << 10
_STOP_POLL = 0.2
"""Seconds after which a running machine notices that it is to stop."""


class Stopped(Exception):
    """The run was ended by ``Emulators.stop``; it says nothing about the machine."""


@dataclass(frozen=True)
class Run:
    """How one emulator process went."""

    output: bytes
    """What it wrote on its console, at most OUTPUT_LIMIT bytes."""
    errors: str
    """What the emulator itself wrote on standard error."""
    exit_code: int | None
    """None when it was killed by us: deadline or too much output."""
    seconds: float
    overflowed: bool = False


class Emulators:
    """Starts emulators and can stop all that run, from any thread."""

    def __init__(self) -> None:
        self._running: set[threading.Event] = set()
        self._lock = threading.Lock()

    def stop(self) -> None:
        """End every emulator that runs now; their ``run`` raises Stopped. New ones can be started after."""
        with self._lock:
            for stop in self._running:
                stop.set()

    def run(self, command: Sequence[str], deadline: float, patience: Callable[[bytes], float | None]) -> Run:
        """Run ``command`` for ``deadline`` seconds and return what it printed.

        ``patience`` sees each piece of output (with the end of the piece before it) and may answer with seconds that
        are left from now on, fewer or more, but at most ``LONGEST`` deadlines together. The process is gone when
        this returns or raises, KeyboardInterrupt included; if we are killed, the kernel ends it.
        """
        stop = threading.Event()
        with self._lock:
            self._running.add(stop)
        started = time.monotonic()
        try:
            with Child(command, output=PIPE, errors=PIPE) as child:
                return _watch(child, started, deadline, patience, stop)
        finally:
            with self._lock:
                self._running.discard(stop)


def _watch(
    child: Child,
    started: float,
    deadline: float,
    patience: Callable[[bytes], float | None],
    stop: threading.Event,
) -> Run:
    """Read both pipes of ``child`` until it closes them, the deadline passes or ``stop`` is set."""
    if child.output is None or child.errors is None:
        raise ValueError("the process needs pipes")
    output, errors = bytearray(), bytearray()
    end = started + deadline
    with selectors.DefaultSelector() as selector:
        selector.register(child.output, selectors.EVENT_READ, output)
        selector.register(child.errors, selectors.EVENT_READ, errors)
        while selector.get_map() and len(output) < OUTPUT_LIMIT:
            if stop.is_set():
                raise Stopped
            left = end - time.monotonic()
            if left <= 0:
                break
            for key, _ in selector.select(min(left, _STOP_POLL)):
                piece = os.read(key.fd, 1 << 16)
                if not piece:
                    selector.unregister(key.fileobj)
                    continue
                key.data.extend(piece)
                del errors[_ERROR_LIMIT:]
                if key.data is output:
                    seconds = patience(bytes(output[-len(piece) - 100 :]))
                    end = end if seconds is None else min(started + LONGEST * deadline, time.monotonic() + seconds)
        finished = not selector.get_map()
    return Run(
        output=bytes(output[:OUTPUT_LIMIT]),
        errors=errors.decode(errors="replace"),
        # a process that has closed its pipes may take a moment to end
        exit_code=child.wait(max(0.0, end - time.monotonic()) + 1) if finished else None,
        seconds=time.monotonic() - started,
        overflowed=len(output) >= OUTPUT_LIMIT,
    )
