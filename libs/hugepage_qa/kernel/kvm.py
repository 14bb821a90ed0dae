"""KVM: its requests, the registers of a virtual processor of x86_64 (include/uapi/linux/kvm.h), what it counts.

It counts for a virtual machine in the file of KVM_GET_STATS_FD (Linux 5.14), and in debugfs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.tree import Tree, read_integer
from hugepage_qa.kernel.uapi import Uapi
from hugepage_qa.sizes import GIB, KIB, MIB

_TO_KERNEL, _FROM_KERNEL = 1, 2
_KVM = 0xAE


@dataclass(frozen=True)
class KvmRequest:
    """An ioctl(2) of KVM: its number within these, and the bytes of its argument, which is read or written."""

    index: int
    size: int = 0
    direction: int = 0

    @property
    def number(self) -> int:
        """The number that ioctl(2) takes (include/uapi/asm-generic/ioctl.h)."""
        return self.direction << 30 | self.size << 16 | _KVM << 8 | self.index


CREATE_VM: Final = KvmRequest(0x01)
RUN_SIZE: Final = KvmRequest(0x04)
CREATE_VCPU: Final = KvmRequest(0x41)
GET_DIRTY_LOG: Final = KvmRequest(0x42, 16, _TO_KERNEL)
SET_MEMORY: Final = KvmRequest(0x46, 32, _TO_KERNEL)
SET_TSS: Final = KvmRequest(0x47)
RUN: Final = KvmRequest(0x80)
GET_REGISTERS: Final = KvmRequest(0x81, 144, _FROM_KERNEL)
SET_REGISTERS: Final = KvmRequest(0x82, 144, _TO_KERNEL)
GET_SPECIAL: Final = KvmRequest(0x83, 312, _FROM_KERNEL)
SET_SPECIAL: Final = KvmRequest(0x84, 312, _TO_KERNEL)
SET_SIGNALS: Final = KvmRequest(0x8B, 4, _TO_KERNEL)
GET_STATISTICS: Final = KvmRequest(0xCE)

#: of SET_MEMORY
LOG_DIRTY: Final = 1
#: where the reason of an exit is in struct kvm_run: the guest has halted, or was never entered as KVM_EXIT_UNKNOWN,
#: _FAIL_ENTRY and _INTERNAL_ERROR say, by a processor, or a hypervisor around it, that KVM cannot use
EXIT_REASON_AT: Final = 8
EXIT_HLT: Final = 5
NOT_ENTERED: Final = (0, 9, 17)
#: SET_TSS: Intel's processors without "unrestricted guest" need three pages there; as QEMU has it
TSS: Final = 0xFFFBD000

# struct kvm_regs: rax rbx rcx rdx rsi rdi rsp rbp r8-r15 rip rflags
_REGISTERS, _RBP, _FURTHER = "18Q", 7, 10
_RFLAGS = 2
# struct kvm_sregs: cs ds es fs gs ss of 24 bytes each, and further on cr0
_SEGMENT, _SEGMENT_SIZE, _SEGMENTS, _CR0_AT, _WORD = "QIH10B", 24, 6, 224, 8
_FLAT, _CODE, _DATA = 0xFFFFFFFF, 11, 3
_CR0_PROTECTED = 1


def registers(uapi: Uapi, *, edx: int, esi: int, edi: int, eip: int) -> bytes:
    """Return struct kvm_regs with these registers; all others are zero."""
    return uapi.pack(_REGISTERS, 0, 0, 0, edx, esi, edi, *[0] * _FURTHER, eip, _RFLAGS)


def ebp_in(uapi: Uapi, content: bytes) -> int:
    """Return a register of struct kvm_regs."""
    return uapi.unpack(_REGISTERS, content)[_RBP]


def in_protected_mode(uapi: Uapi, content: bytes) -> bytes:
    """Return struct kvm_sregs for protected mode, with flat segments and without paging."""
    special = bytearray(content)
    for number in range(_SEGMENTS):
        selector, kind = (8, _CODE) if number == 0 else (16, _DATA)
        segment = uapi.pack(_SEGMENT, 0, _FLAT, selector, kind, 1, 0, 1, 1, 0, 1, 0, 0, 0)
        special[number * _SEGMENT_SIZE : (number + 1) * _SEGMENT_SIZE] = segment
    [cr0] = uapi.unpack("Q", bytes(special[_CR0_AT : _CR0_AT + _WORD]))
    special[_CR0_AT : _CR0_AT + _WORD] = uapi.pack("Q", cr0 | _CR0_PROTECTED)
    return bytes(special)


#: counter -> bytes of the pages that it counts: those that KVM has mapped (arch/x86/kvm/x86.c, Linux 5.15)
PAGES: Mapping[str, int] = {"pages_4k": 4 * KIB, "pages_2m": 2 * MIB, "pages_1g": GIB}
#: tables that are there because huge pages must not be executable
SPLITS = "nx_lpage_splits"

# struct kvm_stats_header and kvm_stats_desc of include/uapi/linux/kvm.h; behind a descriptor stands its name
_HEADER, _HEADER_SIZE = "6I", 24
_DESCRIPTOR, _DESCRIPTOR_SIZE = "IhH2I", 16
_VALUE = 8

#: returns so many bytes of the file from an offset on
ReadAt = Callable[[int, int], bytes]


def read_kvm_statistics(read_at: ReadAt, uapi: Uapi) -> Mapping[str, int]:
    """Return the statistics that are one number each, by their names. Raises InputError for a malformed file."""
    header = read_at(_HEADER_SIZE, 0)
    if len(header) != _HEADER_SIZE:
        raise InputError(f"KVM's statistics: expected a header of {_HEADER_SIZE} bytes, found {len(header)}")
    _flags, name_size, count, _identifier, first, data = uapi.unpack(_HEADER, header)
    size = _DESCRIPTOR_SIZE + name_size
    descriptors = _read_whole(read_at, count * size, first)
    places = {}
    for at in range(0, len(descriptors), size):
        one = descriptors[at : at + size]
        _flags, _exponent, values, offset, _bucket = uapi.unpack(_DESCRIPTOR, one[:_DESCRIPTOR_SIZE])
        if values == 1:
            places[one[_DESCRIPTOR_SIZE:].partition(b"\0")[0].decode()] = offset
    values_there = _read_whole(read_at, max(places.values(), default=-_VALUE) + _VALUE, data)
    return {name: uapi.unpack("Q", values_there[at : at + _VALUE])[0] for name, at in places.items()}


def read_kvm_directory(tree: Tree, directory: str) -> Mapping[str, int] | None:
    """Return what ``directory`` of a virtual machine in debugfs shows of its pages; None where it cannot be read."""
    found = {name: read_integer(tree, f"{directory}/{name}") for name in (*PAGES, SPLITS)}
    numbers = {name: value for name, value in found.items() if value is not None}
    return numbers if len(numbers) == len(found) else None


def _read_whole(read_at: ReadAt, length: int, offset: int) -> bytes:
    content = read_at(length, offset)
    if len(content) != length:
        raise InputError(f"KVM's statistics: expected {length} bytes at {offset}, found {len(content)}")
    return content
