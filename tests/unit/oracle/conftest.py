"""Machines that the model's tests predict for."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hugepage_qa.oracle.architecture import Machine
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.qemu.nominal import nominal_machine
from hugepage_qa.sizes import parse_memory

MakeMachine = Callable[..., Machine]


@pytest.fixture
def make_machine() -> MakeMachine:
    """Return a function that makes a probe machine: architecture, memory as text, kernel version, CPU."""

    def make(architecture: str = "x86_64", memory: str = "8G", version: str = "6.1", cpu: str | None = None) -> Machine:
        kernel = KernelImage(Path("vmlinuz"), architecture, version, None)
        return nominal_machine(kernel, cpu, parse_memory(memory))

    return make
