"""A libvirt daemon of our own, of which nothing stays; one that the machine runs is left alone, and does not see it."""

import os
import re
import shlex
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hugepage_qa.durable import write_durably
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.proc_tables import read_mounts
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.process import subreaper
from hugepage_qa.process.child import PIPE, WITH_OUTPUT, Child, PrivateMounts, find_installed
from hugepage_qa.process.process_table import kill_and_wait
from hugepage_qa.qemu.guest.guest_site import NotHere
from hugepage_qa.qemu.guest.libvirt_configuration import QemuSettings, write_configuration

#: the one with the drivers of QEMU alone where there is one (since libvirt 5.6)
_PROGRAMS = ("virtqemud", "libvirtd")
_PLACES = ("/usr/sbin", "/usr/bin", "/usr/local/sbin")
_DRIVER = "libvirt/connection-driver/libvirt_driver_qemu.so"

#: over it lies what our own daemon reads; on Debian the packages of the daemon alone do not make it
CONFIGURATION = Path("/etc/libvirt")

_EXECUTABLE = 0o755

#: in the log that it keeps of each QEMU, before what that says after a start
_STARTING = ": starting up "
#: with a time before it or without; the command line in the log has no colon there
_SAID_BY_QEMU = re.compile(r"(?:^|Z )(?:\S*/)?qemu[\w-]*: ")


def find_daemon() -> tuple[Path, Path]:
    """Return the daemon that is installed, and QEMU's driver for it. Raises NotHere."""
    for name in _PROGRAMS:
        for place in _PLACES:
            program = Path(place, name)
            if os.access(program, os.X_OK):
                if not CONFIGURATION.is_dir():
                    raise NotHere(f"libvirt is installed without {CONFIGURATION} (Debian: package libvirt-clients)")
                return program, _find_driver()
    raise NotHere("no libvirt daemon is installed: neither virtqemud nor libvirtd is in /usr/sbin")


def _find_driver() -> Path:
    for place in ("/usr/lib64", "/usr/lib", *map(str, Path("/usr/lib").glob("*-linux-gnu*"))):
        if (driver := Path(place, _DRIVER)).exists():
            return driver
    raise NotHere(f"libvirt is installed without its driver for QEMU: no {Path(_DRIVER).name}")


def write_emulator(directory: Path, emulator: str, environment: Mapping[str, str], *, privileged: bool = True) -> Path:
    """Return a program that is ``emulator`` with ``environment``, which libvirt takes from all that it starts.

    One that is not ``privileged`` has nothing but what its user may do. Raises NotHere where it cannot be taken away.
    """
    program = directory / "bin" / Path(emulator).name
    program.parent.mkdir()
    command = [*(() if privileged else _without_capabilities()), emulator]
    words = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
    write_durably(program, f'#!/bin/sh\n{words}exec {shlex.join(command)} "$@"\n', mode=_EXECUTABLE)
    return program


def _without_capabilities() -> Sequence[str]:
    """Return what starts a program without those that libvirt gives a QEMU that it asks what it can, whoever runs it.

    With CAP_DAC_OVERRIDE it finds KVM where its user must not, and libvirt, which sees that, asks it again, for seconds
    each of the dozen times that it looks at the definition of a domain.
    """
    program = find_installed("setpriv")
    if program is None:
        raise NotHere("the program setpriv is not installed: install util-linux")
    return (program, "--inh-caps=-all", "--ambient-caps=-all", "--")


# what the daemon writes, and where it would find D-Bus and thereby machined
_HIDDEN = ("/run", "/etc/libvirt", "/var/lib", "/var/cache", "/var/log")
_START_SECONDS = 180.0
_STOP_SECONDS = 60.0


class PrivateDaemon:
    """A daemon in a mount namespace of its own, with QEMU's driver alone and one emulator to look at.

    All that it keeps is in memory, gone with its last guest. Of what lies where it writes it sees only ``visible``,
    with ``directory`` in one of them. ``settings`` are those of its QEMU, ``environment`` marks what it starts.
    """

    def __init__(
        self,
        directory: Path,
        visible: Sequence[Path],
        emulator: str,
        settings: QemuSettings,
        environment: Mapping[str, str],
    ) -> None:
        """Nothing is started yet. Raises NotHere without a daemon to start."""
        self._program, driver = find_daemon()
        self._directory = directory
        self._visible = visible
        self._pages = settings.mounts if settings.looks else None
        self._child: Child | None = None
        self._namespace: int | None = None
        self._group: str | None = None
        program = write_emulator(directory, emulator, environment, privileged=settings.user == 0)
        # where every daemon has it: a file with the memory of a guest tells where its emulator was
        self.emulator = Path("/run", program.name)
        self._bound = {**write_configuration(directory, settings), str(self.emulator): str(program)}
        # this driver and no other
        drivers = directory / "drivers"
        drivers.mkdir()
        (drivers / driver.name).symlink_to(driver)
        # it asks every emulator in PATH what it can do, each for seconds; QEMU's driver alone needs no firewall
        self._environment = {
            **{name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ},
            **environment,
            "PATH": str(self.emulator.parent),
            "LIBVIRT_DRIVER_DIR": str(drivers),
        }

    @property
    def uri(self) -> str:
        """Where a client reaches it."""
        return f"qemu:///system?socket={self._socket}"

    @property
    def pid(self) -> int:
        """Its process id. Raises InputError when it does not run."""
        try:
            return int(self._pid_file.read_text(encoding="ascii"))
        except (OSError, ValueError) as error:
            raise InputError(f"the daemon of libvirt does not run: {error}") from error

    def start(self) -> None:
        """Start it, and wait until it answers; started again, it is where it was, with the guests that it had.

        Raises InputError, with what it said, when it does not come up.
        """
        self._socket.unlink(missing_ok=True)
        descriptors = () if self._namespace is None else (self._namespace,)
        with self._log.open("ab") as log:
            self._child = Child(
                self._command(),
                environment=self._environment,
                mounts=self._mounts,
                output=log,
                errors=log,
                descriptors=descriptors,
            )
        if not self._child.wait_until(lambda: _answers(self._socket), _START_SECONDS):
            self.stop(signal.SIGKILL)
            raise InputError(f"{self._program} does not answer: {self.said[-2000:] or 'it says nothing'}")
        if self._namespace is None:
            # keeps the namespace while no daemon runs in it
            self._namespace = os.open(f"/proc/{self.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)

    @property
    def _mounts(self) -> PrivateMounts:
        visible = [str(path) for path in self._visible]
        return PrivateMounts(_HIDDEN, visible, self._bound, self._pages, self._namespace)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it with the signal ``number``, and wait until it is gone; its guests go on."""
        if self._child is not None:
            # its number may be another process's once it has ended, which its parent does with it
            if not self._child.has_ended:
                with suppress(InputError, ProcessLookupError):
                    os.kill(self.pid, number)
                    self._child.wait(_STOP_SECONDS)
            self._child.kill()
            self._child = None
            self._pid_file.unlink(missing_ok=True)

    def enter_group(self, path: str | None) -> None:
        """Move it, and thereby the guests that it starts, into the control group ``path``; with None out of it again.

        Raises OSError.
        """
        left = self._group
        self._group = path
        # out of it is into that above, the root of the hierarchy, where every process may be
        target = Path(path) if path else Path(left).parent if left else None
        if target is not None:
            (target / "cgroup.procs").write_text(f"{self.pid}\n", encoding="ascii")

    def pid_file(self, guest: str) -> Path:
        """Return the file with the process id of a guest's QEMU, seen from outside. Raises InputError."""
        return self._seen_outside / f"run/libvirt/qemu/{guest}.pid"

    def last_said(self, guest: str, refusal: str) -> str:
        """Return the last line that a guest's QEMU said since its start, which was refused with ``refusal``.

        Raises InputError where that is not known.
        """
        file = self._seen_outside / f"var/log/libvirt/qemu/{guest}.log"
        try:
            log = file.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise InputError(f"{guest}: {refusal}, and its log cannot be read: {error}") from error
        lines = [line for line in log.rpartition(_STARTING)[2].splitlines() if _SAID_BY_QEMU.search(line)]
        if not lines:
            raise InputError(f"{guest}: {refusal}, and its log does not tell why")
        return lines[-1]

    @property
    def _seen_outside(self) -> Path:
        """Its root directory, seen from outside. Raises InputError when it does not run."""
        return Path(f"/proc/{self.pid}/root")

    def unmount_pages(self, size: int) -> None:
        """Unmount each hugetlbfs of pages of ``size`` bytes that it sees, and nobody else. Raises InputError."""
        for mount in read_mounts(DirectoryTree(Path("/")), self.pid):
            # of hugetlbfs a block is a page
            if mount.type == "hugetlbfs" and os.statvfs(f"/proc/{self.pid}/root{mount.point}").f_frsize == size:
                self._run("umount", mount.point)

    def mount_pages(self, size: int) -> str:
        """Mount a hugetlbfs of pages of ``size`` bytes where it alone sees it, and return where. Raises InputError."""
        point = self._directory / f"mounted-later-{size}"
        point.mkdir(exist_ok=True)
        self._run("mount", "-t", "hugetlbfs", "-o", f"pagesize={size}", "none", str(point))
        return str(point)

    def _run(self, *command: str) -> None:
        """Run a program in its namespace."""
        if self._namespace is None:
            raise InputError("the daemon of libvirt has no namespace yet")
        inside = PrivateMounts(namespace=self._namespace)
        with Child(command, mounts=inside, descriptors=[self._namespace], output=PIPE, errors=WITH_OUTPUT) as child:
            said = child.output.read() if child.output else b""
            if child.wait() != 0:
                raise InputError(f"{' '.join(command)}: {said.decode(errors='replace')}")

    def close(self) -> None:
        """End it and all that it started, and let go of its namespace."""
        self.stop()
        if self._namespace is not None:
            # also a QEMU of which it has lost sight, because it was killed itself
            kill_and_wait([int(path.name) for path in Path("/proc").glob("[0-9]*")], self._is_inside)
            os.close(self._namespace)
            self._namespace = None

    def _is_inside(self, pid: int) -> bool:
        with suppress(OSError):
            namespace = Path(f"/proc/{pid}/ns/mnt").stat()
            return self._namespace is not None and os.path.samestat(namespace, os.fstat(self._namespace))
        return False

    @property
    def said(self) -> str:
        """All that it has said, and those before it; empty before its first start."""
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    @property
    def _log(self) -> Path:
        return self._directory / "daemon.log"

    @property
    def _socket(self) -> Path:
        return self._directory / f"{'virtqemud' if self._program.name == 'virtqemud' else 'libvirt'}-sock"

    @property
    def _pid_file(self) -> Path:
        return self._directory / "daemon.pid"

    def _command(self) -> list[str]:
        """Return what starts it; its QEMUs are orphans."""
        parent = [sys.executable, "-I", "-S", subreaper.__file__]
        options = ["--config", str(self._directory / "daemon.conf"), "--pid-file", str(self._pid_file)]
        return [*parent, str(self._program), *options]


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(str(path))
        except OSError:
            return False
    return True
