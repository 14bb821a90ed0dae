"""What a kernel image file is, from its bytes: architecture, release and, where reachable, configuration."""

import gzip
import re
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.sizes import MIB
from hugepage_qa.version import KernelVersion

_BANNER = re.compile(rb"Linux version (\d+\.\d+[^\s\0%]*[^\n\0%]*)")
_FORMATS = "x86 bzImage, arm64 Image (plain, gzip or EFI zboot), ppc64le ELF vmlinux or s390x bzImage"
UNPACKED_LIMIT = 512 * MIB
"""Bytes that an unpacked kernel may have; a larger one is a decompression bomb, not a kernel."""

_ELF_X86_64 = 62
_ELF_PPC64 = 21
_PT_NOTE = 4
_XEN_ELFNOTE_PHYS32_ENTRY = 18


@dataclass(frozen=True)
class KernelImage:
    """A kernel image file that QEMU can boot with ``-kernel``."""

    path: Path
    architecture: str
    release: str
    """What ``uname -r`` prints under this kernel."""
    config: Mapping[str, str] | None
    """``CONFIG_X`` to ``y``, ``m`` or a value, for the options that are set; None when there is no configuration."""
    modules: tuple[Path, ...] = ()
    """Those in its package that a machine may need, perhaps compressed; none for an image that came alone."""
    banner: str = ""
    """What it says of itself in /proc/version, from the release on."""

    @property
    def version(self) -> KernelVersion:
        """The version of this kernel. Raises InputError for a release that is none."""
        return KernelVersion.parse(self.release, self.banner)


def identify(path: Path, expected: str | None = None) -> KernelImage:
    """Return what kernel image ``path`` is.

    Raises InputError, naming the file and what was expected, when it is missing, empty, no such kernel, or for another
    architecture than the one that is ``expected``.
    """
    data = _read(path)
    for architecture, find_banner in _READERS.items():
        banner = find_banner(data)
        if banner is not None:
            release = banner.partition(" ")[0]
            if not release:
                raise InputError(f"{path}: a kernel image for {architecture} that names no version")
            if expected not in (None, architecture):
                raise InputError(f"{path} is a kernel for {architecture}: expected one for {expected}")
            return KernelImage(path, architecture, release, _find_config(path, release, data), banner=banner)
    if data.startswith(b"\x7fELF"):
        raise InputError(
            f"{path}: an ELF file that QEMU cannot boot (an x86 vmlinux needs CONFIG_PVH): use the bzImage"
        )
    raise InputError(f"{path}: expected a kernel image ({_FORMATS})")


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise InputError(f"{path}: {'not a file' if path.exists() else 'no such file'}, expected a kernel image")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}), expected a kernel image") from error
    if not data:
        raise InputError(f"{path}: the file is empty, expected a kernel image ({_FORMATS})")
    return data


def _banner_in(data: bytes) -> str:
    """Return the banner of an unpacked kernel, from the release on, or an empty string."""
    match = _BANNER.search(data)
    return match[1].decode(errors="replace") if match else ""


def _text_at(data: bytes, start: int) -> str:
    return data[start : start + 256].split(b"\0", 1)[0].decode(errors="replace").strip()


def _x86(data: bytes) -> str | None:
    """Documentation/arch/x86/boot.rst: ``kernel_version`` points to the text, less 0x200."""
    if data[0x202:0x206] == b"HdrS":
        start = struct.unpack_from("<H", data, 0x20E)[0] + 0x200
        return _text_at(data, start) if start > 0x200 else ""  # noqa: PLR2004
    return _banner_in(data) if is_pvh_kernel(data) else None


def _arm64(data: bytes) -> str | None:
    """Documentation/arch/arm64/booting.rst: the magic is at 56; zboot is an EFI program around a packed Image."""
    if data[4:8] == b"zimg":
        data = _unpack_zboot(data)
    elif data.startswith(b"\x1f\x8b"):
        data = _gunzip(data)
    return _banner_in(data) if data[56:60] == b"ARM\x64" else None


def _ppc64le(data: bytes) -> str | None:
    return _banner_in(data) if _elf_machine(data) == _ELF_PPC64 else None


def _s390x(data: bytes) -> str | None:
    """arch/s390/include/asm/setup.h: the IPL record says S390EP, ``parmarea.kernel_version`` points to the text."""
    if data[0x10008:0x1000E] != b"S390EP" or len(data) < 0x10430:  # noqa: PLR2004
        return None
    start = int(struct.unpack_from(">Q", data, 0x10428)[0])
    return _text_at(data, start) if start else ""


_READERS: Mapping[str, Callable[[bytes], str | None]] = {
    "x86_64": _x86,
    "aarch64": _arm64,
    "ppc64le": _ppc64le,
    "s390x": _s390x,
}


def _elf_machine(data: bytes) -> int | None:
    """Return e_machine of a 64-bit little-endian ELF file, None for anything else."""
    if data[:6] != b"\x7fELF\x02\x01" or len(data) < 64:  # noqa: PLR2004 - size of the ELF header
        return None
    return int(struct.unpack_from("<H", data, 18)[0])


def is_pvh_kernel(data: bytes) -> bool:
    """Tell whether ``data`` is an x86 vmlinux that QEMU can enter itself."""
    return _elf_machine(data) == _ELF_X86_64 and _has_pvh_note(data)


def _has_pvh_note(data: bytes) -> bool:
    """True if the ELF file says where a PVH boot loader enters it; QEMU's -kernel needs that for an x86 vmlinux."""
    offset, size, count = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)
    for header in range(offset, offset + size * count, size or 1):
        if header + 56 > len(data):
            return False
        kind, _, start, _, _, length = struct.unpack_from("<IIQQQQ", data, header)
        if kind == _PT_NOTE and _note_of(data[start : start + length], b"Xen\0", _XEN_ELFNOTE_PHYS32_ENTRY):
            return True
    return False


def _note_of(notes: bytes, owner: bytes, wanted: int) -> bool:
    position = 0
    while position + 12 <= len(notes):
        name_size, content_size, kind = struct.unpack_from("<III", notes, position)
        position += 12
        if kind == wanted and notes[position : position + name_size] == owner:
            return True
        position += -(-name_size // 4) * 4 + -(-content_size // 4) * 4
    return False


def _gunzip(data: bytes) -> bytes:
    """Return the unpacked start of gzip ``data``; empty when it is none. What follows the stream is ignored."""
    try:
        return zlib.decompressobj(wbits=31).decompress(data, UNPACKED_LIMIT)
    except zlib.error:
        return b""


def _unpack_zboot(data: bytes) -> bytes:
    """Return the Image inside an EFI zboot program (linux drivers/firmware/efi/libstub/zboot-header.S)."""
    offset, size = struct.unpack_from("<II", data, 8)
    method = data[24:56].split(b"\0", 1)[0]
    # QEMU itself unpacks gzip only, from version 8.0 on
    return _gunzip(data[offset : offset + size]) if method == b"gzip" else b""


def _find_config(path: Path, release: str, data: bytes) -> Mapping[str, str] | None:
    """Return the configuration beside the image (Debian's or Fedora's name for it) or inside the image."""
    for name in (f"config-{release}", "config") if path.parent.name == release else (f"config-{release}",):
        file = path.with_name(name)
        if file.is_file():
            return parse_config(file.read_text(errors="replace"))
    embedded = _embedded_config(data) or _embedded_config(_gunzip(data))
    return parse_config(embedded) if embedded else None


def _embedded_config(data: bytes) -> str:
    """Return what CONFIG_IKCONFIG put between the marks IKCFG_ST and IKCFG_ED, or an empty string."""
    start = data.find(b"IKCFG_ST\x1f\x8b")
    return _gunzip(data[start + 8 :]).decode(errors="replace") if start >= 0 else ""


def parse_config(text: str) -> Mapping[str, str]:
    """Return the options that are set in kernel configuration ``text``, strings without their quotes."""
    pairs = (line.partition("=") for line in text.splitlines() if line.startswith("CONFIG_"))
    return {name: value.strip().strip('"') for name, separator, value in pairs if separator}


def read_config(path: Path) -> Mapping[str, str]:
    """Return the options that are set in configuration file ``path``, which may be gzip (/proc/config.gz)."""
    data = path.read_bytes()
    return parse_config((gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data).decode(errors="replace"))


def read_running_config(release: str) -> Mapping[str, str] | None:
    """Return the options that are set in the running kernel of version ``release``; None where no file tells."""
    places = (f"/boot/config-{release}", f"/lib/modules/{release}/config", "/proc/config.gz")
    path = next((Path(place) for place in places if Path(place).is_file()), None)
    return read_config(path) if path else None
