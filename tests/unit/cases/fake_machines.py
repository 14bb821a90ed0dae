"""Throwaway machines without an emulator: they come up and are lost as they are told to, and show a still machine."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cases.still_machine import StillMachine

from hugepage_qa.cases import live_machine
from hugepage_qa.cases.live_machine import MachinePlan
from hugepage_qa.machine.host import Host
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.qemu.lost_machine import Loss, MachineLost
from hugepage_qa.qemu.virtual_machine import VirtualMachine

SERIAL = "the serial console\n"


def lost(loss: Loss) -> MachineLost:
    """Return how a machine is lost."""
    return MachineLost(loss, "what was seen of it", SERIAL)


class FakeStarvation:
    """What was seen of a machine that was not let run: nothing, until it is told so."""

    told = ""

    def forget(self) -> None:
        """Begin anew."""
        self.told = ""


class FakeRunning:
    """A machine; ``at_boot`` is how it is lost before it comes up.

    With ``stop`` it never does: another thread calls that meanwhile, which has to kill it.
    """

    def __init__(self, machine: VirtualMachine, at_boot: MachineLost | None, stop: Callable[[], None] | None) -> None:
        self.machine = machine
        self.serial = SERIAL
        self.starvation = FakeStarvation()
        self.killed = threading.Event()
        self.is_gone = False
        self._at_boot = at_boot
        self._stop = stop

    def kill(self) -> None:
        """End it."""
        self.killed.set()

    def await_agent(self) -> None:
        """Come up, or be lost."""
        if self._stop:
            threading.Thread(target=self._stop).start()
            assert self.killed.wait(30)
            raise lost(Loss.EMULATOR_ENDED)
        if self._at_boot:
            raise self._at_boot


class FakeBackend(StillMachine):
    """Does nothing, and remembers the operations; on a machine that is gone it is lost."""

    def __init__(self, running: FakeRunning) -> None:
        super().__init__()
        self.running = running
        self.actions: deque[str] = deque()

    def perform(self, operation: str, arguments: Sequence[Any]) -> Any:
        """Answer as the still machine does."""
        if self.running.killed.is_set() or self.running.is_gone:
            raise lost(Loss.EMULATOR_ENDED)
        if operation == "act":
            self.actions.append(f"act {arguments[0]}")
            return None
        return super().perform(operation, arguments)


class FakeMachines:
    """All that were started, in their order; ``at_boot`` is how the next ones are lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[FakeRunning] = []
        self.at_boot: list[MachineLost | None] = []
        self.stop_at_boot: Callable[[], None] | None = None
        self.on_end: Callable[[], None] = lambda: None
        monkeypatch.setattr(live_machine, "start_agent_machine", self._start)
        monkeypatch.setattr(live_machine, "ThrowawayMachine", lambda running, _scratch: FakeBackend(running))

    @property
    def running(self) -> list[FakeRunning]:
        """Those that have not been thrown away."""
        return [machine for machine in self.started if not machine.is_gone]

    @contextmanager
    def _start(self, machine: VirtualMachine, _cache: Path) -> Iterator[FakeRunning]:
        started = FakeRunning(machine, self.at_boot.pop(0) if self.at_boot else None, self.stop_at_boot)
        self.started.append(started)
        try:
            yield started
        finally:
            started.is_gone = True
            self.on_end()


def plan(directory: Path) -> MachinePlan:
    """Return a plan of machines that nobody boots."""
    return MachinePlan(KernelImage(Path("vmlinuz"), "x86_64", "6.1.0", None), "max", directory)


def backend_of(host: Host) -> FakeBackend:
    """Return what is behind ``host``."""
    assert isinstance(host.backend, FakeBackend)
    return host.backend
