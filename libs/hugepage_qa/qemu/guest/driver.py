"""What starts and stops guests: QEMU alone or libvirt, behind one protocol."""

import enum
from collections.abc import Sequence
from typing import Protocol


class GuestError(Exception):
    """QEMU or libvirt refused, or a guest ended by itself; the message is theirs, whole, in one line.

    By this they and the kernel are judged. Where they do not answer in time, or cannot be reached, that is an
    InputError: it tells of the machine around them.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class NotHere(Exception):
    """This machine has no such driver; the message is the fact that proves it."""


class State(enum.StrEnum):
    """What a driver tells of a guest."""

    RUNNING = "running"
    PAUSED = "paused"
    OFF = "off"


class Driver(Protocol):
    """Starts and stops guests by their names. ``definition`` is the driver's own: XML, or arguments in JSON.

    Every method but ``close`` raises GuestError, and InputError where QEMU or libvirt is out of reach.
    """

    def define(self, name: str, definition: str) -> None:
        """Have the guest ``name`` be what ``definition`` says from its next start on."""

    def start(self, name: str, paused: bool) -> None:
        """Start it; ``paused`` leaves its CPUs stopped. When this raises, nothing of it runs."""

    def race(self, names: Sequence[str]) -> list[str]:
        """Start all of them at once, paused; return for each why it was refused, empty for one that runs."""

    def start_killed(self, name: str, seconds: float) -> None:
        """Start it and kill its QEMU ``seconds`` later, wherever it is then; its driver is not told."""

    def state(self, name: str) -> State:
        """Return what it does; one that is not known is off."""

    def pid(self, name: str) -> int:
        """Return the process id of its QEMU."""

    def resume(self, name: str) -> None:
        """Let the CPUs of a paused guest run."""

    def destroy(self, name: str) -> None:
        """End it at once, and wait until its QEMU has given back its memory."""

    def save(self, name: str, path: str) -> None:
        """Write its memory to the file ``path`` and end it."""

    def restore(self, name: str, path: str) -> None:
        """Start it, paused, with the memory in ``path``."""

    def attach(self, name: str, device: str) -> None:
        """Plug in the memory device that ``device`` describes."""

    def detach(self, name: str, device: str) -> None:
        """Ask the guest to give the memory device back; it may take its time, or refuse."""

    def set_balloon(self, name: str, memory: int) -> None:
        """Ask the guest to make do with ``memory`` bytes."""

    def balloon(self, name: str) -> int:
        """Return how many bytes the guest makes do with now."""

    def close(self) -> None:
        """End all guests that it started, and what it needs for them."""
