"""What KVM counts for a virtual machine: by its own file (KVM_GET_STATS_FD, Linux 5.14), and by debugfs."""

from collections.abc import Callable, Mapping

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.tree import Tree, read_integer
from hugepage_qa.kernel.uapi import Uapi
from hugepage_qa.sizes import GIB, KIB, MIB

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
