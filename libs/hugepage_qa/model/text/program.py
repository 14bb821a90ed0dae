"""An ELF file, as far as the placement of its text depends on it."""

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What an ELF file is."""

    #: ET_EXEC: at the addresses that it was linked for
    FIXED = "fixed"
    #: ET_DYN with an interpreter
    PIE = "pie"
    #: ET_DYN without an interpreter, executed
    STATIC_PIE = "static-pie"
    #: ET_DYN that the dynamic linker maps
    LIBRARY = "library"


@dataclass(frozen=True)
class Segment:
    """A PT_LOAD: ``size`` bytes of the file from ``offset`` on, at ``address``; all in bytes."""

    address: int
    offset: int
    size: int
    alignment: int
    executable: bool


@dataclass(frozen=True)
class ElfFile:
    """An ELF file of ``size`` bytes; ``runnable`` tells whether any x bit of its mode is set."""

    kind: Kind
    segments: tuple[Segment, ...]
    size: int
    runnable: bool = True

    @property
    def text(self) -> int:
        """The index of the first executable segment. Raises ValueError without one."""
        return [segment.executable for segment in self.segments].index(True)


def round_up(number: int, unit: int) -> int:
    """Return the first multiple of ``unit`` that is not below ``number``."""
    return -(-number // unit) * unit
