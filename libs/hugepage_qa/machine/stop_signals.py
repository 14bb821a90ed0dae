"""SIGINT, SIGTERM and SIGHUP end what a run does, but never the saving and putting back around it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from hugepage_qa.errors import InputError

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# added to the number of the signal, as shells do
_SIGNALLED = 128


class StopSignals:
    """While it is entered, stop signals wait; inside ``let_through`` the first of them raises.

    SIGINT raises KeyboardInterrupt, the others SystemExit with 128 + number. Signals that are ignored stay ignored.
    What waits until the end is delivered then. Enter it in the main thread; raises InputError in another one.
    """

    def __init__(self) -> None:
        self._passing = False
        self._waiting: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        try:
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._receive)
        except ValueError as error:
            raise InputError(f"a machine can be protected in the main thread only: {error}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._waiting and error is None:
            signal.raise_signal(self._waiting[0])

    @contextmanager
    def let_through(self) -> Iterator[None]:
        """Let a stop signal raise in the body, also one that has come before."""
        self._passing = True
        try:
            if self._waiting:
                self._raise(self._waiting.pop())
            yield
        finally:
            self._passing = False

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self._passing:
            self._raise(number)
        self._waiting.append(number)

    def _raise(self, number: int) -> None:
        # one is enough: what follows is putting back
        self._passing = False
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(_SIGNALLED + number)
