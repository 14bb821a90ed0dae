"""Run one emulator process: read its console until it ends, and end it on every path."""

import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.process import tether

OUTPUT_LIMIT = 4 << 20
"""Bytes of console output kept of one run; a machine that prints more is stopped. A capture is about 150 KB."""

LONGEST = 5
"""Deadlines that a machine may take which goes on printing: what an emulated machine emulates is that slow."""

_ERROR_LIMIT = 64 << 10
_STOP_POLL = 0.2
"""Seconds after which a running machine notices that it is to stop."""

_TETHER = Path(tether.__file__)


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
        this returns or raises, KeyboardInterrupt included; if we are killed, the kernel ends it (tether.py). It has its
        own session, so a Ctrl-C in the terminal reaches us only, and we end it.
        """
        stop = threading.Event()
        with self._lock:
            self._running.add(stop)
        started = time.monotonic()
        try:
            with subprocess.Popen(
                [sys.executable, "-I", "-S", str(_TETHER), str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            ) as process:
                try:
                    return _watch(process, started, deadline, patience, stop)
                finally:
                    process.kill()
        finally:
            with self._lock:
                self._running.discard(stop)


def _watch(
    process: subprocess.Popen[bytes],
    started: float,
    deadline: float,
    patience: Callable[[bytes], float | None],
    stop: threading.Event,
) -> Run:
    """Read both pipes of ``process`` until it closes them, the deadline passes or ``stop`` is set."""
    if process.stdout is None or process.stderr is None:
        raise ValueError("the process needs pipes")
    output, errors = bytearray(), bytearray()
    end = started + deadline
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, output)
        selector.register(process.stderr, selectors.EVENT_READ, errors)
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
        exit_code=_exit_code(process, end) if finished else None,
        seconds=time.monotonic() - started,
        overflowed=len(output) >= OUTPUT_LIMIT,
    )


def _exit_code(process: subprocess.Popen[bytes], end: float) -> int | None:
    """Return the exit code of a process that has closed its pipes, or None if it does not end by ``end``."""
    try:
        return process.wait(max(0.0, end - time.monotonic()) + 1)
    except subprocess.TimeoutExpired:
        return None
