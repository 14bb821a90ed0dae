"""Requests to KVM as strace(1) shows them, registers of a virtual processor, and statistics in made-up files.

The files are made up after include/uapi/linux/kvm.h.
"""

import struct

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.kernel import kvm
from hugepage_qa.kernel.kvm import (
    KvmRequest,
    ebp_in,
    in_protected_mode,
    read_kvm_directory,
    read_kvm_statistics,
    registers,
)
from hugepage_qa.kernel.tree import CapturedTree
from hugepage_qa.kernel.uapi import find_uapi

UAPI = find_uapi("x86_64")


@pytest.mark.parametrize(
    ("request_", "number"),
    [
        (kvm.CREATE_VM, 0xAE01),
        (kvm.RUN, 0xAE80),
        (kvm.SET_MEMORY, 0x4020AE46),
        (kvm.GET_DIRTY_LOG, 0x4010AE42),
        (kvm.GET_SPECIAL, 0x8138AE83),
        (kvm.SET_REGISTERS, 0x4090AE82),
        (kvm.SET_SIGNALS, 0x4004AE8B),
    ],
)
def test_requests_have_the_numbers_of_the_kernel(request_: KvmRequest, number: int) -> None:
    assert request_.number == number


def test_registers_are_as_long_as_the_request_says() -> None:
    content = registers(UAPI, edx=3, esi=1, edi=2, eip=0x1000)
    assert len(content) == kvm.SET_REGISTERS.size
    assert ebp_in(UAPI, content) == 0
    assert ebp_in(UAPI, struct.pack("<18Q", *range(18))) == 7


def test_protected_mode_keeps_all_but_the_segments_and_its_own_bit() -> None:
    before = bytes(range(256)) + bytes(56)
    after = in_protected_mode(UAPI, before)
    assert len(after) == kvm.SET_SPECIAL.size
    assert after[144:224] == before[144:224]
    assert after[225:] == before[225:]
    assert after[224] == before[224] | 1
    base, limit, selector = struct.unpack_from("<QIH", after)
    assert (base, limit, selector) == (0, 0xFFFFFFFF, 8)


NAME = 48


def statistics(values: dict[str, list[int]]) -> bytes:
    """Return a made-up file with these statistics, a histogram of several numbers among them."""
    identifier, first = 24, 24 + NAME
    data = first + len(values) * (16 + NAME)
    content = struct.pack("<6I", 0, NAME, len(values), identifier, first, data) + b"kvm-1".ljust(NAME, b"\0")
    offset = 0
    for name, numbers in values.items():
        content += struct.pack("<IhH2I", 0, 0, len(numbers), offset, 0) + name.encode().ljust(NAME, b"\0")
        offset += 8 * len(numbers)
    return content + b"".join(struct.pack(f"<{len(numbers)}Q", *numbers) for numbers in values.values())


def read(content: bytes) -> dict[str, int]:
    return dict(read_kvm_statistics(lambda length, offset: content[offset : offset + length], UAPI))


def test_each_number_is_found_by_its_name_behind_a_histogram() -> None:
    content = statistics({"pages_4k": [7], "halt_poll_hist": [1, 2, 3], "pages_2m": [512]})
    assert read(content) == {"pages_4k": 7, "pages_2m": 512}


@pytest.mark.parametrize("length", [0, 23, 100, -1])
def test_a_file_that_is_cut_off_is_told(length: int) -> None:
    with pytest.raises(InputError, match="KVM's statistics: expected"):
        read(statistics({"pages_4k": [7]})[:length])


def test_a_directory_of_debugfs_is_read_as_a_whole_or_not_at_all() -> None:
    files = {"d/kvm/1-4/pages_4k": "1\n", "d/kvm/1-4/pages_2m": "8\n", "d/kvm/1-4/pages_1g": "0\n"}
    assert read_kvm_directory(CapturedTree(files), "d/kvm/1-4") is None
    whole = CapturedTree(files | {"d/kvm/1-4/nx_lpage_splits": "2\n"})
    assert read_kvm_directory(whole, "d/kvm/1-4") == {
        "pages_4k": 1,
        "pages_2m": 8,
        "pages_1g": 0,
        "nx_lpage_splits": 2,
    }
