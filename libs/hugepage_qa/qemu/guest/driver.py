"""What starts and stops guests on this machine: QEMU alone or libvirt, behind one abstract class."""

import enum
import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from hugepage_qa.errors import InputError
from hugepage_qa.process.child import Child
from hugepage_qa.process.process_table import has_ended
from hugepage_qa.qemu.guest import vhost_user_peer
from hugepage_qa.qemu.guest.booted_states import BootedStates
from hugepage_qa.qemu.guest.console import await_output, converse
from hugepage_qa.qemu.guest.guest_description import GuestDescription, MemoryDevice
from hugepage_qa.qemu.guest.guest_site import READY, Site
from hugepage_qa.qemu.guest.numbered_lines import md5sum, numbered_lines

_PAUSE_SECONDS = 0.02
_PEER_SECONDS = 60.0


class GuestError(Exception):
    """QEMU or libvirt refused, or a guest ended by itself; the message is theirs, whole, in one line.

    By this they and the kernel are judged. Where they do not answer in time, or cannot be reached, that is an
    InputError: it tells of the machine around them.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class State(enum.StrEnum):
    """What a driver tells of a guest."""

    RUNNING = "running"
    PAUSED = "paused"
    #: its kernel has panicked, and it was preserved
    PANICKED = "panicked"
    OFF = "off"
    #: off, and its next start has it go on where it was
    SAVED = "saved"


def await_condition(is_so: Callable[[], bool], seconds: float, otherwise: str) -> None:
    """Wait until ``is_so``. Raises InputError with ``otherwise`` when that takes more than ``seconds``."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise InputError(f"{otherwise} within {seconds:g} s")
        time.sleep(_PAUSE_SECONDS)


def refusal_of(start: Callable[[], object]) -> str:
    """Return why what ``start`` starts is refused, empty for what runs then."""
    try:
        start()
    except GuestError as error:
        return str(error)
    return ""


class Driver(ABC):
    """Starts and stops guests by their names, with what ``site`` has.

    Its methods are what can be asked of guests: arguments and results are what JSON can hold, memory is in bytes.
    ``definition`` and ``device`` are the driver's own: XML, or arguments in JSON. Every method but ``close`` raises
    GuestError, and InputError where QEMU or libvirt is out of reach. What a driver does its own way says how there.
    """

    def __init__(self, site: Site, booted: BootedStates | None = None) -> None:
        """``booted`` are the states that guests go on from; without them each boots."""
        self._site = site
        self._booted = booted
        self._peers: dict[str, Child] = {}

    def site(self) -> dict[str, Any]:
        """Return the document of what guests are started with."""
        return asdict(self._site)

    @staticmethod
    @abstractmethod
    def definition_of(guest: GuestDescription, site: Site) -> str:
        """Return what ``define`` takes for a guest. Raises KeyError where ``site`` has no hugetlbfs for its pages."""

    @staticmethod
    @abstractmethod
    def device_of(guest: GuestDescription, device: MemoryDevice, site: Site) -> str:
        """Return what ``attach`` and ``detach`` take for a memory device of a guest."""

    @abstractmethod
    def define(self, name: str, definition: str) -> None:
        """Have the guest ``name`` be what ``definition`` says from its next start on."""

    @abstractmethod
    def start(self, name: str, paused: bool) -> None:
        """Start it; ``paused`` leaves its CPUs stopped. When this raises, nothing of it runs."""

    @abstractmethod
    def race(self, names: Sequence[str]) -> list[str]:
        """Start all of them at once, paused; return for each why it was refused, empty for one that runs."""

    @abstractmethod
    def start_killed(self, name: str, seconds: float) -> None:
        """Start it, kill its QEMU ``seconds`` later, wherever it is then, and wait until that is gone."""

    @abstractmethod
    def state(self, name: str) -> State:
        """Return what it does; one that is not known is off."""

    @abstractmethod
    def pid(self, name: str) -> int:
        """Return the process id of its QEMU."""

    @abstractmethod
    def resume(self, name: str) -> None:
        """Let the CPUs of a paused guest run."""

    @abstractmethod
    def pause(self, name: str) -> None:
        """Stop the CPUs of a running guest."""

    @abstractmethod
    def reset(self, name: str) -> None:
        """Have it begin again in the same QEMU, as by its button."""

    @abstractmethod
    def destroy(self, name: str) -> None:
        """End it at once, and wait until its QEMU has given back its memory."""

    @abstractmethod
    def save(self, name: str, path: str) -> None:
        """Write its memory to the file ``path`` and end it."""

    @abstractmethod
    def restore(self, name: str, path: str) -> None:
        """Start it, paused, with the memory in ``path``."""

    @abstractmethod
    def receive(self, name: str, definition: str, postcopy: bool) -> str:
        """Let a guest go on here as ``name``, which is what ``definition`` says, and return where it is to be sent."""

    @abstractmethod
    def definition_elsewhere(self, name: str, definition: str, directory: str) -> str:
        """Return what it is to be where it is sent, with what was plugged in since its start.

        There sockets are in ``directory``, and ``definition`` is one with the same devices from the start.
        """

    @abstractmethod
    def send(self, name: str, destination: str, postcopy: bool) -> None:
        """Begin to send it where ``receive`` of another driver said, slowly, and wait until its memory is on the way.

        With ``postcopy`` its CPUs may be moved before its memory; ``receive`` must have been told so, too. When this
        raises, it goes on here.
        """

    @abstractmethod
    def start_postcopy(self, name: str) -> None:
        """Move the CPUs of a guest that is being sent: from now on memory follows as it is asked for, else slowly."""

    @abstractmethod
    def finish_migration(self, name: str) -> None:
        """Send what is left as fast as can be, and wait until its QEMU here has given back its memory.

        When this raises, it goes on here, unless its CPUs were moved before.
        """

    @abstractmethod
    def cancel_migration(self, name: str) -> None:
        """Have it go on here, and wait until nothing is sent any more."""

    @abstractmethod
    def attach(self, name: str, device: str) -> None:
        """Plug in the memory device that ``device`` describes."""

    @abstractmethod
    def detach(self, name: str, device: str) -> None:
        """Ask the guest to give the memory device back; it may take its time, or refuse."""

    @abstractmethod
    def request(self, name: str, device: str, memory: int) -> None:
        """Set how many bytes of its virtio-mem device the guest is to have."""

    @abstractmethod
    def set_balloon(self, name: str, memory: int) -> None:
        """Ask the guest to make do with ``memory`` bytes."""

    @abstractmethod
    def balloon(self, name: str) -> int:
        """Return how many bytes the guest makes do with now."""

    @abstractmethod
    def monitor(self, name: str, command: str, arguments: dict[str, Any]) -> Any:
        """Return what its QEMU's monitor answers to ``command``."""

    @abstractmethod
    def enter_group(self, path: str | None) -> None:
        """Have guests that are started from now on in the control group ``path``; None has them out of it."""

    def boot(self, name: str, seen: str, seconds: float) -> int:
        """Start it, and have it go on where a guest that sees ``seen`` has asked for its first command.

        Returns how often it has asked itself since its start: not at all, or once where no such state can be kept.
        """
        if self._booted is None:
            return self._boot(name, seconds)
        try:
            if self._booted.find(seen) is None:
                self._boot(name, seconds)
                with self._booted.new(seen) as path:
                    self.save(name, str(path))
            # one that somebody has removed meanwhile is refused
            self.go_on(name, str(self._booted.path(seen)))
        except (GuestError, OSError):
            # a full disk, or what another release has written: a guest that is refused its pages is so at its boot, too
            self._booted.drop(seen)
            self.end(name)
            return self._boot(name, seconds)
        self.resume(name)
        return 0

    def _boot(self, name: str, seconds: float) -> int:
        self.start(name, False)
        self.await_output(name, READY, seconds)
        return 1

    @abstractmethod
    def go_on(self, name: str, path: str) -> None:
        """Start it as it is defined, paused, with the memory in the file ``path`` of a guest that was defined alike."""

    @abstractmethod
    def end(self, name: str) -> None:
        """End it at once if it runs; it stays defined."""

    def await_output(self, name: str, pattern: str, seconds: float) -> None:
        """Wait until the guest has printed what matches the regular expression, now or before."""
        await_output(Path(self._site.log(name)), pattern, seconds, partial(self.pid, name))

    def type(self, name: str, line: str, pattern: str, seconds: float) -> str:
        """Type a line on the guest's console and return what it prints up to the line with ``pattern``."""
        try:
            return converse(Path(self._site.console(name)), line, pattern, seconds)
        except OSError as error:
            if self.state(name) is State.OFF:
                raise GuestError(f"{name} has ended by itself: {error} at its console") from error
            raise

    def start_peer(self, name: str) -> int:
        """Start the process that is to serve the network device of a guest, and return its process id."""
        path = Path(self._site.peer(name))
        path.unlink(missing_ok=True)
        peer = self._peers[name] = Child([sys.executable, vhost_user_peer.__file__, str(path)])
        if not peer.wait_until(path.is_socket, _PEER_SECONDS):
            raise InputError(f"the process that is to serve {name} does not listen within {_PEER_SECONDS:g} s")
        return peer.pid

    def end_peer(self, name: str) -> None:
        """End that process, and wait until it has let go of the guest's memory."""
        self._peers.pop(name).kill()

    @abstractmethod
    def start_file_server(self, name: str) -> None:
        """Have virtiofsd serve the directory that a guest shares; it ends when its QEMU does."""

    def write_shared(self, name: str, file: str, length: int) -> None:
        """Write ``length`` bytes of numbered lines to ``file`` in the directory that a guest shares."""
        path = Path(self._site.shared(name, file))
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(numbered_lines(length))

    def shared_md5(self, name: str, file: str) -> str:
        """Return what md5sum(1) says of ``file`` in the directory that a guest shares."""
        return md5sum(Path(self._site.shared(name, file)).read_bytes())

    def write_disk(self, name: str, length: int) -> None:
        """Have the disk of a guest hold ``length`` bytes of numbered lines."""
        Path(self._site.disk(name)).write_bytes(numbered_lines(length))

    def kill(self, name: str) -> None:
        """Kill its QEMU, of which the driver is not told."""
        os.kill(self.pid(name), signal.SIGKILL)

    def await_end(self, name: str, pid: int, seconds: float) -> None:
        """Wait until it is off and its QEMU ``pid`` has given back its memory."""
        # in this order: a QEMU 7.2 that is asked for its state just when its guest ends may neither answer nor end
        await_condition(lambda: has_ended(pid), seconds, f"{name}: its QEMU, process {pid}, does not end")
        await_condition(lambda: self.state(name) is State.OFF, seconds, f"{name} has no QEMU, and does not get off")

    def close(self) -> None:
        """End all guests that it started, and what it needs for them."""
        for name in list(self._peers):
            self.end_peer(name)
