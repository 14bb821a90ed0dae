"""Text of programs in huge pages: where it is placed and mapped, which bytes become huge, and what is there after it.

The text segments that execve() maps on to the end of their last huge page are those of load_elf_binary() of ANCK 5.10,
as are the writes to hugetext_enabled and hugetext_pad_threshold that a kernel accepts, and what it reads back then.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from hugepage_qa.oracle.boot.cstring import kstrtoul


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


# bits of hugetext_enabled
FILE_TEXT = 1
ANONYMOUS_TEXT = 2


class Unpadded(Enum):
    """Why a segment is not padded."""

    NOT_A_MAIN_PROGRAM = "only main programs are padded, no libraries and no static PIE"
    SWITCHED_OFF = "padding needs bit 0 of hugetext_enabled and a threshold above 0 when the program starts"
    BIAS = "a PIE is padded where it was loaded at a multiple of the huge page size"
    NO_TEXT = "only executable segments are padded"
    ALIGNMENT = "the segment needs the alignment of a huge page"
    NEXT_ALIGNMENT = "the segment after it needs the alignment of a huge page"
    NO_TAIL = "the segment ends with a whole huge page, or is shorter than its tail"
    BELOW_THRESHOLD = "the tail is smaller than the threshold"
    END_OF_FILE = "the file ends before the huge page does"


def tail(file: ElfFile, index: int, *, pmd: int, base_page: int) -> int:
    """Return how many bytes of a segment, rounded up to base pages, lie behind its last whole huge page."""
    segment = file.segments[index]
    return round_up(segment.address + segment.size, base_page) % pmd


def why_unpadded(
    file: ElfFile, index: int, *, mode: int, threshold: int, pmd: int, base_page: int, bias: int = 0
) -> Unpadded | None:
    """Return the first condition that a segment does not fulfil, None for one that is padded.

    ``mode`` and ``threshold`` are those at execve(); ``bias`` is what the kernel added to the addresses of a PIE.
    """
    segment, following = file.segments[index], file.segments[index + 1 : index + 2]
    length = tail(file, index, pmd=pmd, base_page=base_page)
    end_in_file = round_up(segment.offset + segment.size, base_page)
    conditions = (
        (Unpadded.NOT_A_MAIN_PROGRAM, file.kind in (Kind.FIXED, Kind.PIE)),
        (Unpadded.SWITCHED_OFF, mode & FILE_TEXT and threshold > 0),
        (Unpadded.BIAS, bias % pmd == 0),
        (Unpadded.NO_TEXT, segment.executable),
        (Unpadded.ALIGNMENT, segment.alignment >= pmd),
        (Unpadded.NEXT_ALIGNMENT, all(after.alignment >= pmd for after in following)),
        (Unpadded.NO_TAIL, 0 < length <= segment.size),
        # the published text says "exceeds", the code compares with >=
        (Unpadded.BELOW_THRESHOLD, length >= threshold),
        (Unpadded.END_OF_FILE, round_up(end_in_file, pmd) <= file.size),
    )
    return next((reason for reason, fulfilled in conditions if not fulfilled), None)


@dataclass(frozen=True)
class TextMapping:
    """Executable pages from ``start`` up to ``end``, of a file from ``offset`` on; all in bytes."""

    start: int
    end: int
    offset: int

    @property
    def length(self) -> int:
        """The bytes that are mapped."""
        return self.end - self.start

    def is_congruent(self, pmd: int) -> bool:
        """Whether addresses and file agree in where a huge page begins."""
        return (self.start - self.offset) % pmd == 0

    def huge_bytes(self, file_size: int, pmd: int) -> int:
        """Return the bytes in whole, aligned huge pages of the mapping that the file fills."""
        if not self.is_congruent(pmd):
            return 0
        in_file = self.start + max(0, file_size - self.offset)
        return max(0, min(self.end, in_file) // pmd * pmd - round_up(self.start, pmd))


def map_text(
    file: ElfFile, *, bias: int, mode: int, threshold: int, pmd: int, base_page: int
) -> tuple[TextMapping, ...]:
    """Return how execve() maps the executable segments of a main program, padded where it pads."""
    mappings = []
    for index, segment in enumerate(file.segments):
        if not segment.executable:
            continue
        start = (segment.address + bias) // base_page * base_page
        end = round_up(segment.address + bias + segment.size, base_page)
        reason = why_unpadded(file, index, mode=mode, threshold=threshold, pmd=pmd, base_page=base_page, bias=bias)
        offset = segment.offset // base_page * base_page
        mappings.append(TextMapping(start, end if reason else round_up(end, pmd), offset))
    return tuple(mappings)


def is_placed_for_huge_pages(file: ElfFile, mode: int, pmd: int) -> bool:
    """Tell whether the kernel chooses an address that is congruent to the file, once bit 0 is set.

    That is a PIE with an interpreter of at least one huge page, and a library with an x bit whose range holds a
    whole one. A program at fixed addresses lies where it was linked.
    """
    if not mode & FILE_TEXT:
        return False
    extent = file.segments[-1].address + file.segments[-1].size - file.segments[0].address
    if file.kind is Kind.PIE:
        return extent >= pmd
    return file.kind is Kind.LIBRARY and file.runnable and extent >= 2 * pmd


def becomes_huge(mapping: TextMapping, file: ElfFile, *, mode: int, pmd: int, advised: bool = False) -> int:
    """Return the bytes of FilePmdMapped that a mapping of file text has once khugepaged has seen it.

    ``advised`` tells whether it got MADV_HUGEPAGE, with which no mode is needed.
    """
    if not (mode & FILE_TEXT or advised):
        return 0
    return mapping.huge_bytes(file.size, pmd)


_SWITCH_ON = 1
_BOTH_BITS = FILE_TEXT | ANONYMOUS_TEXT


class Generation(Enum):
    """How a kernel understands hugetext_enabled; kernels of one version differ, so that its files decide."""

    #: one switch, 0 or 1: the first 4.19 and 5.10 kernels
    SWITCH = "switch"
    #: bit 0 for file text, bit 1 for anonymous executable memory: later ones
    BITS = "bits"


def possible_generations(*, has_threshold: bool) -> tuple[Generation, ...]:
    """Return what a kernel with hugetext_enabled can be.

    hugetext_pad_threshold came after the bits, which 4.19 has without it.
    """
    return (Generation.BITS,) if has_threshold else (Generation.SWITCH, Generation.BITS)


def accept_enabled(text: str, generation: Generation) -> int | None:
    """Return what hugetext_enabled reads after a write of ``text``, None where the write is refused with EINVAL."""
    switch = generation is Generation.SWITCH
    number = kstrtoul(text, 10 if switch else 0)
    return number if number is not None and number <= (_SWITCH_ON if switch else _BOTH_BITS) else None


def accept_parameters(values: Sequence[str], generation: Generation) -> tuple[int | None, int]:
    """Return what ``values`` of hugetext= set, None for nothing, and how many of them the kernel log complains about.

    The last one wins. A number above 3 is no error of the parser: it changes nothing, and nothing is said.
    """
    if generation is Generation.SWITCH:
        accepted = [int(value) for value in values if value in ("0", "1")]
        return accepted[-1] if accepted else None, len(values) - len(accepted)
    numbers = [number for number in map(kstrtoul, values) if number is not None]
    accepted = [number for number in numbers if number <= _BOTH_BITS]
    return accepted[-1] if accepted else None, len(values) - len(numbers)


def accept_threshold(text: str, pmd: int) -> int | None:
    """Return the bytes that hugetext_pad_threshold reads after a write of ``text``, None where it is refused.

    ``pmd`` is the bytes of a PMD-sized page, which a threshold has to be below.
    """
    number = kstrtoul(text, 10)
    return number if number is not None and number < pmd else None


class Clearing(Enum):
    """A way that is said to clear huge pages of text."""

    SWITCH_OFF = "0 written to hugetext_enabled"
    DROP_CACHES = "3 written to drop_caches"
    EVICT_FILE = "the pages of the file evicted (vmtouch -e)"
    SPLIT = "1 written to split_huge_pages"
    OPEN_FOR_WRITE = "the file opened for writing"


def stays_huge(clearing: Clearing, *, mapped: bool) -> bool:
    """Tell whether huge page cache is still huge afterwards; ``mapped`` where a process maps it.

    Page cache that is mapped is not evicted, and switching off touches none.
    """
    match clearing:
        case Clearing.SWITCH_OFF:
            return True
        case Clearing.DROP_CACHES | Clearing.EVICT_FILE:
            return mapped
        case Clearing.SPLIT | Clearing.OPEN_FOR_WRITE:
            return False
