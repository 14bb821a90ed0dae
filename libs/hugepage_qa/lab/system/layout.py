"""The disk of a system machine: GPT with an EFI system partition and a root partition, made without mounts.

Partition devices of loop devices do not appear in containers and without udev, so the root file system is copied to its
place in the disk image, and the EFI one is made by the machine itself (finish.sh).
"""

import errno
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.lab.system.platforms import Platform
from hugepage_qa.lab.system.tools import SFDISK, program
from hugepage_qa.sizes import GIB, KIB, MIB

SECTOR = 512
DISK_SIZE = 8 * GIB
"""Bytes of the disk; it is sparse, a fresh root takes less than one GiB of it."""

#: the same on every disk: a kernel without an initramfs finds its root by it
ROOT_PARTUUID = "6f2a9d1e-0c37-4b58-9a64-1d5e8f7b2c03"

_PIECE = 16 * MIB
_ESP_TYPE = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B"


@dataclass(frozen=True)
class Partition:
    """One partition; start and size in bytes."""

    name: str
    type: str
    start: int
    size: int
    uuid: str


_ESP_START = MIB
_ROOT_START = _ESP_START + 64 * MIB
# the last MiB keeps the second copy of the partition table
_ROOT_SIZE = DISK_SIZE - _ROOT_START - MIB


def partitions(platform: Platform) -> tuple[Partition, Partition]:
    """Return the EFI system partition and the root partition."""
    esp_uuid = "0b7c41d5-52e9-4e0f-8f0e-6a2f3c9d7e11"
    return (
        Partition("esp", _ESP_TYPE, _ESP_START, _ROOT_START - _ESP_START, esp_uuid),
        Partition("root", platform.root_type, _ROOT_START, _ROOT_SIZE, ROOT_PARTUUID),
    )


def sfdisk_script(platform: Platform) -> str:
    """Return what sfdisk reads to write the partition table."""
    lines = [
        f"start={one.start // SECTOR}, size={one.size // SECTOR}, type={one.type}, uuid={one.uuid}, name={one.name}"
        for one in partitions(platform)
    ]
    return "\n".join(["label: gpt", *lines, ""])


def write_partition_table(disk: Path, platform: Platform) -> None:
    """Make ``disk`` a sparse image with an empty partition of each kind; InputError when sfdisk refuses."""
    with disk.open("wb") as image:
        image.truncate(DISK_SIZE)
    command = [program(SFDISK), "--quiet", str(disk)]
    done = subprocess.run(command, input=sfdisk_script(platform), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise InputError(f"sfdisk cannot write a partition table to {disk}: {done.stderr.strip()}")


def root_filesystem_arguments(platform: Platform, filesystem: Path, root: Path) -> list[str]:
    """Return mke2fs's arguments that make ``filesystem`` of the files below ``root``, as large as its partition."""
    _, partition = partitions(platform)
    size = f"{partition.size // KIB}k"
    return ["-q", "-t", "ext4", "-L", "root", "-d", str(root), "-E", "root_owner=0:0", str(filesystem), size]


def write_root_partition(disk: Path, platform: Platform, filesystem: Path) -> None:
    """Copy the image ``filesystem`` into the root partition of ``disk``; its holes stay holes."""
    _, partition = partitions(platform)
    with filesystem.open("rb") as source, disk.open("r+b") as target:
        for start, end in _extents(source.fileno()):
            source.seek(start)
            target.seek(partition.start + start)
            left = end - start
            while left:
                piece = source.read(min(left, _PIECE))
                target.write(piece)
                left -= len(piece)


def _extents(file: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of every part of ``file`` that is no hole."""
    end, size = 0, os.fstat(file).st_size
    while end < size:
        try:
            start = os.lseek(file, end, os.SEEK_DATA)
        except OSError as error:
            # no data until the end
            if error.errno == errno.ENXIO:
                return
            raise
        end = os.lseek(file, start, os.SEEK_HOLE)
        yield start, end
