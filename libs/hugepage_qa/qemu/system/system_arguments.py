"""QEMU's command line for system machines."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.qemu.boards import find_cpu
from hugepage_qa.qemu.emulator import quoted
from hugepage_qa.qemu.system.platforms import Platform
from hugepage_qa.qemu.system.root_layout import ROOT_PARTUUID
from hugepage_qa.qemu.virtual_machine import BARE, memory_arguments, processor_arguments

# names within the directory of a machine, which is QEMU's working directory: they may not depend on where it lies,
# for a socket's path has 107 bytes at most
DISK = "disk.qcow2"
FIRMWARE_VARIABLES = "firmware.fd"
QMP_SOCKET = "qmp.sock"
PID_FILE = "qemu.pid"
KERNEL = "kernel"
INITRAMFS = "initramfs"


def serial_log(name: str) -> str:
    """Return the serial log of machine ``name``: beside its directory, because a machine that fails leaves it."""
    return f"../{name}.serial.log"


@dataclass(frozen=True)
class Hardware:
    """What a system machine is made of."""

    platform: Platform
    memory: tuple[int, ...]
    """Bytes of each NUMA node; 0 is a node without memory, which then has a CPU."""
    cpus: int
    accelerator: str


@dataclass(frozen=True)
class DirectBoot:
    """A kernel in the directory of the machine that QEMU loads itself, without firmware and boot loader."""

    words: str
    initramfs: bool


def root_words(words: str) -> str:
    """Return the kernel parameters that mount the root partition, and ``words``.

    The partition's UUID needs no initramfs, unlike that of the file system.
    """
    return f"root=PARTUUID={ROOT_PARTUUID} ro {words}".strip()


def machine_arguments(
    hardware: Hardware, name: str, port: int, firmware: Path, direct: DirectBoot | None
) -> tuple[str, ...]:
    """Return the arguments of machine ``name``, whose ssh answers on the loopback ``port``.

    QEMU goes to the background once the machine is set up, and the files are named relative to its directory.
    """
    board = hardware.platform.board
    return (
        *BARE,
        *("-name", f"hugepage-qa-{name}"),
        *processor_arguments(board, find_cpu(board, None), hardware.accelerator),
        *memory_arguments(hardware.memory, hardware.cpus),
        *("-chardev", f"file,id=console,path={serial_log(name)},append=on", *board.serial),
        *(_direct_arguments(hardware.platform, direct) if direct else _firmware_arguments(firmware)),
        *("-drive", f"file={DISK},format=qcow2,if=none,id=root"),
        *("-device", "virtio-blk-pci,drive=root"),
        *("-netdev", f"user,id=network,ipv6=off,hostfwd=tcp:127.0.0.1:{port}-:22"),
        # without an option ROM: nothing is booted from the network
        *("-device", "virtio-net-pci,netdev=network,romfile="),
        *("-qmp", f"unix:{QMP_SOCKET},server=on,wait=off"),
        *("-daemonize", "-pidfile", PID_FILE),
    )


def _firmware_arguments(firmware: Path) -> Iterator[str]:
    yield from ("-drive", f"if=pflash,format=raw,unit=0,readonly=on,file={quoted(firmware)}")
    yield from ("-drive", f"if=pflash,format=raw,unit=1,file={FIRMWARE_VARIABLES}")


def _direct_arguments(platform: Platform, direct: DirectBoot) -> Iterator[str]:
    yield from ("-kernel", KERNEL, "-append", f"{platform.board.kernel_words} {root_words(direct.words)}")
    if direct.initramfs:
        yield from ("-initrd", INITRAMFS)


def finishing_devices(disk: Path, settings: Path) -> Iterator[str]:
    """Yield the arguments for the disks of the first boot: the root, and the file ``settings`` for finish.sh."""
    # a build that is cut off is thrown away: nothing needs to reach the host's disk
    yield from ("-drive", f"file={quoted(disk)},format=qcow2,if=none,id=root,cache=unsafe")
    yield from ("-device", "virtio-blk-pci,drive=root")
    yield from ("-drive", f"file={quoted(settings)},format=raw,if=none,id=settings,readonly=on")
    yield from ("-device", "virtio-blk-pci,drive=settings,serial=settings")
