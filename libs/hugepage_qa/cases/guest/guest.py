"""One guest: what it is asked to do, what is expected of it, and the pool of its own that it may have inside."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hugepage_qa.cases.guest.guest_machine import AskedDriver
from hugepage_qa.cases.guest.guest_readings import (
    hugetlb_mappings,
    hugetlb_policies,
    mapped_pages,
    mappings_of_size,
    pages_on_nodes,
    transparent_bytes,
)
from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.counters import parse_meminfo
from hugepage_qa.kernel.nodes import parse_list
from hugepage_qa.kernel.smaps import MemoryMapping
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.qemu.guest.console import load_drivers
from hugepage_qa.qemu.guest.driver import Driver, GuestError, State
from hugepage_qa.qemu.guest.guest_description import Cell, GuestDescription, MemoryDevice, pages_needed, whole_pages
from hugepage_qa.qemu.guest.guest_site import BUSY_PROGRAM, READY
from hugepage_qa.qemu.guest.libvirt_driver import LibvirtDriver
from hugepage_qa.qemu.guest.qemu_driver import QemuDriver
from hugepage_qa.sizes import MIB, format_size

#: bytes that a file is written from
PIECE = MIB
#: seconds for a boot, a command or an end: in an emulated machine a guest is emulated twice
_PATIENCE = 300.0


class Guest:
    """One guest, by its name; everything raises GuestError when the driver refuses."""

    def __init__(self, live: Live, driver: AskedDriver, description: GuestDescription) -> None:
        self._live = live
        self._driver = driver
        self.description = description
        self.name = description.name
        self._boots = 1

    @property
    def pages(self) -> int:
        """Pages of the size under test, of any node, that it takes at its start."""
        need = pages_needed(self.description)
        return sum(pages for pool, pages in need.items() if pool.size == self._live.size)

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

    def boot(self) -> None:
        """Start it, and wait until its shell asks for a command."""
        self._driver.ask(Driver.start, self.name, False)
        self._boots = 1
        self.await_shell()

    def reset(self) -> None:
        """Have it begin again in the same QEMU, as by its button, and wait until its shell asks for a command."""
        self._driver.ask(Driver.reset, self.name)
        self.await_next_shell()

    def reboot(self) -> None:
        """Have its kernel reboot, in the same QEMU, and wait until its shell asks for a command."""
        self.type("reboot -f", "reboot")
        self.await_next_shell()

    def can_tell_of_panics(self) -> bool:
        """Load the driver of the device that is there for it, and tell whether its kernel has one."""
        self.run(load_drivers("pvpanic", "pvpanic-mmio", "pvpanic-pci"))
        # those of POWER and s390x tell their firmware without a driver
        if self._driver.site.architecture not in ("x86_64", "aarch64"):
            return True
        return "pvpanic" in self.run("find /sys/bus -name 'pvpanic*' -path '*/drivers/*'")

    def panic(self) -> None:
        """Have its kernel panic."""
        self.type("echo c >/proc/sysrq-trigger", "sysrq-trigger")

    def await_next_shell(self) -> None:
        """Wait as ``await_shell`` does, but for that of a boot which has just begun in the same QEMU."""
        self._boots += 1
        self.await_shell()

    def await_shell(self) -> None:
        """Wait until the shell asks for its first command, and give it the kernel's files."""
        earlier = f"{READY}(?s:.*?)" * (self._boots - 1)
        self._driver.ask(Driver.await_output, self.name, f"{earlier}{READY}", _PATIENCE)
        self.run("/bin/busybox mount -a")

    def run(self, command: str, seconds: float = _PATIENCE) -> str:
        """Run a command in the guest's shell and return what it printed. Raises GuestError when it fails."""
        # what is typed is printed, too: the words that end the output must not be in it as they are
        said = self._driver.ask(Driver.type, self.name, f"{command}; echo @end''ed $?", r"@ended (\d+)\n", seconds)
        output, _, code = said.rstrip("\n").rpartition("@ended ")
        if code != "0":
            raise GuestError(f"{command} ends with {code} in the guest: {output[-200:]}")
        return output.partition("\n")[2]

    def write_file(self, path: str, line: str, length: int) -> None:
        """Have it write a file of ``length`` bytes, which are as many pieces of lines as go into it (``PIECE``).

        Each of its lines alone would be a system call, and 64 MiB take half a minute in an emulated guest.
        """
        piece = f"{path}.piece"
        self.run(f"yes {line} | head -c {PIECE} >{piece}")
        self.run(f"for _ in $(seq {length // PIECE}); do cat {piece}; done >{path}; rm {piece}")

    def keep_busy(self, memory: int | None = None) -> None:
        """Have a program in it write and check ``memory`` bytes from now on, two thirds of what it has free for None.

        Returns when all of them have been written. Raises CannotRun where no such program can be built.
        """
        if self._driver.site.never_busy:
            raise CannotRun(f"nothing keeps a guest busy: {self._driver.site.never_busy}")
        self.run(f"/bin/{BUSY_PROGRAM} start {memory or ''}".rstrip())

    def expect_busy(self) -> None:
        """Expect the program of ``keep_busy`` to live, and all that it has written until now to be there.

        A guest that was saved or migrated is asked where it is now. Two rounds: the first one may be half over.
        """
        self.expect_found_right(self.find_in_memory())

    def find_in_memory(self) -> str:
        """Return what that program has found: "right", or what was wrong (process/busy_memory.c)."""
        return self.run(f"/bin/{BUSY_PROGRAM} await 2").strip()

    def expect_found_right(self, found: str) -> None:
        """Expect that program to have found nothing wrong."""
        self._live.expect(f"what {self.name} finds in its memory", "right", found)

    def has_virtio_driver(self, name: str, *needed: str) -> bool:
        """Load the driver ``name``, and those ``needed`` before it, and tell whether the guest's kernel has it.

        They are loaded where the image has them as modules.
        """
        # /sys/bus/virtio is not there without the bus
        return name in self.run(f"{load_drivers(*needed, name)}; ls /sys/bus/virtio/drivers || true").split()

    def type(self, line: str, pattern: str) -> str:
        """Type a line in the guest's shell and return what it prints up to ``pattern``."""
        return self._driver.ask(Driver.type, self.name, line, pattern, _PATIENCE)

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
        self._driver.ask(Driver.await_end, self.name, pid, _PATIENCE)

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

    def restore(self, path: str) -> None:
        """Start it with the memory in the file ``path``."""
        self._driver.ask(Driver.restore, self.name, path)
        # it goes on behind its prompt, and a log of its own begins with it
        self._boots = 0

    def managed_save(self) -> None:
        """Have libvirt write its memory to a file, and end it; its next start goes on from there."""
        self._driver.ask(LibvirtDriver.managed_save, self.name)

    @property
    def memory(self) -> int:
        """Bytes that its kernel has to give."""
        return parse_meminfo(self.run("grep MemTotal /proc/meminfo"), "/proc/meminfo of the guest")["MemTotal"]

    def expect_memory(self, memory: int) -> None:
        """Expect its kernel to have ``memory`` bytes to give: soon, as it takes a while to be told of new ones."""
        self._live.host.wait_until(lambda: self.memory == memory)
        self._live.expect(f"MemTotal of {self.name}", memory, self.memory)

    def attach(self, device: MemoryDevice) -> None:
        """Plug a memory device in."""
        self._driver.ask(Driver.attach, self.name, self._device(device))

    def detach(self, device: MemoryDevice) -> None:
        """Plug a memory device out, and wait until the guest has given it back."""
        self._driver.ask(Driver.detach, self.name, self._device(device))

    def request(self, device: MemoryDevice, memory: int) -> None:
        """Have a virtio-mem device give the guest ``memory`` bytes."""
        self._driver.ask(Driver.request, self.name, self._device(device), memory)

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

    @property
    def mapped(self) -> int:
        """The pages of the size under test that its QEMU maps."""
        return mapped_pages(ObservedTree(self._live.host), self.pid).get(self._live.size, 0)

    def await_mapped(self, pages: int) -> None:
        """Wait for a while until its QEMU maps ``pages`` pages of the size under test.

        A page is out of the pool before it is cleared, which takes a while, and mapped after that.
        """
        self._live.host.wait_until(lambda: self.mapped == pages)

    def begin_migration(self, target: "Guest", *, postcopy: bool = False) -> None:
        """Begin to send it where it is to go on as ``target``, slowly; with ``postcopy`` its CPUs can go first."""
        destination = target._driver.ask(Driver.receive, target.name, target.definition, postcopy)
        self._driver.ask(Driver.send, self.name, destination, postcopy)

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

    @property
    def hugetlb_mappings(self) -> list[tuple[bool, int, int]]:
        """What its QEMU maps of pools, by address: whether that is shared, its bytes, and those that are there."""
        return hugetlb_mappings(ObservedTree(self._live.host), self.pid)

    @property
    def mapped_memory(self) -> list[MemoryMapping]:
        """What its QEMU maps in one piece as large as its only cell."""
        [cell] = self.description.cells
        return mappings_of_size(ObservedTree(self._live.host), self.pid, cell.memory)

    def await_hugetlb_unmapped(self) -> None:
        """Wait for a while until its QEMU maps nothing of a pool: it does that after it has told (call_rcu())."""
        self._live.host.wait_until(lambda: not self.hugetlb_mappings)

    def expect_policy(self, policy: str, nodes: Sequence[int], mappings: int = 1) -> None:
        """Expect the ``mappings`` of its QEMU in huge pages to have this policy of ``policy=`` for these nodes."""
        name = {"preferred": "prefer"}.get(policy, policy)
        told = hugetlb_policies(ObservedTree(self._live.host), self.pid)
        # QEMU says "many" where the kernel knows that (MPOL_PREFERRED_MANY, Linux 5.15), which is the same of one node
        parts = [one.replace(" (many)", "").partition(":") for one in told]
        found = [(kind, parse_list(of, "numa_maps") if of else ()) for kind, _colon, of in parts]
        self._live.expect("policies of memory in huge pages", [(name, tuple(nodes))] * mappings, found)

    def expect_state(self, state: State) -> None:
        """Expect its driver to say so."""
        self._live.expect(f"state of {self.name}", state.value, self._driver.ask(Driver.state, self.name))

    def expect_mapped(self, **more: int) -> None:
        """Expect its QEMU to map the pages that it needs, all of them huge, and no ordinary memory in their place.

        ``more`` are further pages of a size, by the name of the size: ``**{"2M": 3}``.
        """
        expected = {format_size(size): 0 for size in self._live.sizes}
        for pool, pages in pages_needed(self.description).items():
            expected[format_size(pool.size)] += pages
        for size, pages in more.items():
            expected[size] += pages
        found = mapped_pages(ObservedTree(self._live.host), self.pid)
        for bytes_of_page in self._live.sizes:
            size = format_size(bytes_of_page)
            subject = f"huge pages of {size} in the QEMU of {self.name}"
            self._live.expect(subject, expected[size], found.get(bytes_of_page, 0))

    def expect_all_taken(self) -> None:
        """Expect it to run, and to have every page of the pool, which has as many as it needs."""
        self._live.expect_pool(nr=self.pages, free=0)
        self.expect_mapped()

    def expect_no_transparent_pages(self) -> None:
        """Expect no transparent huge page in its QEMU, in which guest memory could be instead."""
        found = transparent_bytes(ObservedTree(self._live.host), self.pid)
        # its heap may have some, its memory would be all of them
        self._live.expect("guest memory in transparent huge pages", False, found >= self.description.memory // 2)

    def expect_transparent_pages(self) -> None:
        """Expect its memory to be in transparent huge pages, but for what memory is too fragmented for."""
        found = transparent_bytes(ObservedTree(self._live.host), self.pid)
        self._live.notes.append(f"{format_size(found)} of {format_size(self.description.memory)} transparent")
        self._live.expect("at least half of the guest in THP", True, found >= self.description.memory // 2)

    def expect_on_nodes(self, nodes: Mapping[int, int]) -> None:
        """Expect its pages of the size under test on these nodes: node -> pages."""
        found = pages_on_nodes(ObservedTree(self._live.host), self.pid, self._live.size)
        self._live.expect(f"nodes of the pages of {self.name}", dict(nodes), dict(found or {}))

    def _device(self, device: MemoryDevice) -> str:
        return self._driver.kind.device_of(self.description, device, self._driver.site)


def _dimm_with(backend: str) -> str:
    document = json.loads(backend)
    dimm = {"driver": "pc-dimm", "id": f"dimm-{document['id']}", "memdev": document["id"], "node": 0}
    return json.dumps({"backend": document, "device": dimm})


#: in the guest
POOL_FILE = "/proc/sys/vm/nr_hugepages"

#: runs a command in the guest's shell and returns what it printed
Run = Callable[[str], str]

# of the guest's memory: its own pool, and what lies in it
_POOL = 4
_FILE = 3
_MEMORY = 256 * MIB
_LEAST_PAGES = 2


def room_for_a_pool(page: int) -> Cell:
    """Return memory in pages of ``page`` bytes in which a guest has room for a pool of its own."""
    return Cell(max(_LEAST_PAGES, whole_pages(_MEMORY, page)) * page, page)


def expect_pool_of_its_own(live: Live, guest: Guest, run: Run) -> None:
    """Expect a booted guest, which has all pages of the machine's pool, to reserve, use and give back its own."""

    def expect_inside(total: int, free: int) -> None:
        meminfo = parse_meminfo(run("cat /proc/meminfo"), "/proc/meminfo of the guest")
        live.expect("HugePages_Total in the guest", total, meminfo.get("HugePages_Total"))
        live.expect("HugePages_Free in the guest", free, meminfo.get("HugePages_Free"))
        live.expect_pool(nr=guest.pages, free=0)

    size = parse_meminfo(run("cat /proc/meminfo"), "/proc/meminfo of the guest")["Hugepagesize"]
    expect_inside(0, 0)
    run(f"echo {_POOL} >{POOL_FILE}")
    expect_inside(_POOL, _POOL)
    run("mkdir /huge; mount -t hugetlbfs none /huge")
    run(f"fallocate -l {_FILE * size} /huge/file")
    expect_inside(_POOL, _POOL - _FILE)
    run("rm /huge/file")
    expect_inside(_POOL, _POOL)
    run(f"echo 0 >{POOL_FILE}")
    expect_inside(0, 0)
    guest.expect_mapped()
