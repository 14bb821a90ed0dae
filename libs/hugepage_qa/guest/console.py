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
        return _text(log.read_bytes())
    return ""


def await_output(log: Path, pattern: str, seconds: float) -> None:
    """Wait until the guest has printed what matches the regular expression ``pattern``, now or before.

    Raises GuestError when that takes longer than ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while not re.search(pattern, said := read_console(log)):
        if time.monotonic() > deadline:
            raise GuestError(f"no {pattern!r} on the console within {seconds:g} s: {said[-_SHOWN:]!r}")
        time.sleep(_PAUSE_SECONDS)


def converse(path: Path, line: str, pattern: str, seconds: float) -> str:
    """Type ``line`` on the console behind the socket ``path`` and return what follows up to the line with ``pattern``.

    QEMU drops what the guest has not read of ``line`` when the socket is closed: the end of the line is waited for even
    where the pattern is the echo of its beginning. A guest that ends before that has said less. The log would not do:
    QEMU writes a character there twice when its reader is slow. Raises GuestError when neither comes within
    ``seconds``.
    """
    deadline = time.monotonic() + seconds
    said = b""
    to_the_end = re.compile(rf"(?:{pattern})(?:(?<=\n)|[^\n]*\n)")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as console:
        console.settimeout(_PAUSE_SECONDS)
        try:
            console.connect(str(path))
            console.sendall(f"{line}\n".encode())
        except OSError as error:
            raise GuestError(f"console of the guest: {error.strerror}") from error
        while not (found := to_the_end.search(_text(said))):
            if time.monotonic() > deadline:
                raise GuestError(f"no {pattern!r} within {seconds:g} s after {line!r}: {said[-_SHOWN:]!r}")
            with suppress(TimeoutError):
                piece = console.recv(_PIECE)
                if not piece:
                    return _text(said)
                said += piece
    return found.string[: found.end()]


def _text(output: bytes) -> str:
    return output.decode(errors="replace").replace("\r\n", "\n")
