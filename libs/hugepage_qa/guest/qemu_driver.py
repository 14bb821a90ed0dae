"""Guests under QEMU alone, through its monitor: for machines without libvirt, and to tell whose fault it is."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from hugepage_qa.guest.driver import GuestError, NotHere, State
from hugepage_qa.machine.processes import has_ended

_TETHER = Path(__file__).parents[1] / "lab" / "tether.py"

# preallocating hundreds of GiB takes minutes
_START_SECONDS = 300.0
_ANSWER_SECONDS = 60.0
_PAUSE_SECONDS = 0.02

# a group is entered before the memory is there: what was charged elsewhere stays charged there
_ENTER_GROUP = ("/bin/sh", "-c", 'echo $$ >"$1" && shift && exec "$@"', "sh")


class _Running:
    """A QEMU process and its monitor."""

    def __init__(self, process: subprocess.Popen[bytes], errors: Path) -> None:
        self.process = process
        self.errors = errors
        self.monitor: Any = None


class QemuDriver:
    """Starts ``emulator``, with its sockets in ``directory``; a definition is a JSON list of arguments."""

    def __init__(self, emulator: str, directory: Path) -> None:
        """Raises NotHere without the Python package qemu.qmp."""
        try:
            from qemu.qmp.legacy import QEMUMonitorProtocol  # noqa: PLC0415 - an optional package
        except ImportError as error:
            raise NotHere("the Python package qemu.qmp is not installed: install hugepage-qa[guest]") from error
        self._monitor: Callable[[str], Any] = QEMUMonitorProtocol
        self._emulator = emulator
        self._directory = directory
        self._definitions: dict[str, list[str]] = {}
        self._running: dict[str, _Running] = {}
        self._group: str | None = None

    def define(self, name: str, definition: str) -> None:
        """Keep the arguments for its next start."""
        self._definitions[name] = json.loads(definition)

    def start(self, name: str, paused: bool) -> None:
        """Start QEMU, and wait until its monitor answers: all memory that is to be preallocated is there then."""
        self._start(name, ["-S"] if paused else [])

    def race(self, names: Sequence[str]) -> list[str]:
        """Start all at once, paused, and return for each why it was refused, empty for success."""
        for name in names:
            self._spawn(name, ["-S"])
        return [_refusal_of(partial(self._connect, name)) for name in names]

    def start_killed(self, name: str, seconds: float) -> None:
        """Start it, have its QEMU killed ``seconds`` later, and wait until it is gone."""
        self._spawn(name, [])
        process = self._running[name].process
        time.sleep(seconds)
        process.kill()
        self.destroy(name)

    def enter_group(self, path: str | None) -> None:
        """Start QEMU in the control group ``path`` from now on; None leaves it where we are."""
        self._group = path

    def state(self, name: str) -> State:
        """Ask its monitor; a QEMU that has ended is off."""
        running = self._running.get(name)
        if running is None or running.process.poll() is not None:
            return State.OFF
        with suppress(GuestError):
            return State.RUNNING if self._ask(name, "query-status")["running"] else State.PAUSED
        return State.OFF if has_ended(running.process.pid) else State.PAUSED

    def pid(self, name: str) -> int:
        """Return the process id."""
        return self._find(name).process.pid

    def resume(self, name: str) -> None:
        """Let the CPUs run."""
        self._ask(name, "cont")

    def destroy(self, name: str) -> None:
        """Kill QEMU and wait for its end."""
        running = self._running.pop(name, None)
        if running is None:
            return
        running.process.kill()
        running.process.wait()
        self._disconnect(running)

    def save(self, name: str, path: str) -> None:
        """Migrate it into the file ``path`` and end it."""
        self._ask(name, "stop")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            self._find(name).monitor.send_fd_scm(descriptor)
            self._ask(name, "getfd", fdname="saved")
        finally:
            os.close(descriptor)
        self._migrate(name, "fd:saved")
        self.destroy(name)

    def restore(self, name: str, path: str) -> None:
        """Start it with the memory in ``path``."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._start(name, ["-S", "-incoming", f"fd:{descriptor}"], (descriptor,))
        finally:
            os.close(descriptor)
        self._await(name, lambda: self._ask(name, "query-status")["status"] != "inmigrate", "does not come in")

    def migrate(self, name: str, target: str, definition: str) -> None:
        """Have the guest go on as ``target``, started from ``definition``; when this raises, it stays as it is."""
        self.define(target, definition)
        path = str(self._directory / f"{target}.migration")
        self._start(target, ["-S", "-incoming", f"unix:{path}"])
        self._migrate(name, f"unix:{path}")
        self.destroy(name)

    def attach(self, name: str, device: str) -> None:
        """Add the backend and the device; when the device is refused, the backend goes again."""
        document = json.loads(device)
        self._ask(name, "object-add", **document["backend"])
        try:
            self._ask(name, "device_add", **document["device"])
        except GuestError:
            self._ask(name, "object-del", id=document["backend"]["id"])
            raise

    def detach(self, name: str, device: str) -> None:
        """Ask for the device, wait until the guest has let go of it, and remove its backend."""
        document = json.loads(device)
        identifier = document["device"]["id"]
        self._ask(name, "device_del", id=identifier)
        self._await(name, lambda: identifier not in self._devices(name), f"the guest keeps {identifier}")
        self._ask(name, "object-del", id=document["backend"]["id"])

    def set_balloon(self, name: str, memory: int) -> None:
        """Set the balloon's target."""
        self._ask(name, "balloon", value=memory)

    def request(self, name: str, device: str, memory: int) -> None:
        """Set how many bytes of the virtio-mem device the guest is to have."""
        identifier = json.loads(device)["device"]["id"]
        self._ask(name, "qom-set", path=f"/machine/peripheral/{identifier}", property="requested-size", value=memory)

    def close(self) -> None:
        """Kill every QEMU."""
        for name in list(self._running):
            self.destroy(name)

    def _start(self, name: str, more: Sequence[str], descriptors: tuple[int, ...] = ()) -> None:
        self._spawn(name, more, descriptors)
        self._connect(name)

    def _spawn(self, name: str, more: Sequence[str], descriptors: tuple[int, ...] = ()) -> None:
        if self.state(name) is not State.OFF:
            raise GuestError(f"{name} runs already")
        self.destroy(name)
        path = self._monitor_path(name)
        path.unlink(missing_ok=True)
        errors = self._directory / f"{name}.errors"
        command = [self._emulator, *self._definitions[name], "-qmp", f"unix:{path},server=on,wait=off", *more]
        if self._group is not None:
            command = [*_ENTER_GROUP, f"{self._group}/cgroup.procs", *command]
        with errors.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_TETHER), str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                pass_fds=descriptors,
            )
        self._running[name] = _Running(process, errors)

    def _connect(self, name: str) -> None:
        running = self._running[name]
        try:
            running.monitor = self._reach(running, self._monitor_path(name))
        except GuestError:
            self.destroy(name)
            raise

    def _monitor_path(self, name: str) -> Path:
        return self._directory / f"{name}.qmp"

    def _reach(self, running: _Running, path: Path) -> Any:
        deadline = time.monotonic() + _START_SECONDS
        while (monitor := self._connected(path)) is None:
            if running.process.poll() is not None:
                raise GuestError(_said(running.errors) or f"QEMU ended with exit code {running.process.returncode}")
            if time.monotonic() > deadline:
                raise GuestError(f"QEMU does not answer within {_START_SECONDS:g} s: {_said(running.errors)}")
            time.sleep(_PAUSE_SECONDS)
        monitor.settimeout(_ANSWER_SECONDS)
        return monitor

    def _connected(self, path: Path) -> Any:
        """Return a connection to the monitor, None while QEMU does not listen yet, or does no more."""
        if not path.is_socket():
            return None
        monitor = self._monitor(str(path))
        # it listens before the memory is there, and answers after that
        monitor.settimeout(_START_SECONDS)
        try:
            monitor.connect()
        except Exception:
            with suppress(Exception):
                monitor.close()
            return None
        return monitor

    def _ask(self, name: str, command: str, **arguments: object) -> Any:
        monitor = self._find(name).monitor
        try:
            return monitor.cmd(command, **{key.replace("_", "-"): value for key, value in arguments.items()})
        except Exception as error:
            raise GuestError(f"{command}: {error}") from error

    def _migrate(self, name: str, uri: str) -> None:
        self._ask(name, "migrate", uri=uri)

        def is_over() -> bool:
            status = self._ask(name, "query-migrate").get("status")
            if status in ("failed", "cancelled"):
                raise GuestError(f"migration {status}: {_said(self._find(name).errors)}")
            return bool(status == "completed")

        self._await(name, is_over, "the migration does not end")

    def _devices(self, name: str) -> list[str]:
        return [device["data"].get("id", "") for device in self._ask(name, "query-memory-devices")]

    def _await(self, name: str, is_so: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + _ANSWER_SECONDS
        while not is_so():
            if time.monotonic() > deadline:
                raise GuestError(f"{name}: {otherwise} within {_ANSWER_SECONDS:g} s")
            time.sleep(_PAUSE_SECONDS)

    def _find(self, name: str) -> _Running:
        running = self._running.get(name)
        if running is None or running.process.poll() is not None:
            said = "" if running is None else _said(running.errors)
            raise GuestError(f"{name} does not run: {said or 'nothing is said why'}")
        return running

    @staticmethod
    def _disconnect(running: _Running) -> None:
        if running.monitor is not None:
            with suppress(Exception):
                running.monitor.close()


def _refusal_of(start: Callable[[], None]) -> str:
    try:
        start()
    except GuestError as error:
        return str(error)
    return ""


def _said(errors: Path) -> str:
    return " ".join(errors.read_text(encoding="utf-8", errors="replace").split())
