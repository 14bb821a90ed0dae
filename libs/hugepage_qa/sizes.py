"""Sizes, as text such as ``2G`` outside and in bytes as ``int`` inside, and spans of addresses."""

import re
from dataclasses import dataclass

from hugepage_qa.errors import InputError

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_SUFFIXES = {"": 1, "K": KIB, "M": MIB, "G": GIB, "T": 1 << 40}
_SIZE = re.compile(r"(?P<number>[0-9]{1,18})(?P<suffix>[KMGT]?)(i?B)?", re.IGNORECASE)


@dataclass(frozen=True, order=True)
class Span:
    """Physical addresses from ``start`` up to, but not including, ``end``."""

    start: int
    end: int

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self.end - self.start

    def overlaps(self, other: "Span") -> bool:
        """Tell whether they share an address."""
        return self.start < other.end and other.start < self.end


def parse_size(text: str) -> int:
    """Return the bytes that ``text`` (``512M``, ``2GiB``, ``4096``) stands for.

    Raises InputError for anything else. This is the notation of our own options; what the
    kernel accepts on its command line is a different grammar (``oracle.boot.cstring.memparse``).
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InputError(f"size {text!r}: expected a whole number with K, M, G or T, for example 512M")
    return int(match["number"]) * _SUFFIXES[match["suffix"].upper()]


def parse_memory(text: str) -> tuple[int, ...]:
    """Return the memory of each NUMA node in bytes from ``2G,2G``; 0 is a node without memory.

    Raises InputError when an entry is no size or when no node has memory.
    """
    nodes = tuple(parse_size(part) for part in text.split(","))
    if not any(nodes):
        raise InputError(f"memory {text!r}: at least one node needs memory, for example 2G or 2G,0")
    return nodes


def format_size(size: int) -> str:
    """Return ``size`` bytes in the largest unit that keeps it whole: ``2M``, ``1G``, ``1536K``."""
    for suffix in ("T", "G", "M", "K"):
        unit = _SUFFIXES[suffix]
        if size and size % unit == 0:
            return f"{size // unit}{suffix}"
    return str(size)
