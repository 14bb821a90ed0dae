"""What a whole system needs of its architecture beyond a probe machine: firmware, boot loader, packages."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.boards import Board, find_board


@dataclass(frozen=True)
class Firmware:
    """UEFI firmware for QEMU: one file for all machines, and one template of the variables that each keeps."""

    code: Path
    variables: Path


@dataclass(frozen=True)
class Platform:
    """An architecture on which whole systems are built and booted."""

    board: Board
    firmware: tuple[Firmware, ...]
    """Where the distributions put it, the first that is there counts."""
    debian_firmware: str
    """Package that holds the firmware on Debian."""
    rpm_firmware: str
    """Package that holds the firmware on Fedora."""
    grub_target: str
    """Value of grub-install's --target."""
    grub_package: str
    """Debian's package that installs GRUB for this target and runs update-grub for new kernels."""
    root_type: str
    """GPT partition type of a root file system (Discoverable Partitions Specification)."""


_X86_64 = Platform(
    board=find_board("x86_64"),
    firmware=(
        Firmware(Path("/usr/share/OVMF/OVMF_CODE_4M.fd"), Path("/usr/share/OVMF/OVMF_VARS_4M.fd")),
        Firmware(Path("/usr/share/edk2/ovmf/OVMF_CODE.fd"), Path("/usr/share/edk2/ovmf/OVMF_VARS.fd")),
    ),
    debian_firmware="ovmf",
    rpm_firmware="edk2-ovmf",
    grub_target="x86_64-efi",
    grub_package="grub-efi-amd64",
    root_type="4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709",
)

PLATFORMS: Mapping[str, Platform] = {platform.board.architecture: platform for platform in (_X86_64,)}


def find_platform(architecture: str) -> Platform:
    """Return the platform of ``architecture``; InputError lists those that a system machine can have."""
    try:
        return PLATFORMS[architecture]
    except KeyError:
        raise InputError(
            f"architecture {architecture!r}: a system machine can be {', '.join(PLATFORMS)},"
            " for others use a probe machine (hugepage-qa boot)"
        ) from None
