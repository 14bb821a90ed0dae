"""Machines that the model's tests predict for."""

from collections.abc import Callable

import pytest

from hugepage_qa.oracle.architecture import Machine
from hugepage_qa.qemu.nominal import nominal_machine
from hugepage_qa.sizes import parse_memory
from hugepage_qa.version import KernelVersion

MakeMachine = Callable[..., Machine]


@pytest.fixture
def make_machine() -> MakeMachine:
    """Return a function that makes a probe machine: architecture, memory as text, kernel version, CPU."""

    def make(architecture: str = "x86_64", memory: str = "8G", version: str = "6.1", cpu: str | None = None) -> Machine:
        return nominal_machine(architecture, cpu, parse_memory(memory), KernelVersion.parse(version))

    return make
