"""The guests of a case: what they are asked to do, and what is expected of them and of the pools."""

import json
import signal
from collections.abc import Callable, Mapping
from typing import Any

from hugepage_qa.guest.description import Cell, GuestDescription, MemoryDevice
from hugepage_qa.guest.domain_xml import domain_xml, memory_device_xml
from hugepage_qa.guest.driver import GuestError, State
from hugepage_qa.guest.image import READY
from hugepage_qa.guest.machine import CANNOT, DONE, GUEST, QEMU, REFUSED
from hugepage_qa.guest.need import pages_needed, whole_pages
from hugepage_qa.guest.qemu_command import memory_device, qemu_arguments
from hugepage_qa.guest.readings import hugetlbfs_files, mapped_pages, pages_on_nodes, transparent_bytes
from hugepage_qa.guest.refusal import Meaning, find_meaning
from hugepage_qa.guest.site import Site
from hugepage_qa.live.host import ObservedTree
from hugepage_qa.live.judge import NOTHING_LEFT
from hugepage_qa.live.live import CannotRun, Live
from hugepage_qa.model.compare import Difference
from hugepage_qa.sizes import MIB, format_size

#: what the tiny guest boots in, with room to spare
_MEMORY = 128 * MIB
#: one can be short by half
_LEAST_PAGES = 2

_BOOT_SECONDS = 60.0
_COMMAND_SECONDS = 60.0
_END_SECONDS = 60.0
_ATTEMPTS = 200
_PAUSE_SECONDS = 0.05


class Guests:
    """The guests of one case under one driver; after the case they are ended, and nothing of them may be left."""

    def __init__(self, live: Live, driver: str) -> None:
        """Raises CannotRun where the machine has no such driver."""
        self.live = live
        self._driver = driver
        self._guests: list[Guest] = []
        self.site = Site.from_document(self.ask("site"))
        self._files = hugetlbfs_files(live.host)
        live.when_actors_have_ended(self._end)

    @property
    def pages(self) -> int:
        """How many pages the guest of a case has, unless the case says otherwise."""
        return max(_LEAST_PAGES, whole_pages(_MEMORY, self.live.size))

    @property
    def is_qemu(self) -> bool:
        """Whether QEMU is asked itself."""
        return self._driver == QEMU

    def new(self, *cells: Cell, name: str = "guest", **options: Any) -> "Guest":
        """Define a guest with ``cells``, by default one of ``pages`` pages. Raises GuestError."""
        of_case = Cell(self.pages * self.live.size, self.live.size)
        description = GuestDescription(f"hugepage-qa-{name}", cells or (of_case,), **options)
        guest = Guest(self, description)
        self._guests.append(guest)
        guest.define()
        return guest

    def definition(self, guest: GuestDescription) -> str:
        """Return what the driver takes."""
        return json.dumps(qemu_arguments(guest, self.site)) if self.is_qemu else domain_xml(guest, self.site)

    def device(self, guest: GuestDescription, device: MemoryDevice) -> str:
        """Return what the driver takes for a memory device."""
        return memory_device(guest, device, self.site) if self.is_qemu else memory_device_xml(device)

    def ask(self, action: str, *arguments: object) -> Any:
        """Have the driver do something. Raises GuestError when it refuses, CannotRun where there is none."""
        answer: Mapping[str, Any] = self.live.host.ask(GUEST, [self._driver, action, *arguments])
        if CANNOT in answer:
            raise CannotRun(answer[CANNOT])
        if REFUSED in answer:
            raise GuestError(answer[REFUSED])
        return answer[DONE]

    def race(self, *guests: "Guest") -> list[str]:
        """Start all at once, and return for each why it was refused, empty for one that runs."""
        return [str(why) for why in self.ask("race", [guest.name for guest in guests])]

    def enter_group(self, path: str | None) -> None:
        """Have guests that are started from now on in the control group ``path``; None has them out of it."""
        self.ask("enter_group", path)

    def restart(self, number: signal.Signals, *, killed: "Guest | None" = None) -> None:
        """End the daemon with the signal ``number`` and start it again; ``killed`` loses its QEMU meanwhile."""
        self.ask("restart", int(number), killed.pid if killed else None)

    def free_pages(self, size: int, node: int) -> int:
        """Return the free pages of a node as libvirt tells them."""
        return int(self.ask("free_pages", size, node))

    def allocate_pages(self, size: int, pages: int, node: int, *, add: bool) -> None:
        """Have libvirt set the pool of a node to ``pages``, or ``add`` as many."""
        self.ask("allocate_pages", size, pages, node, add)

    def page_sizes(self) -> Mapping[str, Mapping[str, int]]:
        """Return node -> page size in KiB -> pages, as in libvirt's capabilities."""
        sizes: Mapping[str, Mapping[str, int]] = self.ask("page_sizes")
        return sizes

    def expect_meaning(self, meaning: Meaning, message: str) -> None:
        """Expect ``message`` to mean this; a message with another meaning is shown."""
        self.live.expect(f"meaning of {message!r}", meaning, find_meaning(message))

    def expect_refused(self, meaning: Meaning, call: Callable[..., Any], *arguments: Any) -> None:
        """Expect ``call`` to be refused with a message of this ``meaning``, and no file to be left of it."""
        before = hugetlbfs_files(self.live.host)
        try:
            call(*arguments)
        except GuestError as error:
            self.expect_meaning(meaning, str(error))
        else:
            self.live.expect("the driver", f"a refusal: {meaning.value}", "success")
        self.live.expect("files in hugetlbfs", sorted(before), sorted(hugetlbfs_files(self.live.host)))

    def await_free(self, pages: int) -> None:
        """Wait for a while until the pool has ``pages`` free pages.

        QEMU tells that memory is unplugged before it frees it, which waits for all its threads (call_rcu()).
        """
        for _attempt in range(_ATTEMPTS):
            if self.live.pool().free == pages:
                return
            self.live.host.pause(_PAUSE_SECONDS)

    def expect_files(self) -> None:
        """Expect the files in hugetlbfs to be those that were there before the case."""
        found = hugetlbfs_files(self.live.host)
        self.live.expect("files in hugetlbfs", sorted(self._files), sorted(found))

    def _end(self) -> None:
        for guest in reversed(self._guests):
            self.ask("destroy", guest.name)
        left = sorted(hugetlbfs_files(self.live.host) - self._files)
        if left:
            self.live.differences.append(Difference("files in hugetlbfs", NOTHING_LEFT, "none", ", ".join(left)))


class Guest:
    """One guest, by its name; everything raises GuestError when the driver refuses."""

    def __init__(self, guests: Guests, description: GuestDescription) -> None:
        self._guests = guests
        self._live = guests.live
        self.description = description
        self.name = description.name

    @property
    def pages(self) -> int:
        """Pages of the size under test, of any node, that it takes at its start."""
        need = pages_needed(self.description)
        return sum(pages for pool, pages in need.items() if pool.size == self._live.size)

    @property
    def pid(self) -> int:
        """The process id of its QEMU."""
        return int(self._ask("pid"))

    def define(self) -> None:
        """Have it be what its description says from its next start on."""
        self._ask("define", self._guests.definition(self.description))

    def start(self) -> None:
        """Start it with its CPUs stopped: it takes its memory, and touches none by itself."""
        self._ask("start", True)

    def boot(self) -> None:
        """Start it, and wait until its shell asks for a command."""
        self._ask("start", False)
        self.await_shell()

    def await_shell(self) -> None:
        """Wait until the shell asks for its first command, and give it the kernel's files."""
        self._ask("await_output", READY, _BOOT_SECONDS)
        self.run("/bin/busybox mount -a")

    def run(self, command: str, seconds: float = _COMMAND_SECONDS) -> str:
        """Run a command in the guest's shell and return what it printed. Raises GuestError when it fails."""
        # what is typed is printed, too: the words that end the output must not be in it as they are
        said = str(self._ask("type", f"{command}; echo @end''ed $?", r"@ended (\d+)\n", seconds))
        output, _, code = said.rstrip("\n").rpartition("@ended ")
        if code != "0":
            raise GuestError(f"{command} ends with {code} in the guest: {output[-200:]}")
        return output.partition("\n")[2]

    def type(self, line: str, pattern: str) -> str:
        """Type a line in the guest's shell and return what it prints up to ``pattern``."""
        return str(self._ask("type", line, pattern, _COMMAND_SECONDS))

    def start_killed(self, seconds: float) -> None:
        """Start it, and kill its QEMU ``seconds`` later, wherever it is then."""
        self._ask("start_killed", seconds)

    def start_interrupted(self, seconds: float) -> None:
        """Start it, kill the daemon ``seconds`` later, wherever it is then, and start the daemon again."""
        self._ask("start_interrupted", seconds)

    def resume(self) -> None:
        """Let its CPUs run."""
        self._ask("resume")

    def destroy(self) -> None:
        """End it at once."""
        self._ask("destroy")

    def kill(self) -> None:
        """Kill its QEMU, of which its driver is not told, and wait until both know."""
        pid = self.pid
        self._ask("kill")
        self.await_end(pid)

    def await_end(self, pid: int) -> None:
        """Wait until it is off and its QEMU ``pid`` has given back its memory."""
        self._ask("await_end", pid, _END_SECONDS)

    def save(self) -> str:
        """Write its memory to a file, end it, and return the file."""
        path = f"{self._guests.site.directory}/{self.name}.saved"
        self._ask("save", path)
        return path

    def restore(self, path: str) -> None:
        """Start it with the memory in the file ``path``."""
        self._ask("restore", path)

    def attach(self, device: MemoryDevice) -> None:
        """Plug a memory device in."""
        self._ask("attach", self._guests.device(self.description, device))

    def detach(self, device: MemoryDevice) -> None:
        """Plug a memory device out, and wait until the guest has given it back."""
        self._ask("detach", self._guests.device(self.description, device))

    def request(self, device: MemoryDevice, memory: int) -> None:
        """Have a virtio-mem device give the guest ``memory`` bytes."""
        self._ask("request", self._guests.device(self.description, device), memory)

    def set_balloon(self, memory: int) -> None:
        """Ask the guest to make do with ``memory`` bytes."""
        self._ask("set_balloon", memory)

    def migrate(self, target: "Guest") -> None:
        """Have it go on as ``target`` on this machine (QEMU alone)."""
        self._ask("migrate", target.name, self._guests.definition(target.description))

    def expect_state(self, state: State) -> None:
        """Expect its driver to say so."""
        self._live.expect(f"state of {self.name}", state.value, self._ask("state"))

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

    def expect_no_transparent_pages(self) -> None:
        """Expect no transparent huge page in its QEMU, in which guest memory could be instead."""
        found = transparent_bytes(ObservedTree(self._live.host), self.pid)
        # its heap may have some, its memory would be all of them
        self._live.expect("guest memory in transparent huge pages", False, found >= self.description.memory // 2)

    def expect_on_nodes(self, nodes: Mapping[int, int]) -> None:
        """Expect its pages of the size under test on these nodes: node -> pages."""
        found = pages_on_nodes(ObservedTree(self._live.host), self.pid, self._live.size)
        if found is not None:
            self._live.expect(f"nodes of the pages of {self.name}", dict(nodes), dict(found))

    def _ask(self, action: str, *arguments: object) -> Any:
        return self._guests.ask(action, self.name, *arguments)
