"""ssh into a system machine: command lines, commands, and whether it has come up."""

import shlex
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.process.child import Completed, complaint, run_to_end
from hugepage_qa.qemu.system.build_tools import SSH, program

USER = "root"
ADDRESS = "127.0.0.1"
_FAILED = 255
"""ssh's own exit code when it did not reach the machine."""
_GREETING_SECONDS = 3.0


@dataclass(frozen=True)
class SecureShell:
    """How one machine is reached. The user's own ssh configuration plays no part."""

    port: int
    key: Path
    known_hosts: Path

    @property
    def options(self) -> tuple[str, ...]:
        """ssh's options, without its program name and without the address."""
        settings = {
            "BatchMode": "yes",
            "IdentitiesOnly": "yes",
            "IdentityFile": f'"{self.key}"',
            "UserKnownHostsFile": f'"{self.known_hosts}"',
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "yes",
            "ConnectTimeout": "10",
            "ServerAliveInterval": "15",
            "LogLevel": "ERROR",
        }
        return ("-F", "/dev/null", *(f"-o{name}={value}" for name, value in settings.items()), "-p", str(self.port))

    def command_line(self, words: Sequence[str] = (), *, terminal: bool = False) -> list[str]:
        """Return the ssh command line that runs ``words`` in the machine, a login shell without any.

        ssh hands them to the machine's shell joined by spaces; quote them where that matters.
        """
        return [program(SSH), *(["-t"] if terminal else []), *self.options, f"{USER}@{ADDRESS}", "--", *words]

    def run(self, command: Sequence[str], timeout: float = 120.0) -> str:
        """Run ``command`` in the machine, each word as it is, and return its standard output.

        Raises InputError when it fails, when the machine cannot be reached, and after ``timeout`` seconds.
        """
        done = self._call(shlex.join(command), timeout)
        if done is None or done.returncode == _FAILED:
            why = complaint(done) if done else f"no answer within {timeout:g} s"
            raise InputError(f"machine on port {self.port} cannot be reached: {why}")
        if done.returncode != 0:
            raise InputError(f"{shlex.join(command)} failed in the machine: {complaint(done)}")
        return done.stdout

    def boot_id(self, timeout: float = 20.0) -> str | None:
        """Return the machine's boot id, which is another after every boot; None while it cannot be reached."""
        if not self._greets():
            return None
        done = self._call("cat /proc/sys/kernel/random/boot_id", timeout)
        return done.stdout.strip() if done and done.returncode == 0 and done.stdout.strip() else None

    def _greets(self) -> bool:
        """True if sshd says its first words.

        QEMU's user network takes every connection at once, whether somebody listens in the machine or not, and ssh
        waits for its greeting much longer than it takes to ask again.
        """
        try:
            with socket.create_connection((ADDRESS, self.port), _GREETING_SECONDS) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    def _call(self, remote: str, timeout: float) -> Completed | None:
        with suppress(TimeoutError):
            return run_to_end(self.command_line([remote]), seconds=timeout)
        return None
