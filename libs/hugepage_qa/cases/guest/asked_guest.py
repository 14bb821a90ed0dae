"""One guest as its driver knows it: all that the driver is asked to do with it."""

import json
from typing import Any, Self

from hugepage_qa.cases.guest.guest_machine import AskedDriver
from hugepage_qa.cases.live import Live
from hugepage_qa.qemu.guest.driver import Driver, State
from hugepage_qa.qemu.guest.guest_description import GuestDescription, MemoryDevice, pages_needed
from hugepage_qa.qemu.guest.libvirt_driver import LibvirtDriver
from hugepage_qa.qemu.guest.qemu_driver import QemuDriver

#: seconds for a boot, a command or an end: in an emulated machine a guest is emulated twice
PATIENCE = 300.0


class AskedGuest:
    """One guest, by its name; everything raises GuestError when the driver refuses."""

    def __init__(self, live: Live, driver: AskedDriver, description: GuestDescription) -> None:
        self._live = live
        self._driver = driver
        self.description = description
        self.name = description.name

    @property
    def pages(self) -> int:
        """Pages of the size under test, of any node, that it takes at its start."""
        need = pages_needed(self.description)
        return sum(pages for pool, pages in need.items() if pool.size == self._live.size)

    @property
    def is_of_qemu_alone(self) -> bool:
        """Whether its driver is QEMU, without libvirt."""
        return self._driver.kind is QemuDriver

    @property
    def pid(self) -> int:
        """The process id of its QEMU."""
        return self._driver.ask(Driver.pid, self.name)

    @property
    def console(self) -> str:
        """The socket of its serial console."""
        return self._driver.site.console(self.name)

    @property
    def definition(self) -> str:
        """What its driver takes for it."""
        return self._driver.kind.definition_of(self.description, self._driver.site)

    def define(self) -> None:
        """Have it be what its description says from its next start on."""
        self.define_as(self.definition)

    def define_as(self, definition: str) -> None:
        """Have it be what ``definition``, in the words of its driver, says from its next start on."""
        self._driver.ask(Driver.define, self.name, definition)

    def define_and_start(self, definition: str) -> None:
        """Have it be what ``definition`` says, whatever its description does, and start it with its CPUs stopped."""
        self.define_as(definition)
        self.start()

    def start(self) -> None:
        """Start it with its CPUs stopped: it takes its memory, and touches none by itself."""
        self._driver.ask(Driver.start, self.name, True)

    @property
    def said(self) -> str:
        """The last line that its QEMU left in libvirt's log since its start."""
        return self._driver.ask(LibvirtDriver.said, self.name)

    def start_killed(self, seconds: float) -> None:
        """Start it, and kill its QEMU ``seconds`` later, wherever it is then."""
        self._driver.ask(Driver.start_killed, self.name, seconds)

    def start_interrupted(self, seconds: float) -> None:
        """Start it, kill the daemon ``seconds`` later, wherever it is then, and start the daemon again."""
        self._driver.ask(LibvirtDriver.start_interrupted, self.name, seconds)

    def resume(self) -> None:
        """Let its CPUs run."""
        self._driver.ask(Driver.resume, self.name)

    def pause(self) -> None:
        """Stop its CPUs."""
        self._driver.ask(Driver.pause, self.name)

    def destroy(self) -> None:
        """End it at once."""
        self._driver.ask(Driver.destroy, self.name)

    def kill(self) -> None:
        """Kill its QEMU, of which its driver is not told, and wait until both know."""
        pid = self.pid
        self._driver.ask(Driver.kill, self.name)
        self.await_end(pid)

    def await_end(self, pid: int) -> None:
        """Wait until it is off and its QEMU ``pid`` has given back its memory."""
        self._driver.ask(Driver.await_end, self.name, pid, PATIENCE)

    def await_state(self, state: State) -> None:
        """Wait for a while until its driver says so."""
        self._live.host.wait_until(lambda: self._driver.ask(Driver.state, self.name) == state)

    def has_ended(self, seconds: float) -> bool:
        """Tell whether it is off, or will be within ``seconds``: its console is closed first."""

        def is_off() -> bool:
            return self._driver.ask(Driver.state, self.name) == State.OFF

        self._live.host.wait_until(is_off, seconds)
        return is_off()

    def save(self) -> str:
        """Write its memory to a file, end it, and return the file."""
        path = f"{self._driver.site.directory}/{self.name}.saved"
        self._driver.ask(Driver.save, self.name, path)
        return path

    def managed_save(self) -> None:
        """Have libvirt write its memory to a file, and end it; its next start goes on from there."""
        self._driver.ask(LibvirtDriver.managed_save, self.name)

    def attach(self, device: MemoryDevice) -> None:
        """Plug a memory device in."""
        self.attach_as(self.words_of(device))

    def attach_as(self, words: str) -> None:
        """Plug in the memory device that ``words``, those of its driver, describe."""
        self._driver.ask(Driver.attach, self.name, words)

    def define_and_start_with(self, device: MemoryDevice, words: str) -> None:
        """Have it be what its description says, but for ``device``, which is what ``words`` say, and start it."""
        definition, taken = self.definition, self.words_of(device)
        if self.is_of_qemu_alone:
            parts = [json.loads(told) for told in (taken, words)]
            told = {json.dumps(parts[0][part]): json.dumps(parts[1][part]) for part in ("backend", "device")}
            definition = json.dumps([told.get(word, word) for word in json.loads(definition)])
        else:
            definition = definition.replace(taken, words)
        self.define_and_start(definition)

    def detach(self, device: MemoryDevice) -> None:
        """Plug a memory device out, and wait until the guest has given it back."""
        self._driver.ask(Driver.detach, self.name, self.words_of(device))

    def request(self, device: MemoryDevice, memory: int) -> None:
        """Have a virtio-mem device give the guest ``memory`` bytes."""
        self._driver.ask(Driver.request, self.name, self.words_of(device), memory)

    def plug(self, backend: str) -> None:
        """Plug in a DIMM that is called as the memory backend ``backend`` is, and has it (QEMU alone)."""
        self._driver.ask(Driver.attach, self.name, _dimm_with(backend))

    def unplug(self, backend: str) -> None:
        """Plug that DIMM out, and wait until the guest has given it back."""
        self._driver.ask(Driver.detach, self.name, _dimm_with(backend))

    def nvdimm_file(self, device: MemoryDevice) -> str:
        """Return the file that an NVDIMM of it has."""
        return self._driver.site.nvdimm(self.name, device.name, device.page)

    def start_file_server(self) -> None:
        """Have virtiofsd serve the directory that it shares."""
        self._driver.ask(Driver.start_file_server, self.name)

    def write_shared(self, file: str, length: int) -> None:
        """Write ``length`` bytes of numbered lines to ``file`` in the directory that it shares."""
        self._driver.ask(Driver.write_shared, self.name, file, length)

    def shared_md5(self, file: str) -> str:
        """Return what md5sum(1) says of ``file`` in that directory."""
        return self._driver.ask(Driver.shared_md5, self.name, file)

    def write_disk(self, length: int) -> None:
        """Have its disk hold ``length`` bytes of numbered lines."""
        self._driver.ask(Driver.write_disk, self.name, length)

    def start_peer(self) -> int:
        """Start the process that is to serve its network device, and return the process id."""
        return self._driver.ask(Driver.start_peer, self.name)

    def end_peer(self) -> None:
        """End that process, which has had its memory until now."""
        self._driver.ask(Driver.end_peer, self.name)

    def set_balloon(self, memory: int) -> int:
        """Ask the guest to make do with ``memory`` bytes, wait for a while, and return with how many it does."""
        self._driver.ask(Driver.set_balloon, self.name, memory)
        self._live.host.wait_until(lambda: self.balloon == memory)
        return self.balloon

    @property
    def balloon(self) -> int:
        """Bytes that it makes do with now."""
        return self._driver.ask(Driver.balloon, self.name)

    def monitor(self, command: str, **arguments: Any) -> Any:
        """Return what its QEMU's monitor answers to ``command``."""
        return self._driver.ask(Driver.monitor, self.name, command, arguments)

    @property
    def emulator_version(self) -> tuple[int, int]:
        """The version of its QEMU, major and minor."""
        told = self.monitor("query-version")["qemu"]
        return told["major"], told["minor"]

    def backends(self, memory: int) -> list[dict[str, Any]]:
        """Return what its QEMU tells of memory backends of ``memory`` bytes."""
        return [backend for backend in self.monitor("query-memdev") if backend["size"] == memory]

    def property_of(self, path: str, name: str) -> Any:
        """Return the property ``name`` of the object ``path`` of its QEMU."""
        return self.monitor("qom-get", path=path, property=name)

    def begin_migration(self, target: Self, *, postcopy: bool = False, definition: str | None = None) -> None:
        """Begin to send it where it is to go on as ``target``, slowly; with ``postcopy`` its CPUs can go first.

        There it is what ``definition`` says, or else its description.
        """
        destination = target._driver.ask(Driver.receive, target.name, definition or target.definition, postcopy)
        self._driver.ask(Driver.send, self.name, destination, postcopy)

    def definition_as(self, target: Self) -> str:
        """Return the definition with which it can go on as ``target`` after something was plugged in."""
        site = target._driver.site
        return self._driver.ask(Driver.definition_elsewhere, self.name, target.definition, site.directory)

    def start_postcopy(self) -> None:
        """Have the CPUs go on at the target, which gets the memory as it touches it, and else slowly."""
        self._driver.ask(Driver.start_postcopy, self.name)

    def finish_migration(self) -> None:
        """Send what is left as fast as can be, and wait until its QEMU has given back its memory."""
        self._driver.ask(Driver.finish_migration, self.name)

    def cancel_migration(self) -> None:
        """Have it go on here."""
        self._driver.ask(Driver.cancel_migration, self.name)

    def define_with_memory(self, backend: str) -> None:
        """Have it be what its description says but for the memory of the board, which is ``backend`` (QEMU alone)."""
        words = json.loads(self.definition)
        words[words.index("-object") + 1] = backend
        self.define_as(json.dumps(words))

    def add_backend(self, backend: str) -> None:
        """Add the memory backend that ``backend`` describes; no device of the guest has it (QEMU alone)."""
        self._driver.ask(QemuDriver.add_backend, self.name, backend)

    def remove_backend(self, name: str) -> None:
        """Remove the memory backend ``name`` (QEMU alone)."""
        self._driver.ask(QemuDriver.remove_backend, self.name, name)

    def quit(self) -> None:
        """Have QEMU end by itself: it cleans up, which it does not where it is killed (QEMU alone)."""
        self._driver.ask(QemuDriver.quit, self.name)

    def words_of(self, device: MemoryDevice) -> str:
        """Return what its driver takes for a memory device."""
        return self._driver.kind.device_of(self.description, device, self._driver.site)


def _dimm_with(backend: str) -> str:
    document = json.loads(backend)
    dimm = {"driver": "pc-dimm", "id": f"dimm-{document['id']}", "memdev": document["id"], "node": 0}
    return json.dumps({"backend": document, "device": dimm})
