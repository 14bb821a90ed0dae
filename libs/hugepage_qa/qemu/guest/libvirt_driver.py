"""Guests under libvirt, through its Python binding."""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any
from xml.etree import ElementTree

from hugepage_qa.errors import InputError
from hugepage_qa.process.process_table import has_ended
from hugepage_qa.qemu.guest.booted_states import BootedStates
from hugepage_qa.qemu.guest.domain_xml import domain_xml, memory_device_xml
from hugepage_qa.qemu.guest.driver import GuestError, State, await_condition, refusal_of
from hugepage_qa.qemu.guest.guest_description import GuestDescription, MemoryDevice
from hugepage_qa.qemu.guest.guest_site import Site
from hugepage_qa.qemu.guest.libvirt_daemon import PrivateDaemon
from hugepage_qa.qemu.guest.libvirt_host import LibvirtHost
from hugepage_qa.qemu.guest.libvirt_migration import LibvirtMigration, destination

# what an emulated guest does on a busy machine takes minutes
_END_SECONDS = 300.0
_PAUSE_SECONDS = 0.02
#: on a busy machine QEMU may end between its socket and libvirt's connect(2), or before libvirt finds what it said:
#: then only the log tells why
_WITHOUT_A_REASON = re.compile(r"failed to connect to monitor socket|process exited while connecting to monitor$")

#: the model of a memory device
_VIRTIO_MEM = "virtio-mem"


class LibvirtDriver(LibvirtHost):
    """Persistent domains of ``daemon``; a definition is XML."""

    def __init__(self, site: Site, daemon: PrivateDaemon, booted: BootedStates | None = None) -> None:
        """Raises NotHere without the binding, InputError when the daemon does not answer."""
        super().__init__(site, daemon, booted)
        self._names: set[str] = set()
        self._definitions: dict[str, str] = {}
        self._migrations: dict[str, LibvirtMigration] = {}

    @staticmethod
    def definition_of(guest: GuestDescription, site: Site) -> str:
        return domain_xml(guest, site)

    @staticmethod
    def device_of(guest: GuestDescription, device: MemoryDevice, site: Site) -> str:
        return memory_device_xml(guest, device, site)

    def define(self, name: str, definition: str) -> None:
        self._names.add(name)
        self._definitions[name] = definition
        self._call(partial(self._connection.defineXML, definition))

    def start(self, name: str, paused: bool) -> None:
        try:
            self._create(name, paused)
        except GuestError as error:
            if not _WITHOUT_A_REASON.search(str(error)):
                raise
            raise GuestError(f"{error}: {self._daemon.last_said(name, str(error))}") from error

    def _create(self, name: str, paused: bool) -> None:
        flags = self._libvirt.VIR_DOMAIN_START_PAUSED if paused else 0
        self._call(partial(self._find(name).createWithFlags, flags))

    def said(self, name: str) -> str:
        """Return the last line that the QEMU of a domain said since its start. Raises InputError."""
        return self._daemon.last_said(name, "it was refused")

    def race(self, names: Sequence[str]) -> list[str]:
        with ThreadPoolExecutor(len(names)) as threads:
            return list(threads.map(lambda name: refusal_of(partial(self.start, name, True)), names))

    def start_killed(self, name: str, seconds: float) -> None:
        with ThreadPoolExecutor(1) as threads:
            # one that is killed has said nothing of why
            started = threads.submit(refusal_of, partial(self._create, name, False))
            time.sleep(seconds)
            # before there is a process, there is nothing to be killed
            while not (killed := self._kill(name)) and not started.done():
                time.sleep(_PAUSE_SECONDS)
            started.result()
        # without one it was refused, or came up at the last moment
        for pid in killed or self._kill(name):
            self.await_end(name, pid, _END_SECONDS)

    def _kill(self, name: str) -> list[int]:
        """Kill its QEMU, and return the processes that this was: none where it has none."""
        with suppress(GuestError, ProcessLookupError):
            pid = self.pid(name)
            os.kill(pid, signal.SIGKILL)
            return [pid]
        return []

    def state(self, name: str) -> State:
        """Ask libvirt; a domain that it does not know is off."""
        try:
            domain = self._connection.lookupByName(name)
            state, _reason = domain.state()
            if state == self._libvirt.VIR_DOMAIN_SHUTOFF:
                return State.SAVED if domain.hasManagedSaveImage() else State.OFF
        except self._libvirt.libvirtError as error:
            if error.get_error_code() == self._libvirt.VIR_ERR_NO_DOMAIN:
                return State.OFF
            raise self._judged(error) from error
        if state == self._libvirt.VIR_DOMAIN_CRASHED:
            return State.PANICKED
        return State.RUNNING if state == self._libvirt.VIR_DOMAIN_RUNNING else State.PAUSED

    def pid(self, name: str) -> int:
        """Read what the daemon keeps: no call of libvirt tells."""
        try:
            return int(self._daemon.pid_file(name).read_text(encoding="ascii"))
        except (OSError, ValueError) as error:
            raise GuestError(f"no process is the QEMU of {name}: {error}") from error

    def resume(self, name: str) -> None:
        self._call(self._find(name).resume)

    def pause(self, name: str) -> None:
        self._call(self._find(name).suspend)

    def reset(self, name: str) -> None:
        self._call(self._find(name).reset)

    def destroy(self, name: str) -> None:
        """Destroy the domain if it runs, forget it and what it saved, and wait for the end of its QEMU."""
        self.end(name)
        with suppress(GuestError):
            flag = self._libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
            self._call(partial(self._find(name).undefineFlags, flag))
        self._forget_migration(name)

    def end(self, name: str) -> None:
        with suppress(GuestError):
            self._end(name, self._find(name).destroy)

    def start_file_server(self, name: str) -> None:
        """Nothing to do: libvirt starts one with each guest that has such a file system."""

    def save(self, name: str, path: str) -> None:
        self._end(name, partial(self._find(name).save, path))

    def managed_save(self, name: str) -> None:
        """Write its memory to a file of libvirt's, from which the next start has it, and end it."""
        self._end(name, self._find(name).managedSave)

    def restore(self, name: str, path: str) -> None:
        """Restore the domain; the file knows its definition."""
        self._restore(name, path, None)

    def go_on(self, name: str, path: str) -> None:
        self._restore(name, path, self._definitions[name])

    def _restore(self, name: str, path: str, definition: str | None) -> None:
        self._names.add(name)
        paused = self._libvirt.VIR_DOMAIN_SAVE_PAUSED
        self._call(partial(self._connection.restoreFlags, path, definition, paused))

    def receive(self, name: str, definition: str, _postcopy: bool) -> str:
        """Nothing to do: the daemon starts it when the source tells it to."""
        self._names.add(name)
        return destination(self._daemon.uri, f"{self._site.directory}/{name}.migration", definition)

    def definition_elsewhere(self, name: str, _definition: str, directory: str) -> str:
        """Return what the domain is now: libvirt expects devices where they are (virDomainDefCheckABIStability)."""
        now = self._call(partial(self._find(name).XMLDesc, self._libvirt.VIR_DOMAIN_XML_MIGRATABLE))
        return str(now).replace(self._site.directory, directory)

    def send(self, name: str, destination: str, postcopy: bool) -> None:
        self._forget_migration(name)
        start = partial(LibvirtMigration, self._libvirt, self._find(name), destination, postcopy)
        self._migrations[name] = self._call(start)
        self._call(self._migrations[name].await_sending)

    def start_postcopy(self, name: str) -> None:
        self._call(self._migration(name).start_postcopy)

    def finish_migration(self, name: str) -> None:
        self._end(name, self._migration(name).finish)

    def cancel_migration(self, name: str) -> None:
        self._call(self._migration(name).cancel)

    def _migration(self, name: str) -> LibvirtMigration:
        if name not in self._migrations:
            raise GuestError(f"{name} is not being migrated")
        return self._migrations[name]

    def _forget_migration(self, name: str) -> None:
        migration = self._migrations.pop(name, None)
        if migration is not None:
            migration.end()

    def attach(self, name: str, device: str) -> None:
        self._call(partial(self._find(name).attachDevice, device))

    def detach(self, name: str, device: str) -> None:
        """Unplug it and wait until libvirt has forgotten it."""
        domain = self._find(name)

        def memory_devices() -> int:
            return int(self._call(domain.XMLDesc).count("<memory model="))

        before = memory_devices()
        if ElementTree.fromstring(device).get("model") == _VIRTIO_MEM:  # noqa: S314 - our own
            # as it is now: libvirt finds none of which another size is requested
            device = ElementTree.tostring(self._virtio_mem(name), encoding="unicode")
        self._call(partial(domain.detachDevice, device))
        await_condition(
            lambda: memory_devices() < before,
            _END_SECONDS,
            f"{name}: the guest does not give its memory device back",
        )

    def set_balloon(self, name: str, memory: int) -> None:
        self._call(partial(self._find(name).setMemory, memory // 1024))

    def balloon(self, name: str) -> int:
        return int(self._call(self._find(name).memoryStats)["actual"]) * 1024

    def monitor(self, name: str, command: str, arguments: dict[str, Any]) -> Any:
        import libvirt_qemu  # noqa: PLC0415 - a part of an optional package

        words = json.dumps({"execute": command, "arguments": arguments})
        answer = json.loads(self._call(partial(libvirt_qemu.qemuMonitorCommand, self._find(name), words, 0)))
        if "error" in answer:
            raise GuestError(f"{command}: {answer['error']['desc']}")
        return answer["return"]

    def request(self, name: str, _device: str, memory: int) -> None:
        itself = self._virtio_mem(name)
        for requested in itself.iterfind("./target/requested"):
            requested.set("unit", "b")
            requested.text = str(memory)
        self._call(partial(self._find(name).updateDeviceFlags, ElementTree.tostring(itself, encoding="unicode")))

    def _virtio_mem(self, name: str) -> ElementTree.Element:
        """Return the virtio-mem device of a domain with the address that libvirt knows it by. Raises GuestError."""
        described = ElementTree.fromstring(self._call(self._find(name).XMLDesc))  # noqa: S314 - of the daemon
        itself = described.find(f"./devices/memory[@model='{_VIRTIO_MEM}']")
        if itself is None:
            raise GuestError(f"{name} has no virtio-mem device")
        return itself

    def restart(self, number: int, killed: int | None) -> None:
        """End the daemon with the signal ``number`` and start it again; the process ``killed`` is killed meanwhile."""
        self._daemon.stop(signal.Signals(number))
        if killed is not None:
            os.kill(killed, signal.SIGKILL)
        self._start_daemon()

    def start_interrupted(self, name: str, seconds: float) -> None:
        """Start a guest, kill the daemon ``seconds`` later, wherever it is then, and start the daemon again."""
        with ThreadPoolExecutor(1) as threads:
            started = threads.submit(refusal_of, partial(self.start, name, True))
            time.sleep(seconds)
            self._daemon.stop(signal.SIGKILL)
            # nobody answers
            with suppress(InputError):
                started.result()
        self._start_daemon()

    def close(self) -> None:
        """Destroy and forget the domains that were defined here."""
        for name in self._names:
            # a daemon that is out of reach takes its guests with it: they end with its namespace
            with suppress(InputError):
                self.destroy(name)
        super().close()

    def _end(self, name: str, end: Callable[[], Any]) -> None:
        """Call what ends the domain, and wait until its QEMU has given back its memory."""
        pid = None
        with suppress(GuestError):
            pid = self.pid(name)
        self._call(end)
        if pid is not None:
            await_condition(partial(has_ended, pid), _END_SECONDS, f"{name}: its QEMU, process {pid}, does not end")

    def _find(self, name: str) -> Any:
        return self._call(partial(self._connection.lookupByName, name))
