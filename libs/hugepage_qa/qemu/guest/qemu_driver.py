"""Guests under QEMU alone, through its monitor: for machines without libvirt, and to tell whose fault it is."""

import json
import os
import shutil
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hugepage_qa.errors import InputError
from hugepage_qa.process.child import run_to_end
from hugepage_qa.qemu.guest.booted_states import BootedStates
from hugepage_qa.qemu.guest.driver import Driver, GuestError, State, refusal_of
from hugepage_qa.qemu.guest.file_server import start_file_server
from hugepage_qa.qemu.guest.guest_description import GuestDescription, MemoryDevice
from hugepage_qa.qemu.guest.guest_site import NotHere, Site
from hugepage_qa.qemu.guest.qemu_command import memory_device, qemu_arguments
from hugepage_qa.qemu.guest.qemu_migration import (
    COMPLETED,
    await_status,
    cancel,
    hasten,
    receive,
    send,
    send_slowly,
    start_postcopy,
)
from hugepage_qa.qemu.guest.qemu_process import QemuProcess
from hugepage_qa.qemu.installed_emulator import Part, expect_offered, expect_part
from hugepage_qa.qemu.qmp_monitor import require_qmp

_KVM = Path("/dev/kvm")


class QemuDriver(Driver):
    """Starts the emulator of ``site``, with sockets in its directory; a definition is a JSON list of arguments.

    Raises NotOffered where the emulator has not what a definition or a device asks for.
    """

    def __init__(self, site: Site, booted: BootedStates | None = None) -> None:
        """Raises NotHere without the Python package qemu.qmp."""
        super().__init__(site, booted)
        try:
            require_qmp()
        except InputError as error:
            raise NotHere(str(error)) from error
        self._directory = Path(site.directory)
        self._definitions: dict[str, list[str]] = {}
        self._running: dict[str, QemuProcess] = {}
        self._group: str | None = None
        self._become: Sequence[str] = ()

    @staticmethod
    def definition_of(guest: GuestDescription, site: Site) -> str:
        return json.dumps(qemu_arguments(guest, site))

    @staticmethod
    def device_of(guest: GuestDescription, device: MemoryDevice, site: Site) -> str:
        return memory_device(guest, device, site)

    def define(self, name: str, definition: str) -> None:
        self._definitions[name] = json.loads(definition)

    def start(self, name: str, paused: bool) -> None:
        """Start QEMU, and wait until its monitor answers: all memory that is to be preallocated is there then."""
        self._start(name, ["-S"] if paused else [])

    def race(self, names: Sequence[str]) -> list[str]:
        for name in names:
            self._spawn(name, ["-S"])
        return [refusal_of(partial(self._connect, name)) for name in names]

    def start_killed(self, name: str, seconds: float) -> None:
        self._spawn(name, [])
        time.sleep(seconds)
        self._running[name].kill()
        self.destroy(name)

    def enter_group(self, path: str | None) -> None:
        self._group = path

    def run_as(self, user: int | None) -> None:
        """Start QEMU as ``user`` from now on; None: as who we are.

        The user may read every file, as the guest's kernel may lie in somebody's home, and write in ``directory``.
        Raises NotHere where nobody can be made such a user.
        """
        self._become = () if user is None else _become(user)
        os.chown(self._directory, os.geteuid() if user is None else user, -1)

    def give_mounts(self, user: int) -> None:
        """Have ``user`` own the hugetlbfs of each page size."""
        for point in self._site.mounts.values():
            os.chown(point, user, -1)

    def state(self, name: str) -> State:
        """Ask its monitor; a QEMU that has ended is off."""
        running = self._running.get(name)
        if running is None or running.has_ended:
            return State.OFF
        try:
            status = running.ask("query-status")
        except (GuestError, InputError):
            if running.has_ended:
                return State.OFF
            raise
        if status["status"] == "guest-panicked":
            return State.PANICKED
        return State.RUNNING if status["running"] else State.PAUSED

    def pid(self, name: str) -> int:
        return self._find(name).pid

    def resume(self, name: str) -> None:
        self._find(name).ask("cont")

    def pause(self, name: str) -> None:
        self._find(name).ask("stop")

    def reset(self, name: str) -> None:
        self._find(name).ask("system_reset")

    def go_on(self, name: str, path: str) -> None:
        self.restore(name, path)

    def end(self, name: str) -> None:
        self.destroy(name)

    def destroy(self, name: str) -> None:
        running = self._running.pop(name, None)
        if running is not None:
            running.end()

    def save(self, name: str, path: str) -> None:
        """Migrate it into the file ``path`` and end it."""
        self._find(name).ask("stop")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            self._find(name).give(descriptor, "saved")
        finally:
            os.close(descriptor)
        send(self._find(name), "fd:saved")
        await_status(self._find(name), COMPLETED)
        self.destroy(name)

    def restore(self, name: str, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._start(name, ["-S", "-incoming", f"fd:{descriptor}"], (descriptor,))
        finally:
            os.close(descriptor)
        guest = self._find(name)
        guest.await_condition(lambda: guest.ask("query-status")["status"] != "inmigrate", "does not come in")

    def receive(self, name: str, definition: str, postcopy: bool) -> str:
        """Start QEMU, which waits at a socket for the guest."""
        self.define(name, definition)
        self._start(name, ["-incoming", "defer"])
        destination = f"unix:{self._directory / name}.migration"
        try:
            receive(self._find(name), destination, postcopy)
        except GuestError:
            self.destroy(name)
            raise
        return destination

    def definition_elsewhere(self, _name: str, definition: str, _directory: str) -> str:
        """Return ``definition``: QEMU gives devices from the start the places of those that are plugged in."""
        return definition

    def send(self, name: str, destination: str, postcopy: bool) -> None:
        send_slowly(self._find(name), destination, postcopy)

    def start_postcopy(self, name: str) -> None:
        start_postcopy(self._find(name))

    def finish_migration(self, name: str) -> None:
        hasten(self._find(name))
        await_status(self._find(name), COMPLETED)
        self.destroy(name)

    def cancel_migration(self, name: str) -> None:
        cancel(self._find(name))

    def attach(self, name: str, device: str) -> None:
        """Add the backend and the device; when the device is refused, the backend goes again."""
        document = json.loads(device)
        guest = self._find(name)
        expect_part(self._site.emulator, Part.DEVICE, document["device"]["driver"])
        guest.ask("object-add", **document["backend"])
        try:
            guest.ask("device_add", **document["device"])
        except GuestError:
            guest.ask("object-del", id=document["backend"]["id"])
            raise

    def detach(self, name: str, device: str) -> None:
        """Ask for the device, wait until the guest has let go of it, and remove its backend."""
        document = json.loads(device)
        identifier = document["device"]["id"]
        guest = self._find(name)
        guest.ask("device_del", id=identifier)
        guest.await_condition(
            lambda: all(one["data"].get("id") != identifier for one in guest.ask("query-memory-devices")),
            f"the guest keeps {identifier}",
        )
        guest.ask("object-del", id=document["backend"]["id"])

    def add_backend(self, name: str, backend: str) -> None:
        """Add the memory backend that ``backend`` describes in JSON: it has its memory, and no device has it."""
        self._find(name).ask("object-add", **json.loads(backend))

    def remove_backend(self, name: str, identifier: str) -> None:
        """Remove a memory backend that no device has."""
        self._find(name).ask("object-del", id=identifier)

    def quit(self, name: str) -> None:
        """Have QEMU end by itself, after which it is off."""
        self._find(name).ask("quit")

    def start_file_server(self, name: str) -> None:
        if name in self._peers:
            self.end_peer(name)
        directory, socket = Path(self._site.shared(name)), Path(self._site.file_server(name))
        self._peers[name] = start_file_server(self._site.virtiofsd, directory, socket, self._site.environment)

    def set_balloon(self, name: str, memory: int) -> None:
        self._find(name).ask("balloon", value=memory)

    def balloon(self, name: str) -> int:
        return int(self._find(name).ask("query-balloon")["actual"])

    def monitor(self, name: str, command: str, arguments: dict[str, Any]) -> Any:
        return self._find(name).ask(command, **arguments)

    def request(self, name: str, device: str, memory: int) -> None:
        identifier = json.loads(device)["device"]["id"]
        self._find(name).ask(
            "qom-set", path=f"/machine/peripheral/{identifier}", property="requested-size", value=memory
        )

    def close(self) -> None:
        for name in list(self._running):
            self.destroy(name)
        super().close()

    def _start(self, name: str, more: Sequence[str], descriptors: tuple[int, ...] = ()) -> None:
        self._spawn(name, more, descriptors)
        self._connect(name)

    def _spawn(self, name: str, more: Sequence[str], descriptors: tuple[int, ...] = ()) -> None:
        if self.state(name) is not State.OFF:
            raise GuestError(f"{name} runs already")
        self.destroy(name)
        expect_offered(self._site.emulator, self._definitions[name])
        command = [*self._become, self._site.emulator, *self._definitions[name], *more]
        self._running[name] = QemuProcess(name, self._directory, command, descriptors, self._group)

    def _connect(self, name: str) -> None:
        try:
            self._running[name].connect()
        except (GuestError, InputError):
            self.destroy(name)
            raise

    def _find(self, name: str) -> QemuProcess:
        running = self._running.get(name)
        if running is None:
            raise GuestError(f"{name} does not run")
        if running.has_ended:
            raise running.why_it_ended()
        return running


def _become(user: int) -> Sequence[str]:
    """Return what starts a program as ``user`` without privileges but CAP_DAC_READ_SEARCH. Raises NotHere."""
    program = shutil.which("setpriv")
    if program is None:
        raise NotHere("the program setpriv is not installed: install util-linux")
    right = "-all,+dac_read_search"
    words = [program, f"--reuid={user}", f"--regid={user}", f"--inh-caps={right}", f"--ambient-caps={right}"]
    # who may use KVM at all
    words.append(f"--groups={_KVM.stat().st_gid}" if _KVM.exists() else "--clear-groups")
    # a change of the user forgets what the tether asked for
    command = [*words, "--no-new-privs", "--pdeathsig=KILL", "--"]
    tried = run_to_end([*command, program, "--version"])
    if tried.returncode != 0:
        raise NotHere(" ".join(f"nobody can be made a user without privileges here: {tried.stderr}".split()))
    return command
