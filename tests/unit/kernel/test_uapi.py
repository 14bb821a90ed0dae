"""What architectures differ in, each number by the header that it comes from."""

import os
import platform
import sys

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.uapi import UAPIS, Uapi, find_uapi, iowr
from hugepage_qa.oracle.architecture import MMUS


def test_every_architecture_that_has_page_sizes_has_numbers() -> None:
    assert {mmu.architecture for mmu in MMUS.values()} == set(UAPIS)


@pytest.mark.parametrize(
    ("architecture", "noreserve", "locked"),
    [("x86_64", 0x4000, 0x2000), ("aarch64", 0x4000, 0x2000), ("ppc64le", 0x40, 0x80), ("s390x", 0x4000, 0x2000)],
)
def test_flags_of_mmap(architecture: str, noreserve: int, locked: int) -> None:
    uapi = find_uapi(architecture)
    assert (uapi.map_noreserve, uapi.map_locked) == (noreserve, locked)


@pytest.mark.parametrize(
    ("architecture", "direct", "directory", "tmpfile"),
    [
        ("x86_64", 0o40000, 0o200000, 0o20200000),
        ("aarch64", 0o200000, 0o40000, 0o20040000),
        ("ppc64le", 0o400000, 0o40000, 0o20040000),
        ("s390x", 0o40000, 0o200000, 0o20200000),
    ],
)
def test_flags_of_open(architecture: str, direct: int, directory: int, tmpfile: int) -> None:
    uapi = find_uapi(architecture)
    assert (uapi.o_direct, uapi.o_directory, uapi.o_tmpfile) == (direct, directory, tmpfile)


@pytest.mark.parametrize(("architecture", "advice"), [("x86_64", 4), ("aarch64", 4), ("ppc64le", 4), ("s390x", 6)])
def test_advice_of_fadvise(architecture: str, advice: int) -> None:
    assert find_uapi(architecture).posix_fadv_dontneed == advice


@pytest.mark.skipif(platform.machine() not in UAPIS, reason="Python names numbers of this architecture alone")
def test_numbers_are_those_that_python_has_on_this_machine() -> None:
    uapi = find_uapi(platform.machine())
    assert uapi.byte_order == sys.byteorder
    assert (uapi.o_direct, uapi.o_directory, uapi.o_tmpfile) == (os.O_DIRECT, os.O_DIRECTORY, os.O_TMPFILE)
    assert uapi.posix_fadv_dontneed == os.POSIX_FADV_DONTNEED


@pytest.mark.parametrize(
    ("architecture", "packed"),
    [("x86_64", "0100000002000000"), ("aarch64", "0100000002000000"), ("s390x", "0000000100000002")],
)
def test_values_are_as_the_machine_has_them_in_memory(architecture: str, packed: str) -> None:
    uapi = find_uapi(architecture)
    assert uapi.pack("2i", 1, 2).hex() == packed
    assert uapi.unpack("2i", bytes.fromhex(packed)) == (1, 2)


def test_nothing_is_padded() -> None:
    assert len(Uapi().pack("iQ", 1, 2)) == 12


@pytest.mark.parametrize(("architecture", "packed"), [("ppc64le", "0200000000000000"), ("s390x", "0000000000000002")])
def test_a_bitmap_is_of_unsigned_longs(architecture: str, packed: str) -> None:
    uapi = find_uapi(architecture)
    assert uapi.bitmap([1, 1]).hex() == packed
    assert uapi.bitmap([1], words=2).hex() == packed + 16 * "0"
    assert uapi.bitmap([65]).hex() == 16 * "0" + packed


# UFFDIO_API and UFFDIO_COPY, by the macros of asm-generic, and of powerpc with its 3 bits for the direction
@pytest.mark.parametrize(("number", "size"), [(0x3F, 24), (0x03, 40)])
@pytest.mark.parametrize(("read", "write", "shift"), [(2, 1, 30), (2, 4, 29)])
def test_iowr_is_the_same_on_all_architectures(number: int, size: int, read: int, write: int, shift: int) -> None:
    assert iowr(0xAA, number, size) == (read | write) << shift | size << 16 | 0xAA << 8 | number


# UFFDIO_UNREGISTER
@pytest.mark.parametrize(
    ("architecture", "command"), [("x86_64", 0x8010AA01), ("aarch64", 0x8010AA01), ("ppc64le", 0x4010AA01)]
)
def test_ior_has_the_direction_where_the_architecture_has_it(architecture: str, command: int) -> None:
    assert find_uapi(architecture).ior(0xAA, 1, 16) == command


# UDMABUF_CREATE_LIST
@pytest.mark.parametrize(
    ("architecture", "command"), [("x86_64", 0x40087543), ("aarch64", 0x40087543), ("ppc64le", 0x80087543)]
)
def test_iow_has_the_direction_where_the_architecture_has_it(architecture: str, command: int) -> None:
    assert find_uapi(architecture).iow(ord("u"), 0x43, 8) == command


def test_another_architecture_is_named() -> None:
    with pytest.raises(InputError, match=r"machine 'riscv64': expected one of x86_64, aarch64, ppc64le, s390x"):
        find_uapi("riscv64")
