"""The serial console of a guest: type a line, read on until what was expected is there."""

import re
import socket
import time
from contextlib import suppress
from pathlib import Path

from hugepage_qa.guest.driver import GuestError

_PAUSE_SECONDS = 0.05
_PIECE = 65536
_SHOWN = 300


def read_console(log: Path) -> str:
    """Return all that the guest has printed, as ``log`` keeps it; empty before its first start."""
    with suppress(FileNotFoundError):
        return log.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n")
    return ""


def converse(path: Path, log: Path, line: str, pattern: str, seconds: float) -> str:
    """Type ``line`` on the console behind the socket ``path`` and return what follows up to ``pattern``.

    An empty line types nothing: what the guest has printed before counts, too. Raises GuestError when ``pattern``, a
    regular expression, does not come within ``seconds``.
    """
    position = len(read_console(log)) if line else 0
    deadline = time.monotonic() + seconds
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as console:
        try:
            console.connect(str(path))
            console.sendall(f"{line}\n".encode() if line else b"")
        except OSError as error:
            raise GuestError(f"console of the guest: {error.strerror}") from error
        console.settimeout(_PAUSE_SECONDS)
        while True:
            found = re.search(pattern, read_console(log)[position:])
            if found:
                return found.string[: found.end()]
            if time.monotonic() > deadline:
                said = read_console(log)[-_SHOWN:]
                raise GuestError(f"no {pattern!r} on the console within {seconds:g} s after {line!r}: {said!r}")
            # a guest whose console nobody reads waits until somebody does
            with suppress(TimeoutError, ConnectionError):
                if not console.recv(_PIECE):
                    time.sleep(_PAUSE_SECONDS)
