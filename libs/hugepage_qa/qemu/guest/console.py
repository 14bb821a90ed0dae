"""The serial console of a guest: type a line, read on until what was expected is there."""

import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hugepage_qa.errors import InputError

_PAUSE_SECONDS = 0.05
_PIECE = 65536
_SHOWN = 300


def read_console(log: Path) -> str:
    """Return all that the guest has printed, as ``log`` keeps it; empty before its first start."""
    with suppress(FileNotFoundError):
        return _text(log.read_bytes())
    return ""


def await_output(log: Path, pattern: str, seconds: float, expect_alive: Callable[[], object]) -> None:
    """Wait until the guest has printed what matches the regular expression ``pattern``, now or before.

    ``expect_alive`` raises what there is to say of a guest that has ended. Raises InputError when it takes longer than
    ``seconds``: a guest that is emulated on a busy machine is slow.
    """
    deadline = time.monotonic() + seconds
    while not re.search(pattern, said := read_console(log)):
        expect_alive()
        if time.monotonic() > deadline:
            raise InputError(f"no {pattern!r} on the console within {seconds:g} s: {said[-_SHOWN:]!r}")
        time.sleep(_PAUSE_SECONDS)


def converse(path: Path, line: str, pattern: str, seconds: float) -> str:
    """Type ``line`` on the console behind the socket ``path`` and return what follows up to the line with ``pattern``.

    QEMU drops what the guest has not read of ``line`` when the socket is closed: the end of the line is waited for even
    where the pattern is the echo of its beginning. A guest that ends before that has said less. The log would not do:
    QEMU writes a character there twice when its reader is slow. Raises InputError when neither comes within
    ``seconds``, OSError when nobody serves the socket.
    """
    deadline = time.monotonic() + seconds
    said = b""
    to_the_end = re.compile(rf"(?:{pattern})(?:(?<=\n)|[^\n]*\n)")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as console:
        # a busy QEMU takes its time to accept
        console.settimeout(seconds)
        console.connect(str(path))
        console.sendall(f"{line}\n".encode())
        console.settimeout(_PAUSE_SECONDS)
        while not (found := to_the_end.search(_text(said))):
            if time.monotonic() > deadline:
                raise InputError(f"no {pattern!r} within {seconds:g} s after {line!r}: {said[-_SHOWN:]!r}")
            with suppress(TimeoutError):
                piece = console.recv(_PIECE)
                if not piece:
                    return _text(said)
                said += piece
    return found.string[: found.end()]


def _text(output: bytes) -> str:
    return output.decode(errors="replace").replace("\r\n", "\n")


# in the order in which they need each other
_BUS = ("virtio_ring", "virtio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci")
#: what virtio_net needs
NETWORK = ("failover", "net_failover", "virtio_net")


def load_drivers(*names: str) -> str:
    """Return the command of a guest's shell that loads the bus and the drivers ``names``, where they are modules."""
    load = "[ ! -e /modules/$module.ko ] || insmod /modules/$module.ko"
    return f"for module in {' '.join((*_BUS, *names))}; do {load}; done"
