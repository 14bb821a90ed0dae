"""Requests to KVM as strace(1) shows them, and registers of a virtual processor."""

import struct

import pytest

from hugepage_qa.kernel import kvm
from hugepage_qa.kernel.kvm import KvmRequest, ebp_in, in_protected_mode, registers
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
