"""An emulator that runs: what it prints is read as it comes, and it is gone on every path."""

import os
import threading
from functools import partial
from pathlib import Path
from typing import IO, Self

from hugepage_qa.process.child import Child
from hugepage_qa.qemu.starvation import Starvation, look_at

OUTPUT_LIMIT = 4 << 20
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
