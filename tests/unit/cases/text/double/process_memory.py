"""The processes of a double: what they have mapped, and how smaps shows it."""

from dataclasses import dataclass, field

from tests.unit.cases.text.double.behaviour import Wrong
from tests.unit.cases.text.double.files import PMD

from hugepage_qa.oracle.program_text import ElfFile

_PAGE = 4096


@dataclass
class TextFile:
    """A file with text in the page cache, ``huge`` bytes of it in huge pages; ``writers`` have it open for write."""

    path: str
    elf: ElfFile
    huge: int = 0
    is_damaged: bool = False
    has_other_bytes: bool = False
    writers: int = 0


@dataclass
class Area:
    """Anonymous memory."""

    start: int
    length: int
    prot: int
    advice: int = 0
    is_filled: bool = False
    was_data: bool = False
    is_huge: bool = False


@dataclass
class Text:
    """How a process has mapped the text of a file; ``huge`` is bytes of it in huge pages."""

    file: TextFile
    start: int
    end: int
    offset: int
    is_populated: bool = False
    advice: int = 0
    huge: int = 0
    #: bytes behind it that are mapped from the start of the file
    other: int = 0
    constants: "Text | None" = None

    def whole(self, wrong: frozenset[Wrong]) -> int:
        """Return the bytes in whole huge pages, 0 where addresses and file do not fit."""
        if (self.start - self.offset) % PMD and Wrong.MERGES_INCONGRUENT not in wrong:
            return 0
        return max(0, self.end // PMD - -(-self.start // PMD)) * PMD


@dataclass
class Process:
    """A process; ``is_listed`` where khugepaged looks at it, ``mapped`` is how often it has called mmap()."""

    pid: int
    text: Text | None = None
    areas: list[Area] = field(default_factory=list)
    mapped: int = 0
    files: dict[int, TextFile] = field(default_factory=dict)
    writes: set[int] = field(default_factory=set)
    is_listed: bool = False
    is_disabled: bool = False
    is_root: bool = True
    groups: tuple[int, ...] = ()

    def area(self, address: int) -> Area:
        """Return the memory at ``address``, of which the last one mapped counts."""
        return next(area for area in reversed(self.areas) if area.start <= address < area.start + area.length)

    def smaps(self, wrong: frozenset[Wrong]) -> str:
        """Return /proc/PID/smaps."""
        shown = []
        if self.text:
            text = self.text
            head = f"{text.start:x}-{text.end:x} r-xp {text.offset:08x} 08:01 12 {text.file.path}"
            shown.append(_mapping(head, text.end - text.start, 0, 0 if Wrong.NOT_COUNTED in wrong else text.huge))
            if text.other:
                head = f"{text.end:x}-{text.end + text.other:x} r-xp 00000000 08:01 12 {text.file.path}"
                shown.append(_mapping(head, text.other, 0, 0))
            if read := text.constants:
                head = f"{read.start:x}-{read.end:x} r--p {read.offset:08x} 08:01 12 {text.file.path}"
                shown.append(_mapping(head, read.end - read.start, 0, read.huge))
        for area in self.areas:
            head = f"{area.start:x}-{area.start + area.length:x} {_permissions(area.prot)}p 00000000 00:00 0"
            huge = area.length if area.is_huge else 0
            is_code = Wrong.CODE_AS_FILE in wrong and bool(area.prot & 4)
            shown.append(_mapping(head, area.length, 0 if is_code else huge, huge if is_code else 0))
        return "".join(shown)

    def smaps_rollup(self, wrong: frozenset[Wrong]) -> str:
        """Return /proc/PID/smaps_rollup, as far as files are concerned."""
        huge = self.text.huge if self.text and not wrong & {Wrong.NOT_COUNTED, Wrong.NOT_COUNTED_IN_ROLLUP} else 0
        return f"400000-7fff00000000 ---p 00000000 00:00 0 [rollup]\nFilePmdMapped: {huge // 1024} kB\n"


def _permissions(prot: int) -> str:
    return "".join(letter if prot & bit else "-" for letter, bit in (("r", 1), ("w", 2), ("x", 4)))


def _mapping(head: str, length: int, anonymous: int, file: int) -> str:
    sizes = {"Size": length, "KernelPageSize": _PAGE, "MMUPageSize": _PAGE, "Rss": length}
    sizes |= {"AnonHugePages": anonymous, "FilePmdMapped": file}
    lines = "".join(f"{name + ':':15} {size // 1024:8} kB\n" for name, size in sizes.items())
    return f"{head}\n{lines}VmFlags: rd ex mr mw me\n"
