"""Run a child process and leave none of its descendants behind: not after an error, Ctrl-C, SIGTERM or SIGKILL."""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

from hugepage_qa.process.child import Child
from hugepage_qa.process.process_table import children_of

# linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# Avocado and tmt need this long to stop a test and to write what they know
GRACE_SECONDS = 20.0

_POLL_SECONDS = 0.05

# what the child left running may take this long to end by itself
_ORPHAN_SECONDS = 10.0
_ORPHAN_POLL_SECONDS = 0.02

# added to the number of the signal that told us to stop, as shells do
SIGNALLED = 128

_LIBC = ctypes.CDLL(None, use_errno=True)


def run_supervised(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    directory: Path | None = None,
    output: IO[Any] | None = None,
    grace: float = GRACE_SECONDS,
) -> int:
    """Run ``arguments`` and return the exit code, negative for a signal, 128 + signal when we were told to stop.

    SIGINT, SIGTERM and SIGHUP reach the child as SIGINT, on which Avocado and tmt stop in order and write their
    results; after ``grace`` seconds it is killed. Whatever it leaves running is ended after it. What it prints goes to
    ``output``, or where ours goes. Call it from the main thread.
    """
    ours = children_of(os.getpid())
    with _subreaper():
        # SIGTERM, and not SIGKILL: should we be killed, it still puts back what it has changed
        child = Child(
            arguments,
            death_signal=signal.SIGTERM,
            environment=environment,
            directory=directory,
            output=output,
            errors=output,
        )
        try:
            return _wait(child, grace, ours)
        finally:
            _end_orphans(spare=ours)


def exit_on_sigterm() -> None:
    """Let SIGTERM, with which a job is cancelled, end this process as sys.exit() does: what is temporary is removed."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(SIGNALLED + number))


def _wait(child: Child, grace: float, ours: set[int]) -> int:
    with _forward_signals(child) as received:
        while (code := child.exit_code) is None:
            if received and time.monotonic() > received[0].time + grace:
                # alone: what it leaves running is an orphan, which is asked first
                child.send(signal.SIGKILL)
            _reap_orphans(spare=ours | {child.pid})
            time.sleep(_POLL_SECONDS)
        return SIGNALLED + received[0].number if received else code


def _reap_orphans(spare: set[int]) -> None:
    """Wait for those of our children, but ``spare``, that have ended, as init would.

    libvirt looks whether a QEMU that it has killed is gone, and finds one that nobody waits for until it gives up.
    """
    # a look that costs nothing before one at all processes
    if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
        for pid in children_of(os.getpid()) - spare:
            os.waitpid(pid, os.WNOHANG)


@dataclass(frozen=True)
class _Received:
    number: int
    time: float


@contextmanager
def _forward_signals(child: Child) -> Iterator[list[_Received]]:
    """Pass the first signal on as SIGINT; yield the list in which received signals are kept."""
    received: list[_Received] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        if not received:
            child.send(signal.SIGINT)
        received.append(_Received(number, time.monotonic()))

    before: dict[signal.Signals, Any] = {number: signal.signal(number, forward) for number in _SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _subreaper() -> Iterator[None]:
    """Become the parent of every descendant whose own parent ends, instead of init: so it can be found."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _end_orphans(spare: set[int]) -> None:
    """End our children except ``spare``, then theirs, which thereby become ours, until none is left.

    They get SIGTERM first: what a test of tmt has started is such an orphan, and removes its files then.
    """
    end = time.monotonic() + _ORPHAN_SECONDS
    told: set[int] = set()
    while children := children_of(os.getpid()) - spare:
        late = time.monotonic() > end
        for pid in children if late else children - told:
            os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        told |= children
        for pid in children:
            os.waitpid(pid, 0 if late else os.WNOHANG)
        time.sleep(0 if late else _ORPHAN_POLL_SECONDS)
