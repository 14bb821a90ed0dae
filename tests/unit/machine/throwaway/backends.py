"""A throwaway machine behind an agent that runs here, and what it answers, to compare with the real one."""

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.unit.process.local_agent import LocalAgent

from hugepage_qa.machine.real_machine import RealMachine
from hugepage_qa.machine.throwaway_machine import ThrowawayMachine
from hugepage_qa.qemu.kernel_image import KernelImage

Backend = RealMachine | ThrowawayMachine
CONFIG = {"CONFIG_CMA": "y"}


class NeverStarved:
    """An emulator that has a CPU to itself."""

    @property
    def seconds(self) -> float:
        """The CPU time that it has had."""
        return time.monotonic()


def boot(agent: LocalAgent, scratch: Path, config: dict[str, str] | None = None) -> ThrowawayMachine:
    """Return the machine behind ``agent``."""
    kernel = KernelImage(Path("vmlinuz"), os.uname().machine, os.uname().release, config)
    running: Any = SimpleNamespace(
        machine=SimpleNamespace(kernel=kernel),
        base_page=agent.base_page,
        channel=agent.channel,
        starvation=NeverStarved(),
    )
    scratch.mkdir(exist_ok=True)
    return ThrowawayMachine(running, scratch)


def outcome(backend: Backend, operation: str, *arguments: Any) -> object:
    """Return what an operation returns, or the errno that it is refused with."""
    try:
        return backend.perform(operation, arguments)
    except OSError as error:
        return type(error), error.errno


def below(path: Path) -> str:
    return str(path).removeprefix("/")
