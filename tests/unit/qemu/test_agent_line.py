"""The agent is reached through a port that the kernel has a driver for."""

from pathlib import Path

import pytest

from hugepage_qa.qemu import agent_machine
from hugepage_qa.qemu.agent_machine import AgentMachine
from hugepage_qa.qemu.boards import find_board
from hugepage_qa.qemu.kernel_image import KernelImage


@pytest.mark.parametrize(
    ("config", "modules", "is_virtio"),
    [
        (None, (), True),
        ({"CONFIG_VIRTIO_CONSOLE": "y"}, (), True),
        ({"CONFIG_VIRTIO_CONSOLE": "m"}, ("virtio_console.ko",), True),
        ({"CONFIG_VIRTIO_CONSOLE": "m"}, (), False),
        ({}, (), False),
    ],
)
def test_a_kernel_without_virtio_ports_gets_a_second_serial_port(
    config: dict[str, str] | None,
    modules: tuple[str, ...],
    is_virtio: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_machine, "identify", lambda path: KernelImage(path, "x86_64", "6.1", config))
    files = [tmp_path / name for name in modules]
    for file in files:
        file.touch()
    machine = AgentMachine("x86_64", "max", tmp_path / "bzImage", (1 << 30,), tuple(files))
    command = list(agent_machine._arguments(find_board("x86_64"), machine, tmp_path / "initramfs", 7, None))
    assert ("virtserialport,chardev=agent,name=hugepage-qa" in command) == is_virtio
    assert ("isa-serial,chardev=second" in command) == (not is_virtio)
    assert sum(word.endswith("fd=7") for word in command) == 1
