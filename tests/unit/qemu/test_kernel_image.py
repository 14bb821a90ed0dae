"""What a kernel image is, from its bytes."""

import gzip
import struct
from pathlib import Path

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.kernel_image import identify
from hugepage_qa.version import KernelVersion

BANNER = b"\0Linux version 6.12.5-qa+ (builder@host) (gcc) #1 SMP\n\0"
RELEASE = "6.12.5-qa+"


def bzimage(version: bytes = b"6.12.5-qa+ (builder@host) #1 SMP") -> bytes:
    data = bytearray(0x600)
    data[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", data, 0x20E, 0x300 if version else 0)
    data[0x500 : 0x500 + len(version)] = version
    return bytes(data)


def arm64() -> bytes:
    return bytes(56) + b"ARM\x64" + bytes(40) + BANNER


def zboot(method: bytes = b"gzip") -> bytes:
    payload = gzip.compress(arm64())
    header = b"MZ\0\0zimg" + struct.pack("<II", 64, len(payload)) + bytes(8) + method.ljust(32, b"\0")
    return header.ljust(64, b"\0") + payload


def elf(machine: int, *, pvh: bool = False) -> bytes:
    note = struct.pack("<III", 4, 4, 18) + b"Xen\0" + bytes(4)
    header = b"\x7fELF\x02\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 2, machine, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    program = struct.pack("<IIQQQQQQ", 4 if pvh else 1, 0, 120, 0, 0, len(note), len(note), 4)
    return header + program + note + BANNER


def s390x(version: bytes = b"6.12.5-qa+ (builder@host) #1 SMP") -> bytes:
    data = bytearray(0x11000)
    data[0x10008:0x1000E] = b"S390EP"
    struct.pack_into(">Q", data, 0x10428, 0x10800)
    data[0x10800 : 0x10800 + len(version)] = version
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "architecture"),
    [
        (bzimage(), "x86_64"),
        (elf(62, pvh=True), "x86_64"),
        (arm64(), "aarch64"),
        (gzip.compress(arm64()), "aarch64"),
        (zboot(), "aarch64"),
        (elf(21), "ppc64le"),
        (s390x(), "s390x"),
    ],
    ids=["bzImage", "pvh", "Image", "Image.gz", "zboot", "ppc64le", "s390x"],
)
def test_formats(tmp_path: Path, data: bytes, architecture: str) -> None:
    path = tmp_path / "kernel"
    path.write_bytes(data)
    image = identify(path)
    assert (image.architecture, image.release, image.config) == (architecture, RELEASE, None)


def test_a_kernel_of_debian_tells_its_own_version_behind_the_name_of_the_first_one(tmp_path: Path) -> None:
    path = tmp_path / "kernel"
    for build in ("#1 SMP", "# SMP"):
        text = f"6.1.0-50-amd64 (a@b) (gcc-12 (Debian 12.2.0-14) 12.2.0) {build} Debian 6.1.176-1 (2026-07-02)"
        for data in (bzimage(text.encode()), arm64().replace(BANNER, f"\0Linux version {text}\n\0".encode())):
            path.write_bytes(data)
            image = identify(path)
            assert (image.release, image.version) == ("6.1.0-50-amd64", KernelVersion(6, 1, 176))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"hello world" * 100, "expected a kernel image"),
        (b"\x1f\x8b broken gzip", "expected a kernel image"),
        (elf(62), "CONFIG_PVH"),
        (elf(62)[:70], "cannot boot"),
        (bzimage(b""), "names no version"),
        (elf(21).replace(b"Linux version", b"Minux version"), "names no version"),
        (s390x()[:0x10010], "expected a kernel image"),
        (zboot(b"zstd"), "expected a kernel image"),
    ],
)
def test_what_is_no_kernel_is_refused_by_name(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "thing"
    path.write_bytes(data)
    with pytest.raises(InputError, match=f"thing.*{message}"):
        identify(path)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        identify(tmp_path / "none")
    with pytest.raises(InputError, match="not a file"):
        identify(tmp_path)


CONFIG = '# comment\nCONFIG_HUGETLBFS=y\nCONFIG_KVM=m\nCONFIG_CMDLINE="a=b c"\n# CONFIG_CMA is not set\n'
SET = {"CONFIG_HUGETLBFS": "y", "CONFIG_KVM": "m", "CONFIG_CMDLINE": "a=b c"}


def test_config_beside_the_image(tmp_path: Path) -> None:
    (tmp_path / "vmlinuz").write_bytes(bzimage())
    (tmp_path / f"config-{RELEASE}").write_text(CONFIG)
    (tmp_path / "config-6.1").write_text("CONFIG_OTHER=y\n")
    assert identify(tmp_path / "vmlinuz").config == SET


def test_config_in_a_module_folder(tmp_path: Path) -> None:
    folder = tmp_path / RELEASE
    folder.mkdir()
    (folder / "vmlinuz").write_bytes(bzimage())
    (folder / "config").write_text(CONFIG)
    assert identify(folder / "vmlinuz").config == SET


def test_config_inside_the_image(tmp_path: Path) -> None:
    path = tmp_path / "Image"
    path.write_bytes(arm64() + b"IKCFG_ST" + gzip.compress(CONFIG.encode()) + b"IKCFG_ED")
    assert identify(path).config == SET
