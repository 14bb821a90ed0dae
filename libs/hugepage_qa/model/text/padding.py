"""Which text segments execve() maps on to the end of their last huge page (load_elf_binary() of ANCK 5.10)."""

from enum import Enum

from hugepage_qa.model.text.program import ElfFile, Kind, round_up

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
