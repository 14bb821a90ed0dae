"""QEMU's command line."""

from pathlib import Path

import pytest

from hugepage_qa.qemu.system import system_arguments
from hugepage_qa.qemu.system.platforms import find_platform
from hugepage_qa.qemu.system.root_layout import ROOT_PARTUUID
from hugepage_qa.qemu.system.system_arguments import (
    DirectBoot,
    Hardware,
    finishing_devices,
    machine_arguments,
)
from hugepage_qa.sizes import GIB

PLATFORM = find_platform("x86_64")
FIRMWARE = Path("/usr/share/OVMF/CODE.fd")


def command(direct: DirectBoot | None = None, memory: tuple[int, ...] = (GIB, GIB), accelerator: str = "tcg") -> str:
    hardware = Hardware(PLATFORM, memory, 4, accelerator)
    return " ".join(machine_arguments(hardware, "lab1", 2222, FIRMWARE, direct))


def test_boot_loader_is_started_by_the_firmware() -> None:
    line = command()
    assert "unit=0,readonly=on,file=/usr/share/OVMF/CODE.fd" in line
    assert "unit=1,file=firmware.fd" in line
    assert "-kernel" not in line
    assert "-append" not in line


@pytest.mark.parametrize("initramfs", [True, False])
def test_image_is_started_without_firmware(initramfs: bool) -> None:
    line = command(DirectBoot("hugepages=1 x=a,b", initramfs))
    assert (
        f"-kernel kernel -append console=ttyS0 no_timer_check root=PARTUUID={ROOT_PARTUUID} ro hugepages=1 x=a,b"
        in line
    )
    assert ("-initrd initramfs" in line) is initramfs
    assert "pflash" not in line


def test_ssh_is_open_to_this_host_alone() -> None:
    assert "hostfwd=tcp:127.0.0.1:2222-:22" in command()


def test_nodes_share_cpus() -> None:
    line = command()
    assert "node,nodeid=0,cpus=0,cpus=2,memdev=node0" in line
    assert "node,nodeid=1,cpus=1,cpus=3,memdev=node1" in line


def test_cpu_has_gigantic_pages() -> None:
    assert "-accel tcg -cpu max,-erms,-fsrm,-svm,min-xlevel=0x8000000a,model=4,stepping=1 " in command()
    assert "-accel kvm -cpu host " in command(accelerator="kvm")


def test_guest_flushes_reach_the_disk() -> None:
    assert "cache=unsafe" not in command()


def test_socket_address_does_not_depend_on_the_cache() -> None:
    assert "-qmp unix:qmp.sock,server=on,wait=off -daemonize -pidfile qemu.pid" in command()
    assert "path=../lab1.serial.log,append=on" in command()


def test_first_boot_has_the_root_and_the_settings() -> None:
    line = " ".join(finishing_devices(Path("/a,b/disk"), Path("/s")))
    assert "file=/a,,b/disk,format=qcow2" in line
    assert "serial=settings" in line


def test_every_name_in_the_machines_directory_is_relative() -> None:
    names = (
        system_arguments.DISK,
        system_arguments.FIRMWARE_VARIABLES,
        system_arguments.QMP_SOCKET,
        system_arguments.PID_FILE,
        system_arguments.KERNEL,
    )
    assert not [name for name in names if "/" in name]
