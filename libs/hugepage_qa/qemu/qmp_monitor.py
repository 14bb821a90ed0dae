"""The control connection of a running QEMU, over the library qemu.qmp (QEMU documentation, QMP protocol specification).

Only who speaks to a QEMU needs the library: it is imported here, when that is done.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

from hugepage_qa.errors import InputError

# to end a connection in order
_CLOSE_SECONDS = 10.0

_Answer = TypeVar("_Answer")


class CommandRefused(InputError):
    """QEMU answered with an error; ``reason`` is its own text."""

    def __init__(self, command: str, reason: str) -> None:
        super().__init__(f"QEMU refuses {command}: {reason}")
        self.reason = reason


def require_qmp() -> None:
    """Raise InputError, which names what to install, without the Python package qemu.qmp."""
    try:
        import qemu.qmp  # noqa: F401, PLC0415 - a distribution may leave it out
    except ImportError as error:
        raise InputError("the Python package qemu.qmp is not installed: install hugepage-qa[qemu]") from error
    # we raise what it logs
    logging.getLogger("qemu.qmp").addHandler(logging.NullHandler())


class Monitor:
    """A connection to the QEMU that listens at a socket; it takes commands one after the other. Close it."""

    def __init__(self, socket: Path, seconds: float) -> None:
        """Connect to ``socket``; a QEMU listens there before it has its memory, and answers after that.

        Raises InputError without the package qemu.qmp, and when nobody has answered after ``seconds``.
        """
        require_qmp()
        from qemu.qmp import ConnectError, QMPClient  # noqa: PLC0415 - a distribution may leave it out

        self._socket = socket
        self._loop = asyncio.new_event_loop()
        self._client = QMPClient(socket.name)
        try:
            # a path of its own length may be too long for a socket address
            directory = os.open(socket.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._await(self._client.connect(f"/proc/self/fd/{directory}/{socket.name}"), seconds)
            finally:
                os.close(directory)
        except TimeoutError as error:
            self._loop.close()
            raise InputError(f"{socket}: QEMU does not answer within {seconds:g} s") from error
        except (ConnectError, OSError) as error:
            self._loop.close()
            cause = error.exc if isinstance(error, ConnectError) else error
            raise InputError(f"{socket}: QEMU does not answer ({_describe(cause)})") from error

    def ask(self, command: str, arguments: Mapping[str, object] | None = None, *, seconds: float) -> Any:
        """Return the answer to ``command`` (``system_reset``).

        Raises CommandRefused, and InputError when there is no answer after ``seconds`` or QEMU hangs up.
        """
        from qemu.qmp import ExecuteError, QMPError  # noqa: PLC0415 - a distribution may leave it out

        try:
            return self._await(self._client.execute(command, dict(arguments) if arguments else None), seconds)
        except ExecuteError as error:
            raise CommandRefused(command, str(error)) from error
        except TimeoutError as error:
            raise InputError(f"{self._socket}: QEMU does not answer {command} within {seconds:g} s") from error
        except (QMPError, OSError, EOFError) as error:
            raise InputError(
                f"{self._socket}: QEMU closed its control connection at {command} ({_describe(error)})"
            ) from error

    def give(self, descriptor: int) -> None:
        """Send an open file, which the next command (``getfd``) names."""
        self._client.send_fd_scm(descriptor)

    def close(self) -> None:
        """Hang up; QEMU goes on."""
        # what broke the connection was raised where it was used
        with suppress(Exception):
            self._await(self._client.disconnect(), _CLOSE_SECONDS)
        self._loop.close()

    def _await(self, answer: Awaitable[_Answer], seconds: float) -> _Answer:
        return self._loop.run_until_complete(asyncio.wait_for(answer, seconds))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _describe(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__
