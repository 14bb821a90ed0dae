"""The partition table as firmware and kernel read it (UEFI specification, GUID Partition Table)."""

import os
import shutil
import struct
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.system import root_layout
from hugepage_qa.qemu.system.platforms import find_platform

PLATFORM = find_platform("x86_64")
SECTOR = 512

needs_sfdisk = pytest.mark.skipif(
    shutil.which("sfdisk", path="/usr/sbin:/sbin:/usr/bin:/bin") is None, reason="sfdisk is not installed"
)


class Found(NamedTuple):
    """A partition as the table has it, in bytes."""

    name: str
    type: str
    uuid: str
    start: int
    size: int


def read_gpt(disk: Path) -> list[Found]:
    """Return the partitions of ``disk``; the checksums must be right."""
    with disk.open("rb") as file:
        file.seek(SECTOR)
        header = file.read(SECTOR)
        signature, _, size, crc, _, place, _, first, last = struct.unpack_from("<8sIIIIQQQQ", header)
        entries_at, count, entry_size, entries_crc = struct.unpack_from("<QIII", header, 72)
        assert (signature, place) == (b"EFI PART", 1)
        assert zlib.crc32(header[:16] + b"\0\0\0\0" + header[20:size]) == crc
        file.seek(entries_at * SECTOR)
        entries = file.read(count * entry_size)
    assert zlib.crc32(entries) == entries_crc
    found = []
    for at in range(0, len(entries), entry_size):
        kind, own_id, start, end, _, name = struct.unpack_from("<16s16sQQQ72s", entries, at)
        if any(kind):
            assert first <= start <= end <= last
            text = name.decode("utf-16-le").rstrip("\0")
            type_id, own = (str(uuid.UUID(bytes_le=one)).upper() for one in (kind, own_id))
            found.append(Found(text, type_id, own, start * SECTOR, (end + 1 - start) * SECTOR))
    return found


@needs_sfdisk
def test_firmware_and_kernel_find_their_partitions(tmp_path: Path) -> None:
    disk = tmp_path / "disk.raw"
    root_layout.write_partition_table(disk, PLATFORM)
    esp, root = read_gpt(disk)
    assert (esp.name, esp.type) == ("esp", "C12A7328-F81F-11D2-BA4B-00A0C93EC93B")
    assert (root.name, root.type, root.uuid) == ("root", PLATFORM.root_type, root_layout.ROOT_PARTUUID.upper())
    assert esp.start % (1 << 20) == root.start % (1 << 20) == 0
    assert esp.start + esp.size <= root.start
    # FAT32 with clusters of 512 bytes needs 33 MiB
    assert esp.size >= 33 << 20
    assert root.start + root.size <= root_layout.DISK_SIZE


@needs_sfdisk
def test_disk_is_sparse(tmp_path: Path) -> None:
    disk = tmp_path / "disk.raw"
    root_layout.write_partition_table(disk, PLATFORM)
    status = disk.stat()
    assert status.st_size == root_layout.DISK_SIZE
    assert status.st_blocks * 512 < 1 << 20


def test_file_system_lands_in_the_root_partition_with_its_holes(tmp_path: Path) -> None:
    disk, filesystem = tmp_path / "disk.raw", tmp_path / "root.ext4"
    with disk.open("wb") as image:
        image.truncate(root_layout.DISK_SIZE)
    pieces = {0: b"head", 40 << 20: b"x" * 5000, (300 << 20) - 4: b"tail"}
    with filesystem.open("wb") as image:
        for place, content in pieces.items():
            image.seek(place)
            image.write(content)
    root_layout.write_root_partition(disk, PLATFORM, filesystem)
    _, root = root_layout.partitions(PLATFORM)
    with disk.open("rb") as image:
        for place, content in pieces.items():
            image.seek(root.start + place)
            assert image.read(len(content)) == content
    assert disk.stat().st_blocks * 512 < 2 << 20


@pytest.mark.parametrize("content", [b"", b"full"])
def test_extents_of_files_without_holes(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    descriptor = os.open(file, os.O_RDONLY)
    try:
        assert [list(one) for one in root_layout._extents(descriptor)] == ([[0, len(content)]] if content else [])
    finally:
        os.close(descriptor)


def test_sfdisk_that_refuses_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, install: Callable[[Path, str, str], None]
) -> None:
    install(tmp_path / "bin", "sfdisk", "echo 'no such label' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with pytest.raises(InputError, match=r"sfdisk cannot write.*no such label"):
        root_layout.write_partition_table(tmp_path / "disk", PLATFORM)
