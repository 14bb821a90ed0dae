"""A system machine: its directory, its process, and the ways in which it goes down and comes up again."""

import fcntl
import os
import re
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.process.child import DISCARDED, PIPE, Child, RunningProcess
from hugepage_qa.qemu.qmp_monitor import Monitor
from hugepage_qa.qemu.system.secure_shell import SecureShell
from hugepage_qa.qemu.system.system_arguments import PID_FILE, QMP_SOCKET, serial_log

KNOWN_HOSTS = "known_hosts"
DEADLINE = 300.0
"""Seconds until ssh must answer; it takes about 25 under TCG on two idle cores."""

_POLL = 0.5
_QEMU_SECONDS = 60.0
_MONITOR_SECONDS = 20.0
_TAIL = 64 << 10
_PANIC = re.compile(r"Kernel panic - not syncing[^\r\n]*")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True)
class Record:
    """What is known of a machine besides its files."""

    name: str
    architecture: str
    memory: tuple[int, ...]
    """Bytes of each NUMA node."""
    cpus: int
    accelerator: str
    kernel: str
    """Release, and how it is booted; for people."""
    words: str
    """Kernel arguments that were asked for."""
    image: str
    """Name of the image in the cache that the disk lies over."""
    key: Path
    port: int
    command: tuple[str, ...]
    """QEMU's command line, to be run in the directory of the machine."""


@dataclass(frozen=True)
class SystemMachine:
    """A machine with a directory of its own. It outlives the process that started it, until ``stop``."""

    record: Record
    directory: Path

    @property
    def running(self) -> bool:
        """True while QEMU runs; that says nothing about the system in it."""
        return running_pid(self.directory / PID_FILE) is not None

    def require_running(self) -> None:
        """Raise InputError when QEMU does not run."""
        if not self.running:
            name = self.record.name
            raise InputError(
                f"machine {name} is off, or its QEMU has died: hugepage-qa lab power-on {name}, or lab down {name};"
                f" see {self.serial_log}"
            )

    @property
    def serial_log(self) -> Path:
        """Everything that the machine printed on its console, all boots."""
        return self.directory.parent / Path(serial_log(self.record.name)).name

    @property
    def shell(self) -> SecureShell:
        """How the machine is reached."""
        return SecureShell(self.record.port, self.record.key, self.directory / KNOWN_HOSTS)

    def start(self) -> None:
        """Start QEMU; InputError with its complaint when it cannot. The system in it takes its time to come up."""
        try:
            # it ends when the machine runs, which goes on in a session of its own
            with Child(self.record.command, directory=self.directory, output=DISCARDED, errors=PIPE) as starter:
                _, errors = starter.read(_QEMU_SECONDS)
        except TimeoutError:
            kill_emulator(self.directory / PID_FILE)
            raise InputError(f"machine {self.record.name}: QEMU did not start within {_QEMU_SECONDS:g} s") from None
        if starter.exit_code != 0:
            said = [line.strip() for line in errors.splitlines() if line.strip()]
            raise InputError(f"machine {self.record.name}: {said[-1] if said else 'QEMU failed, no message'}")

    def wait(self, deadline: float = DEADLINE, *, other_than: str | None = None, since: int = 0) -> str:
        """Wait until the machine answers over ssh and return its boot id; with ``other_than``, until it has another.

        Raises InputError after ``deadline`` seconds, and at once when QEMU ends or the kernel panics in what the
        machine printed after the first ``since`` bytes of its serial log.
        """
        end = time.monotonic() + deadline
        while True:
            boot_id = self.shell.boot_id()
            if boot_id is not None and boot_id != other_than:
                return boot_id
            if not self.running:
                raise self._failure("QEMU ended")
            panic = _PANIC.search(self._printed(since))
            if panic:
                raise self._failure(panic[0])
            if time.monotonic() > end:
                what = "ssh never came up" if other_than is None else "it did not reboot"
                raise self._failure(f"{what} within {deadline:g} s")
            time.sleep(_POLL)

    def reboot(self, deadline: float = DEADLINE) -> str:
        """Let the system reboot itself, wait until it is up again and return the new boot id."""
        before, since = self.wait(deadline), self._log_size()
        # the connection may break before the command has answered
        with suppress(InputError):
            self.shell.run(["systemctl", "reboot"])
        return self.wait(deadline, other_than=before, since=since)

    def reset(self, deadline: float = DEADLINE) -> str:
        """Reset the machine, wait until the system is up again and return the new boot id."""
        before, since = self.shell.boot_id(), self._log_size()
        self.press_reset()
        return self.wait(deadline, other_than=before, since=since)

    def press_reset(self) -> None:
        """Press the reset button and do not wait; InputError when QEMU does not answer, or qemu.qmp is missing."""
        with Monitor(self.directory / QMP_SOCKET, _MONITOR_SECONDS) as monitor:
            monitor.ask("system_reset", seconds=_MONITOR_SECONDS)

    def power_cut(self) -> None:
        """Take the power away: what the system had not flushed to its disk is lost."""
        kill_emulator(self.directory / PID_FILE)

    def power_on(self, deadline: float = DEADLINE) -> str:
        """Start the machine on its disk, wait until it is up and return the boot id."""
        if self.running:
            raise InputError(f"machine {self.record.name} is running already")
        since = self._log_size()
        self.start()
        return self.wait(deadline, since=since)

    def _log_size(self) -> int:
        return self.serial_log.stat().st_size if self.serial_log.exists() else 0

    def _printed(self, since: int) -> str:
        """Return the end of what the machine printed after ``since`` bytes, without what moves a terminal's cursor."""
        if not self.serial_log.exists():
            return ""
        with self.serial_log.open("rb") as log:
            log.seek(max(since, self._log_size() - _TAIL))
            return _CONTROL.sub("", log.read().decode(errors="replace"))

    def _failure(self, what: str) -> InputError:
        lines = [line.strip() for line in self._printed(0).splitlines() if line.strip()]
        last = " | ".join(line[:160] for line in lines[-3:]) or "nothing"
        return InputError(f"machine {self.record.name}: {what}; last on the console: {last}; see {self.serial_log}")


# A pid in a file may long belong to somebody else; the kernel names the process that holds a lock now.
# struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid
_FLOCK = "hhqqi4x"
_GONE_SECONDS = 30.0


def running_pid(pid_file: Path) -> int | None:
    """Return the process id of the QEMU that holds ``pid_file``, None when none runs."""
    try:
        file = os.open(pid_file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        question = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, question))
    finally:
        os.close(file)
    return None if kind == fcntl.F_UNLCK else pid


def kill_emulator(pid_file: Path) -> None:
    """End the QEMU that holds ``pid_file`` as a power cut would, and wait until it is gone."""
    pid = running_pid(pid_file)
    if pid is None:
        return
    with suppress(ProcessLookupError), RunningProcess(pid) as process:
        # the pid may have passed to another process before it was held
        if running_pid(pid_file) == pid:
            process.kill()
            process.wait(_GONE_SECONDS)
