"""The kernel inside a bzImage, which QEMU enters itself."""

import bz2
import gzip
import lzma
import os
import struct
from collections.abc import Callable
from pathlib import Path

import lz4.block
import pytest
import zstandard

from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.qemu.unpacked_kernel import entered_directly, is_read_while_unpacking
from hugepage_qa.qemu.virtual_machine import VirtualMachine
from hugepage_qa.sizes import GIB

NOTE = struct.pack("<III", 4, 4, 18) + b"Xen\0" + bytes(4)
SEGMENT = struct.pack("<IIQQQQ", 4, 0, 120, 0, 0, len(NOTE)) + bytes(16)
PVH = b"\x7fELF\x02\x01" + bytes(12) + struct.pack("<H", 62) + bytes(12) + struct.pack("<Q", 64) + bytes(14)
VMLINUX = PVH + struct.pack("<HH", 56, 1) + bytes(6) + SEGMENT + NOTE + b"kernel" * 1000
SIZE = struct.pack("<I", len(VMLINUX))


def packed_by_lz4(content: bytes) -> bytes:
    block: bytes = lz4.block.compress(content, store_size=False)
    return b"\x02\x21\x4c\x18" + struct.pack("<I", len(block)) + block + SIZE


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": lambda content: bz2.compress(content) + SIZE,
    "xz": lambda content: lzma.compress(content) + SIZE,
    "lzma": lambda content: lzma.compress(content, lzma.FORMAT_ALONE) + SIZE,
    "zstd": lambda content: zstandard.compress(content) + SIZE,
    "lz4": packed_by_lz4,
}


def machine(directory: Path, payload: bytes, words: str = "", accelerator: str = "tcg") -> VirtualMachine:
    """A machine with a bzImage that holds ``payload`` behind one sector of set-up code."""
    head = bytearray(1024)
    head[0x1F1] = 1
    head[0x202:0x208] = b"HdrS\x0f\x02"
    head[0x248:0x250] = struct.pack("<II", 16, len(payload))
    image = directory / "bzImage"
    image.write_bytes(bytes(head) + bytes(16) + payload + b"what follows")
    return VirtualMachine(KernelImage(image, "x86_64", "6.1.0", None), "max", (GIB,), words, accelerator=accelerator)


@pytest.mark.parametrize("method", PACKERS)
def test_what_is_in_the_image_is_entered(tmp_path: Path, method: str) -> None:
    entered = entered_directly(machine(tmp_path, PACKERS[method](VMLINUX)), tmp_path)
    assert entered.kernel.path.read_bytes() == VMLINUX
    assert entered.kernel.release == "6.1.0"


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(gzip.compress(VMLINUX.replace(b"Xen", b"GNU")), id="no PVH entry"),
        pytest.param(gzip.compress(b"no ELF file"), id="no ELF file"),
        pytest.param(zstandard.compress(VMLINUX)[:40], id="cut"),
        pytest.param(b"\x89LZO\0\r\n\x1a\n", id="packed in another way"),
        pytest.param(b"", id="empty"),
    ],
)
def test_an_image_that_holds_nothing_to_enter_unpacks_itself(tmp_path: Path, payload: bytes) -> None:
    packed = machine(tmp_path, payload)
    assert entered_directly(packed, tmp_path) == packed
    assert entered_directly(packed, tmp_path) == packed, "it is remembered"


def test_what_was_not_booted_for_long_is_removed(tmp_path: Path) -> None:
    first = entered_directly(machine(tmp_path, gzip.compress(VMLINUX)), tmp_path).kernel.path
    os.utime(first, (0, 0))
    second = entered_directly(machine(tmp_path, bz2.compress(VMLINUX)), tmp_path).kernel.path
    assert second.exists()
    assert not first.exists()


def test_kvm_unpacks_fast_enough(tmp_path: Path) -> None:
    packed = machine(tmp_path, gzip.compress(VMLINUX), accelerator="kvm")
    assert entered_directly(packed, tmp_path) == packed


@pytest.mark.parametrize(
    ("words", "is_read"),
    [
        ("hugepages=4", False),
        ("hugepagesz=2M hugepages=4", False),
        ("hugepagesz=1G hugepages=1", True),
        ("default_hugepagesz=1024M", True),
        ("default_hugepagesz", False),
        ("mem=1G", True),
        ("memmap=64M$1G", True),
        ("nokaslr", True),
        ('quoted="mem=1G"', False),
        ("-- mem=1G", False),
    ],
)
def test_words_that_the_unpacking_program_reads_make_it_run(tmp_path: Path, words: str, is_read: bool) -> None:
    assert is_read_while_unpacking(words) == is_read
    packed = machine(tmp_path, gzip.compress(VMLINUX), words)
    assert (entered_directly(packed, tmp_path) == packed) == is_read
