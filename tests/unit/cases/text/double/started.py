"""How a double maps the text of a program that is started."""

from tests.unit.cases.text.double.behaviour import Wrong
from tests.unit.cases.text.double.files import PMD
from tests.unit.cases.text.double.process_memory import Text, TextFile

from hugepage_qa.oracle.program_text import Kind

_PAGE = 4096
_BASE = {Kind.FIXED: 0, Kind.PIE: 0x555555400000, Kind.STATIC_PIE: 0x7F0000400000, Kind.LIBRARY: 0x7F5555400000}
_UNPLACED = 3 * _PAGE


def map_file(file: TextFile, mode: int, threshold: int, wrong: frozenset[Wrong]) -> Text:
    """Return how the text of a new process is mapped."""
    elf = file.elf
    segment = elf.segments[elf.text]
    bias = _BASE[elf.kind] + (0 if _is_placed(file, mode, wrong) else _UNPLACED)
    start = (segment.address + bias) // _PAGE * _PAGE
    end = -(-(segment.address + bias + segment.size) // _PAGE) * _PAGE
    offset = segment.offset // _PAGE * _PAGE
    if _pads(file, mode, threshold, end % PMD, wrong):
        tail_end, end = end, end // PMD * PMD + PMD
        if Wrong.PADS_OTHER_BYTES in wrong:
            return Text(file, start, tail_end, offset, other=end - tail_end)
    is_padded = mode & 1 == 1 and threshold > 0 and Wrong.PADS_CONSTANTS in wrong
    return Text(file, start, end, offset, constants=_constants(file, bias, PMD if is_padded else _PAGE))


def _constants(file: TextFile, bias: int, unit: int) -> Text | None:
    """Return how what lies between text and data is mapped, up to a multiple of ``unit``."""
    between = file.elf.segments[file.elf.text + 1 : -1]
    if not between:
        return None
    end = between[0].address + between[0].size
    return Text(file, bias + between[0].address, bias + -(-end // unit) * unit, between[0].offset)


def _is_placed(file: TextFile, mode: int, wrong: frozenset[Wrong]) -> bool:
    # any kernel since 5.10 and any C library since 2.35 go by the largest p_align
    is_linked_so = max(segment.alignment for segment in file.elf.segments) >= PMD
    match file.elf.kind:
        case Kind.FIXED:
            return True
        case Kind.PIE:
            return is_linked_so or (mode & 1 == 1 and Wrong.MISPLACES_PIE not in wrong)
        case Kind.LIBRARY:
            is_runnable = file.elf.runnable or Wrong.PLACES_ALL in wrong
            return is_linked_so or (mode & 1 == 1 and is_runnable and Wrong.MISPLACES_LIBRARY not in wrong)
        case Kind.STATIC_PIE:
            return False


def _pads(file: TextFile, mode: int, threshold: int, tail: int, wrong: frozenset[Wrong]) -> bool:
    elf = file.elf
    segment, following = elf.segments[elf.text], elf.segments[elf.text + 1 :]
    last = -(-(segment.offset + segment.size) // _PAGE) * _PAGE
    block_end = -(-last // PMD) * PMD
    allowed = {Kind.FIXED, Kind.PIE}
    allowed |= {Kind.LIBRARY} if Wrong.PADS_LIBRARIES in wrong else set()
    allowed |= {Kind.STATIC_PIE} if Wrong.PADS_STATIC in wrong else set()
    return (
        Wrong.NEVER_PADS not in wrong
        and elf.kind in allowed
        and (mode & 1 == 1 or Wrong.PADS_IN_MODE_2 in wrong)
        and (threshold > 0 or Wrong.PADS_WHEN_OFF in wrong)
        and (segment.alignment >= PMD or Wrong.PADS_UNALIGNED in wrong)
        and (not following or following[0].alignment >= PMD or Wrong.PADS_BEFORE_UNALIGNED in wrong)
        and (tail > 0 or Wrong.PADS_WHOLE_PAGES in wrong)
        and (tail >= threshold or tail == 0)
        and (tail != threshold or Wrong.PADS_ABOVE_ONLY not in wrong)
        and (block_end <= elf.size or Wrong.PADS_BEYOND_FILE in wrong)
    )
