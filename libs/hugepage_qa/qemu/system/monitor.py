"""One command to a running QEMU over its QMP socket (QEMU documentation, QMP protocol specification)."""

import json
import os
import socket
from pathlib import Path
from typing import Any

from hugepage_qa.errors import InputError

_TIMEOUT = 20.0


def execute(path: Path, command: str) -> Any:
    """Run ``command`` (``system_reset``) in the QEMU behind socket ``path`` and return its answer.

    Raises InputError when nobody answers or QEMU refuses.
    """
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_TIMEOUT)
            # a path of its own length may be too long for a socket address
            connection.connect(f"/proc/self/fd/{directory}/{path.name}")
            with connection.makefile("rwb") as stream:
                _answer(stream.readline())
                _ask(stream, "qmp_capabilities")
                return _ask(stream, command)
    except OSError as error:
        raise InputError(f"{path}: QEMU does not answer ({error.strerror or error})") from error
    finally:
        os.close(directory)


def _ask(stream: Any, command: str) -> Any:
    stream.write(json.dumps({"execute": command}).encode() + b"\n")
    stream.flush()
    # events may come at any time before the answer
    while "event" in (answer := _answer(stream.readline())):
        pass
    if "error" in answer:
        raise InputError(f"QEMU refuses {command}: {answer['error'].get('desc', 'no reason given')}")
    return answer.get("return")


def _answer(line: bytes) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise InputError(f"QEMU closed its control connection: {line[:80]!r}")
    return document
