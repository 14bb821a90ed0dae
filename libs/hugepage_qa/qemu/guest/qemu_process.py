"""One QEMU and its monitor: started, spoken to, ended."""

import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hugepage_qa.errors import InputError
from hugepage_qa.process.child import Child
from hugepage_qa.qemu.guest.driver import GuestError
from hugepage_qa.qemu.qmp_monitor import CommandRefused, Monitor

# preallocating hundreds of GiB takes minutes, and so does what an emulated guest does on a busy machine
_START_SECONDS = 300.0
_ANSWER_SECONDS = 300.0
# between the end of its monitor and its own
_END_SECONDS = 10.0


class QemuProcess:
    """A QEMU that cannot outlive us. ``name`` is that of its guest, in whose files in ``directory`` it is spoken to."""

    def __init__(
        self,
        name: str,
        directory: Path,
        command: Sequence[str],
        descriptors: Sequence[int] = (),
        control_group: str | None = None,
    ) -> None:
        """Start the emulator ``command``, which has the open files ``descriptors``; its monitor is not connected yet.

        ``control_group`` is entered before it has memory: what was charged elsewhere stays charged there.
        """
        self._name = name
        self._path = directory / f"{name}.qmp"
        self._errors = directory / f"{name}.errors"
        self._monitor: Monitor | None = None
        self._path.unlink(missing_ok=True)
        with self._errors.open("wb") as stream:
            self._child = Child(
                [*command, "-qmp", f"unix:{self._path},server=on,wait=off"],
                output=stream,
                errors=stream,
                descriptors=descriptors,
                control_group=control_group,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    @property
    def has_ended(self) -> bool:
        """Whether it is gone."""
        return self._child.has_ended

    @property
    def said(self) -> str:
        """What it wrote on standard error, in one line."""
        return " ".join(self._errors.read_text(encoding="utf-8", errors="replace").split())

    def why_it_ended(self) -> Exception:
        """Return what tells why it ended without being asked to."""
        if self._child.exit_code == -signal.SIGKILL:
            return InputError(f"QEMU of {self._name} was killed: the machine is short of memory, or somebody did it")
        return GuestError(self.said or f"QEMU ended with exit code {self._child.exit_code}")

    def connect(self) -> None:
        """Wait until its monitor answers: all memory that is to be preallocated is there then.

        Raises GuestError with what it said when it ends before, InputError when it was killed, or never answers.
        """
        if not self._child.wait_until(self._is_connected, _START_SECONDS):
            if self.has_ended:
                raise self.why_it_ended()
            raise InputError(f"QEMU of {self._name} does not answer within {_START_SECONDS:g} s: {self.said}")

    def ask(self, command: str, **arguments: object) -> Any:
        """Return the answer to a command; ``_`` in names of arguments stands for ``-``.

        Raises GuestError when the command is refused, or QEMU has ended by itself, InputError when it does not answer.
        """
        try:
            words = {key.replace("_", "-"): value for key, value in arguments.items()}
            return self._connection().ask(command, words, seconds=_ANSWER_SECONDS)
        except CommandRefused as error:
            raise GuestError(f"{command}: {error.reason}") from error
        except InputError as error:
            if self._child.wait(_END_SECONDS) is not None:
                raise self.why_it_ended() from error
            raise InputError(f"{command}: QEMU of {self._name}: {error}") from error

    def give(self, descriptor: int, name: str) -> None:
        """Let it have the open file ``descriptor`` under ``name``. Raises as ``ask`` does."""
        self._connection().give(descriptor)
        self.ask("getfd", fdname=name)

    def await_condition(self, is_so: Callable[[], bool], otherwise: str) -> None:
        """Wait until ``is_so``. Raises InputError with ``otherwise`` when that takes too long, else as ``ask`` does."""
        if not self._child.wait_until(is_so, _ANSWER_SECONDS):
            if self.has_ended:
                raise self.why_it_ended()
            raise InputError(f"{self._name}: {otherwise} within {_ANSWER_SECONDS:g} s")

    def kill(self) -> None:
        """Send it SIGKILL, and do not wait."""
        self._child.send(signal.SIGKILL)

    def end(self) -> None:
        """Kill it, and wait until it has given back its memory."""
        self._child.kill()
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = None

    def _connection(self) -> Monitor:
        if self._monitor is None:
            raise InputError("its monitor is not connected")
        return self._monitor

    def _is_connected(self) -> bool:
        """Connect to the monitor; False while QEMU does not listen yet, or does no more."""
        if self._path.is_socket():
            with suppress(InputError):
                # it listens before the memory is there, and answers after that
                self._monitor = Monitor(self._path, _START_SECONDS)
        return self._monitor is not None
