"""Where the text of a file is mapped, and which bytes of a mapping become huge pages."""

from dataclasses import dataclass

from hugepage_qa.model.text.padding import FILE_TEXT, why_unpadded
from hugepage_qa.model.text.program import ElfFile, Kind, round_up


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


def becomes_huge(
    mapping: TextMapping, file: ElfFile, *, mode: int, pmd: int, advised: bool = False, open_for_write: bool = False
) -> int:
    """Return the bytes of FilePmdMapped that a mapping of file text has once khugepaged has seen it.

    ``advised`` tells whether it got MADV_HUGEPAGE, with which no mode is needed.
    """
    if not (mode & FILE_TEXT or advised) or open_for_write:
        return 0
    return mapping.huge_bytes(file.size, pmd)
