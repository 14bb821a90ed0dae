"""The kernel inside an x86 bzImage: entered directly, a machine need not unpack it, which is much of an emulated boot.

A bzImage is a small program with a packed ELF file (Documentation/arch/x86/boot.rst: payload_offset), and QEMU starts
that file itself where it has a PVH entry (linux arch/x86/platform/pvh, CONFIG_PVH).
"""

import bz2
import hashlib
import lzma
import shutil
import struct
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from hugepage_qa.cache import locked, write_atomically
from hugepage_qa.oracle.boot.cstring import memparse
from hugepage_qa.parameters import parse_parameters
from hugepage_qa.qemu.accelerator import TCG
from hugepage_qa.qemu.kernel_image import UNPACKED_LIMIT, is_pvh_kernel
from hugepage_qa.qemu.virtual_machine import VirtualMachine
from hugepage_qa.sizes import GIB, MIB

_LZ4_BLOCK = 8 * MIB
"""Bytes that one block of the legacy LZ4 format unpacks to, at most (linux lib/decompress_unlz4.c)."""
_KEPT_SECONDS = 7 * 24 * 3600
_LAYOUT = ("mem", "memmap", "movable_node", "kaslr", "nokaslr", "efi_fake_mem")
_PAGE_SIZES = ("hugepagesz", "default_hugepagesz")


def entered_directly(machine: VirtualMachine, cache: Path) -> VirtualMachine:
    """Return ``machine`` with what is in its kernel's image, kept below ``cache``, in place of that image.

    The machine itself is returned where that gains nothing (under KVM) or cannot be done (no bzImage, no PVH entry),
    and for words that the program around the kernel reads, as it looks for a place that gigantic pages do not need
    (arch/x86/boot/compressed/kaslr.c, since 4.19): then it has to run, as on any other machine.
    """
    kernel = machine.kernel
    if machine.accelerator != TCG or kernel.architecture != "x86_64" or is_read_while_unpacking(machine.command_line):
        return machine
    data = kernel.path.read_bytes()
    packed = _payload(data)
    if not packed:
        return machine
    unpacked = cache / "kernels" / hashlib.sha256(data).hexdigest() / "vmlinux"
    with locked(cache / "kernels" / ".lock"):
        if not unpacked.exists():
            # an empty file remembers that there is nothing to enter
            found = _unpack(packed)
            write_atomically(unpacked, found if found and is_pvh_kernel(found) else b"")
        unpacked.touch()
        _forget_unused(cache / "kernels")
    return replace(machine, kernel=replace(kernel, path=unpacked)) if unpacked.stat().st_size else machine


def _forget_unused(kernels: Path) -> None:
    """Remove what was not booted for a week: who builds kernels has many of 60 MiB."""
    for old in kernels.glob("*/vmlinux"):
        if old.stat().st_mtime < time.time() - _KEPT_SECONDS:
            shutil.rmtree(old.parent)


def is_read_while_unpacking(command_line: str) -> bool:
    """Tell whether the program that unpacks a kernel looks at words of ``command_line``, but for its console."""
    return any(
        word.name in _LAYOUT or (word.name in _PAGE_SIZES and memparse(word.value or "")[0] == GIB)
        for word in parse_parameters(command_line)
    )


def _payload(data: bytes) -> bytes:
    """Return what is packed into the bzImage ``data``, empty when it is none."""
    if data[0x202:0x206] != b"HdrS" or struct.unpack_from("<H", data, 0x206)[0] < 0x208:  # noqa: PLR2004 - version 2.08
        return b""
    start = (data[0x1F1] + 1) * 512 + struct.unpack_from("<I", data, 0x248)[0]
    return data[start : start + struct.unpack_from("<I", data, 0x24C)[0]]


def _unpack(packed: bytes) -> bytes:
    """Return what is in ``packed``, empty where it is broken or packed in a way that is not known here."""
    for magic, unpack in _METHODS.items():
        if packed.startswith(magic):
            try:
                unpacked = unpack(packed)
            except (zlib.error, lzma.LZMAError, OSError, ValueError, RuntimeError, struct.error):
                return b""
            return unpacked if len(unpacked) < UNPACKED_LIMIT else b""
    return b""


def _unpack_zstd(packed: bytes) -> bytes:
    import zstandard  # noqa: PLC0415 - loaded where a kernel is packed so

    try:
        # the kernel's size stands behind the one frame that is read
        return zstandard.ZstdDecompressor().stream_reader(packed).read(UNPACKED_LIMIT)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error


def _unpack_lz4(packed: bytes) -> bytes:
    """The legacy format: after the magic blocks, each behind its size in 4 bytes; the kernel's size ends it."""
    import lz4.block  # noqa: PLC0415 - loaded where a kernel is packed so

    blocks = []
    position = 4
    while position + 8 <= len(packed):
        size = struct.unpack_from("<I", packed, position)[0]
        position += 4
        blocks.append(lz4.block.decompress(packed[position : position + size], uncompressed_size=_LZ4_BLOCK))
        position += size
    return b"".join(blocks)


_METHODS: Mapping[bytes, Callable[[bytes], bytes]] = {
    b"\x1f\x8b": lambda packed: zlib.decompressobj(wbits=31).decompress(packed, UNPACKED_LIMIT),
    b"BZh": lambda packed: bz2.BZ2Decompressor().decompress(packed, UNPACKED_LIMIT),
    b"\xfd7zXZ\0": lambda packed: lzma.LZMADecompressor().decompress(packed, UNPACKED_LIMIT),
    b"\x5d\0\0": lambda packed: lzma.LZMADecompressor(lzma.FORMAT_ALONE).decompress(packed, UNPACKED_LIMIT),
    b"\x28\xb5\x2f\xfd": _unpack_zstd,
    b"\x02\x21\x4c\x18": _unpack_lz4,
}
