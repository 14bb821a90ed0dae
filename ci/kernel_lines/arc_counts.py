"""How often control passed each arc of a file's functions: .gcda files of gcov, of kernels that GCC 12 or newer built.

A kernel writes them with all counters, zeroes among them (kernel/gcov/gcc_4_7.c), so that two of one kernel differ in
their counters alone.
"""

import struct
from collections.abc import Iterator

from hugepage_qa.errors import InputError

_MAGIC = b"adcg"
#: magic, version, stamp of the build, checksum
_HEAD = 16
_RECORD = struct.Struct("<II")
_COUNTER = struct.Struct("<Q")
#: GCOV_TAG_FOR_COUNTER(GCOV_COUNTER_ARCS) of gcc/gcov-io.h
_ARCS = 0x01A10000


def is_of_one_build(one: bytes, other: bytes) -> bool:
    """Tell whether both .gcda files are of one object: GCC puts another stamp into each that it compiles."""
    return one[:_HEAD] == other[:_HEAD]


def added(one: bytes, other: bytes) -> bytes:
    """Return the .gcda file that has the counts of both. Raises InputError where they are not of one build."""
    if not is_of_one_build(one, other) or len(one) != len(other):
        raise InputError("counts of lines: of two builds of a kernel, which cannot be added")
    total = bytearray(one)
    for place in _counters(one):
        count = _COUNTER.unpack_from(one, place)[0] + _COUNTER.unpack_from(other, place)[0]
        _COUNTER.pack_into(total, place, count)
    return bytes(total)


def _counters(data: bytes) -> Iterator[int]:
    """Yield where each counter lies. Raises InputError for what is no such file."""
    if data[:4] != _MAGIC:
        raise InputError("counts of lines: expected a .gcda file of gcov, little endian")
    at = _HEAD
    while at + _RECORD.size <= len(data):
        # before GCC 12 a length is in words, and the head is shorter
        tag, length = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        if at + length > len(data):
            raise InputError("counts of lines: a .gcda file that ends in a record, or is of a GCC before 12")
        if tag == _ARCS:
            yield from range(at, at + length, _COUNTER.size)
        at += length
