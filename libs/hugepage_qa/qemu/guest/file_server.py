"""virtiofsd: a process that has a guest's memory, and serves files through it."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path

from hugepage_qa.process.child import WITH_OUTPUT, Child

#: of Fedora and of Debian since 13, of Debian 12, where it is that of QEMU itself, and of Arch
_PLACES = ("/usr/libexec/virtiofsd", "/usr/lib/qemu/virtiofsd", "/usr/lib/virtiofsd")
#: what a guest mounts
TAG = "shared"
#: of two ways in which it locks itself up the one that containers let it go, too
SANDBOX = "chroot"


def find_virtiofsd() -> str:
    """Return the program, nothing where it is not installed."""
    return next((place for place in _PLACES if os.access(place, os.X_OK)), "")


def start_file_server(program: str, directory: Path, path: Path, environment: Mapping[str, str]) -> Child:
    """Start ``program``, which serves ``directory`` to the QEMU that connects to the socket ``path``, while that lives.

    It has no other name for the socket: one that it makes itself leaves a lock in /run.
    """
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(path))
        listening.listen(1)
        number = listening.fileno()
        # words that the one of QEMU and its successor in Rust both know
        command = [program, f"--fd={number}", "-o", f"source={directory},sandbox={SANDBOX}"]
        with path.with_suffix(".said").open("wb") as said:
            return Child(
                command,
                environment={**os.environ, **environment},
                output=said,
                errors=WITH_OUTPUT,
                descriptors=(number,),
            )
