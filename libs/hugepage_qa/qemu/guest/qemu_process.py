"""One QEMU and its monitor: started, spoken to, ended."""

import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hugepage_qa.errors import InputError
from hugepage_qa.process.child import Child
from hugepage_qa.qemu.guest.driver import GuestError, NotHere

# preallocating hundreds of GiB takes minutes, and so does what an emulated guest does on a busy machine
_START_SECONDS = 300.0
_ANSWER_SECONDS = 300.0
# between the end of its monitor and its own
_END_SECONDS = 10.0


def find_monitor_class() -> Callable[[str], Any]:
    """Return the class that speaks QMP. Raises NotHere without the Python package qemu.qmp."""
    try:
        from qemu.qmp.legacy import QEMUMonitorProtocol  # noqa: PLC0415 - an optional package
    except ImportError as error:
        raise NotHere("the Python package qemu.qmp is not installed: install hugepage-qa[qemu]") from error
    monitor: Callable[[str], Any] = QEMUMonitorProtocol
    return monitor


def _refusals() -> type[Exception]:
    """Return what the class that speaks QMP raises for an answer that is an error."""
    from qemu.qmp import ExecuteError  # noqa: PLC0415 - an optional package

    refusals: type[Exception] = ExecuteError
    return refusals


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
        """Start ``command``, which has the open files ``descriptors``; its monitor is not connected yet.

        ``control_group`` is entered before it has memory: what was charged elsewhere stays charged there.
        """
        self._name = name
        self._path = directory / f"{name}.qmp"
        self._errors = directory / f"{name}.errors"
        self._monitor: Any = None
        self._path.unlink(missing_ok=True)
        with self._errors.open("wb") as stream:
            self._child = Child(
                command, output=stream, errors=stream, descriptors=descriptors, control_group=control_group
            )

    @staticmethod
    def monitor_arguments(name: str, directory: Path) -> list[str]:
        """Return the arguments of QEMU that make its monitor listen."""
        return ["-qmp", f"unix:{directory / name}.qmp,server=on,wait=off"]

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

    def connect(self, monitor: Callable[[str], Any]) -> None:
        """Wait until its monitor answers: all memory that is to be preallocated is there then.

        Raises GuestError with what it said when it ends before, InputError when it was killed, or never answers.
        """
        if not self._child.wait_until(lambda: self._is_connected(monitor), _START_SECONDS):
            if self.has_ended:
                raise self.why_it_ended()
            raise InputError(f"QEMU of {self._name} does not answer within {_START_SECONDS:g} s: {self.said}")

    def ask(self, command: str, **arguments: object) -> Any:
        """Return the answer to a command; ``_`` in names of arguments stands for ``-``.

        Raises GuestError when the command is refused, or QEMU has ended by itself, InputError when it does not answer.
        """
        try:
            return self._monitor.cmd(command, **{key.replace("_", "-"): value for key, value in arguments.items()})
        except _refusals() as error:
            raise GuestError(f"{command}: {error}") from error
        except Exception as error:
            if self._child.wait(_END_SECONDS) is not None:
                raise self.why_it_ended() from error
            raise InputError(f"{command}: QEMU of {self._name}: {error or type(error).__name__}") from error

    def give(self, descriptor: int, name: str) -> None:
        """Let it have the open file ``descriptor`` under ``name``. Raises as ``ask`` does."""
        self._monitor.send_fd_scm(descriptor)
        self.ask("getfd", fdname=name)

    def await_condition(self, is_so: Callable[[], bool], otherwise: str) -> None:
        """Wait until ``is_so``. Raises InputError with ``otherwise`` when that takes too long, else as ``ask`` does."""
        if not self._child.wait_until(is_so, _ANSWER_SECONDS):
            if self.has_ended:
                raise self.why_it_ended()
            raise InputError(f"{self._name}: {otherwise} within {_ANSWER_SECONDS:g} s")

    def kill(self) -> None:
        """Kill it, and do not wait."""
        self._child.send(signal.SIGKILL)

    def end(self) -> None:
        """Kill it, and wait until it has given back its memory."""
        self._child.kill()
        if self._monitor is not None:
            with suppress(Exception):
                self._monitor.close()

    def _is_connected(self, monitor: Callable[[str], Any]) -> bool:
        """Connect to the monitor; False while QEMU does not listen yet, or does no more."""
        if not self._path.is_socket():
            return False
        connection = monitor(str(self._path))
        # it listens before the memory is there, and answers after that
        connection.settimeout(_START_SECONDS)
        try:
            connection.connect()
        except Exception:
            with suppress(Exception):
                connection.close()
            return False
        connection.settimeout(_ANSWER_SECONDS)
        self._monitor = connection
        return True
