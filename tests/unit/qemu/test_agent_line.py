"""The agent is reached through a port that the kernel has a driver for."""

from pathlib import Path

import pytest

from hugepage_qa.qemu import agent_machine
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.qemu.virtual_machine import VirtualMachine


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
) -> None:
    files = [tmp_path / name for name in modules]
    for file in files:
        file.touch()
    kernel = KernelImage(tmp_path / "bzImage", "x86_64", "6.1", config, tuple(files))
    command = list(agent_machine._devices(VirtualMachine(kernel, "max", (1 << 30,)), 7, None, {}))
    assert ("virtserialport,chardev=agent,name=hugepage-qa" in command) == is_virtio
    assert ("isa-serial,chardev=second" in command) == (not is_virtio)
    assert sum(word.endswith("fd=7") for word in command) == 1


def test_disks_with_other_file_systems_are_named_and_not_written_to(tmp_path: Path) -> None:
    kernel = KernelImage(tmp_path / "bzImage", "x86_64", "6.1", None)
    disks = {"xfs": tmp_path / "xfs.img"}
    command = list(agent_machine._devices(VirtualMachine(kernel, "max", (1 << 30,)), 7, None, disks))
    assert f"file={tmp_path}/xfs.img,format=raw,if=none,id=xfs,snapshot=on,cache=unsafe" in command
    assert "virtio-blk-pci,drive=xfs,serial=xfs" in command
