"""The paths of several kernels, counted boot by boot: what the gate compares.

Boots of one kernel differ by what is random in them, and by when the host answers a device. Each has random numbers of
its own, drawn from its place among all boots, and is one block.
"""

import platform
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from hugepage_qa.bench.path_length import SOURCE, UNIT, WORDS, BootPaths, count_paths, counted_machine
from hugepage_qa.cases.verdicts import try_again
from hugepage_qa.process.child import run_to_end
from hugepage_qa.qemu.agent_machine import RunningMachine, start_agent_machine
from hugepage_qa.qemu.boards import find_board, find_cpu
from hugepage_qa.qemu.emulator import Stopped
from hugepage_qa.qemu.fleet import run_jobs
from hugepage_qa.qemu.installed_emulator import find_emulator
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.qemu.lost_machine import MachineLost
from hugepage_qa.sizes import GIB

SUITE = "path-length"

#: bytes that an emulator of such a machine touches: what is mapped of it, with a page of 1 GiB among that
_HOST_MEMORY = 2 * GIB
Document = dict[str, Any]


@dataclass(frozen=True)
class CountedKernel:
    """A kernel with further ``words`` of its command line."""

    kernel: KernelImage
    words: str = ""

    @property
    def label(self) -> str:
        """What people call it."""
        return f"{self.kernel.release} {self.words}".strip()

    def identity(self) -> str:
        """Return what tells it from any other build, and from itself with other words."""
        return f"{self.kernel.release} {sha256(self.kernel.path.read_bytes()).hexdigest()[:12]} {self.words}".strip()


@dataclass(frozen=True)
class CountedBoot:
    """One boot; ``number`` is its place among all boots, ``kernel`` that among the kernels.

    ``seconds`` are what it took here.
    """

    kernel: int
    number: int
    started: datetime
    seconds: float
    paths: BootPaths


class KernelLost(Exception):
    """The machine of ``kernel`` was lost for good: ``lost`` tells how."""

    def __init__(self, kernel: CountedKernel, lost: MachineLost) -> None:
        self.kernel = kernel
        self.lost = lost
        super().__init__(f"{kernel.label}: {lost}")


class CountedBoots:
    """Boots each of ``kernels`` so many times, in turns, on as many ``machines`` at once as the host has cores for."""

    def __init__(self, kernels: Sequence[CountedKernel], boots: int, cache: Path, machines: int | None) -> None:
        self._kernels = kernels
        self._jobs = range(len(kernels) * boots)
        self._cache = cache
        self._machines = machines
        self._lock = threading.Lock()
        self._running: set[RunningMachine] = set()
        self._is_stopped = False

    def run(self) -> Generator[CountedBoot, None, None]:
        """Yield each boot when it is over. Raises InputError for what never boots, KernelLost."""
        jobs = run_jobs(self._jobs, self._boot, lambda _job: _HOST_MEMORY, machines=self._machines, stop=self._stop)
        for _number, boot in jobs:
            yield boot

    def _boot(self, number: int) -> CountedBoot:
        place = number % len(self._kernels)
        started, began = datetime.now(UTC), time.monotonic()
        try:
            paths, _before = try_again(partial(self._count, number, self._kernels[place]))
        except MachineLost as lost:
            raise KernelLost(self._kernels[place], lost) from lost
        return CountedBoot(place, number, started, time.monotonic() - began, paths)

    def _count(self, number: int, kernel: CountedKernel) -> BootPaths:
        machine = counted_machine(kernel.kernel, number, kernel.words)
        with start_agent_machine(machine, self._cache, SOURCE) as running:
            with self._lock:
                if self._is_stopped:
                    raise Stopped
                self._running.add(running)
            try:
                running.await_agent()
                return count_paths(running)
            finally:
                with self._lock:
                    self._running.discard(running)

    def _stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            for running in self._running:
                running.kill()


def missing_paths(boots: Sequence[CountedBoot]) -> dict[str, str]:
    """Return the metrics that not all of ``boots`` have, and why."""
    return {name: why for boot in boots for name, why in boot.paths.missing.items()}


def sample_document(kernel: CountedKernel, boots: Sequence[CountedBoot]) -> Document:
    """Return ``boots`` of ``kernel`` as samples in the format of the gate, without what is missing in some boot."""
    ordered = sorted(boots, key=lambda boot: boot.number)
    missing = missing_paths(ordered)
    names = [name for name in ordered[0].paths.lengths if name not in missing]
    return {
        "format": "hugepage-qa samples",
        "version": 1,
        "suite": SUITE,
        "environment": environment(kernel.kernel),
        "subject": {"kernel": kernel.identity()},
        "series": [
            {"metric": name, "unit": UNIT, "direction": "lower", "blocks": [_block(boot, name) for boot in ordered]}
            for name in names
        ],
    }


def _block(boot: CountedBoot, name: str) -> Document:
    samples = list(boot.paths.lengths[name])
    return {"order": boot.number, "started": boot.started.isoformat(), "boot": str(boot.number), "samples": samples}


def environment(kernel: KernelImage) -> Mapping[str, str]:
    """Return the facts that lengths of paths depend on: the emulated processor, its emulator, and what is counted."""
    board = find_board(kernel.architecture)
    emulator = run_to_end([find_emulator(board), "--version"]).stdout.partition("\n")[0]
    return {
        "arch": board.architecture,
        "cpu_model": find_cpu(board, None).qemu_cpu,
        "emulator": emulator.strip(),
        "command_line": WORDS,
        "program": sha256(SOURCE.read_bytes()).hexdigest()[:12],
        "hostname": platform.node() or "n/a",
    }
