"""The mappings of a process and the pages behind them: /proc/PID/smaps, smaps_rollup (proc_pid_smaps(5))."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache

from hugepage_qa.kernel.tree import Tree, malformed
from hugepage_qa.sizes import KIB

# show_map_vma(), fs/proc/task_mmu.c: "7f1cf8600000-7f1cf8a00000 rw-s 00000000 00:10 3072   /anon_hugepage (deleted)".
# Only a newline is escaped in a path, so that a line may hold every other character, carriage returns too.
_HEADER = re.compile(
    r"(?P<start>[0-9a-f]{1,16})-(?P<end>[0-9a-f]{1,16}) (?P<permissions>[r-][w-][x-][sp])"
    r" (?P<offset>[0-9a-f]{1,16}) (?P<device>[0-9a-f]{2,5}:[0-9a-f]{2,5}) (?P<inode>[0-9]{1,20})(?: +(?P<path>.*))?",
    re.DOTALL,
)
_NEXT_MAPPING = re.compile(r"\n(?=[0-9a-f])")
_HEXADECIMAL = frozenset("0123456789abcdef")
_FIELD = re.compile(
    r"^(?P<name>[A-Z]\w*): *(?:(?P<number>[0-9]{1,20})(?P<unit> kB)?|(?P<words>.*))$", re.MULTILINE | re.ASCII
)
_FLAGS = "VmFlags"
# of the first mapping: what lies above, between and below the lines that tell of huge pages
_LAYOUT = re.compile(
    r".*\n((?:[A-Z].*\n)*?)KernelPageSize:.*\n((?:[A-Z].*\n)*?)"
    r"AnonHugePages:.*\nShmemPmdMapped:.*\nFilePmdMapped:.*\n((?:[A-Z].*\n)*?)VmFlags:"
)

# every kernel since 2.6.38 prints these; without them a mapping is cut off
_REQUIRED = frozenset({"Size", "KernelPageSize", "MMUPageSize", "Rss", "AnonHugePages"})
_HUGE = frozenset({"AnonHugePages", "ShmemPmdMapped", "FilePmdMapped", "Shared_Hugetlb", "Private_Hugetlb"})
_KNOWN = _REQUIRED | _HUGE | {"THPeligible"}


@dataclass(frozen=True)
class MemoryMapping:
    """One mapping: pages of one kind at the addresses from ``start`` up to, not including, ``end``.

    ``permissions`` end in ``s`` for a shared mapping and ``p`` for a private one. ``path`` is as the kernel prints it,
    with ``\\012`` for a newline and ``(deleted)`` behind a file that has no name any more; it is untrusted text, empty
    for plain anonymous memory. ``fields`` are bytes, but plain numbers for THPeligible and ProtectionKey.
    ``flags`` are the two-letter words of VmFlags, ``ht`` for hugetlb.
    """

    start: int
    end: int
    permissions: str
    offset: int
    device: str
    inode: int
    path: str
    fields: Mapping[str, int]
    flags: frozenset[str]

    @property
    def is_shared(self) -> bool:
        """Whether the memory is mapped with MAP_SHARED."""
        return self.permissions.endswith("s")

    @property
    def size(self) -> int:
        """Bytes of address space, touched or not."""
        return self.fields["Size"]

    @property
    def kernel_page_size(self) -> int:
        """Bytes of one page as the kernel manages the mapping: of the huge page for hugetlb, of a base page for THP."""
        return self.fields["KernelPageSize"]

    @property
    def mmu_page_size(self) -> int:
        """Bytes of one page as the MMU has it; other than ``kernel_page_size`` on some powerpc machines only."""
        return self.fields["MMUPageSize"]

    @property
    def rss(self) -> int:
        """Bytes in memory, without those of hugetlb pages."""
        return self.fields["Rss"]

    @property
    def dirty(self) -> int:
        """Bytes in memory that were written and are nowhere else, mapped by this process alone or not."""
        return self.fields["Private_Dirty"] + self.fields["Shared_Dirty"]

    @property
    def anon_huge_pages(self) -> int:
        """Bytes of anonymous memory in transparent huge pages that are mapped as a whole."""
        return self._huge("AnonHugePages")

    @property
    def shmem_pmd_mapped(self) -> int:
        """Bytes of shared memory (tmpfs, memfd, SysV) in transparent huge pages that are mapped as a whole."""
        return self._huge("ShmemPmdMapped")

    @property
    def file_pmd_mapped(self) -> int:
        """Bytes of files in transparent huge pages that are mapped as a whole."""
        return self._huge("FilePmdMapped")

    @property
    def shared_hugetlb(self) -> int:
        """Bytes of hugetlb pages here that are mapped elsewhere, too, whatever the mapping is."""
        return self._huge("Shared_Hugetlb")

    @property
    def private_hugetlb(self) -> int:
        """Bytes of hugetlb pages that are mapped here alone, even if the mapping is a shared one."""
        return self._huge("Private_Hugetlb")

    @property
    def thp_eligible(self) -> bool | None:
        """Whether the mapping may get transparent huge pages; None before Linux 5.0, which does not say."""
        eligible = self.fields.get("THPeligible")
        return None if eligible is None else bool(eligible)

    @property
    def is_hugetlb(self) -> bool:
        """Whether the pages come from a hugetlb pool."""
        return "ht" in self.flags

    def has_huge_pages(self, base_page_size: int) -> bool:
        """Whether there are huge pages of any kind, or will be once it is touched, as in a hugetlb mapping."""
        thp = self.anon_huge_pages or self.shmem_pmd_mapped or self.file_pmd_mapped
        return self.kernel_page_size != base_page_size or bool(thp)

    @property
    def hugetlb(self) -> int:
        """Bytes of hugetlb pages that are mapped here, elsewhere, too, or not."""
        return self.private_hugetlb + self.shared_hugetlb

    def _huge(self, name: str) -> int:
        # a kernel without the line has no such pages: the lines came with them (ShmemPmdMapped 4.8, FilePmdMapped 5.4)
        return self.fields.get(name, 0)


def read_base_page_size(tree: Tree) -> int | None:
    """Return the size of the pages in which a process is mapped when no huge pages are involved, in bytes.

    The first mapping of a process is its program, which hugetlbfs does not hold. None where this process has no smaps;
    raises InputError for a malformed line.
    """
    path = smaps_path("self")
    for line, text in enumerate((tree.read(path) or "").split("\n"), start=1):
        if text.startswith("KernelPageSize:"):
            match = _FIELD.fullmatch(text)
            if match is None or match["unit"] is None:
                malformed(path, line, text, "a line such as 'KernelPageSize: 4 kB'")
            return int(match["number"]) * KIB
    return None


def smaps_path(process: int | str) -> str:
    """Return where the mappings of ``process`` are read: a number, ``self``, or ``<pid>/task/<tid>``."""
    return f"proc/{process}/smaps"


def read_smaps(tree: Tree, process: int | str = "self") -> tuple[MemoryMapping, ...] | None:
    """Return the mappings of ``process`` by address; None where there is no such process or it may not be read.

    A kernel thread, and a process that has ended and is not waited for, has none. Raises InputError for a malformed
    file.
    """
    path = smaps_path(process)
    text = tree.read(path)
    return None if text is None else parse_smaps(text, path)


# whoever waits for huge pages reads the same again and again
@lru_cache(maxsize=256)
def parse_smaps(text: str, path: str) -> tuple[MemoryMapping, ...]:
    """Return the mappings in ``text``, which was read from ``path``; raises InputError, which names the line."""
    return tuple(_parse_mapping(mapping, line, path) for mapping, line in _split(text))


def parse_huge_mappings(text: str, path: str, base_page_size: int) -> tuple[MemoryMapping, ...]:
    """Return the mappings that ``parse_smaps`` returns and that have huge pages, fast where few or none have.

    Only these are parsed, and others that do not look as usual. Raises InputError for a malformed one among them.
    """
    if _is_plain(text, base_page_size):
        return ()
    hits = _huge_or_unusual(base_page_size).finditer(text)
    starts = sorted({_start_of_mapping(text, hit.start()) for hit in hits})
    mappings = (_parse_mapping(*_cut(text, start), path) for start in starts)
    return tuple(mapping for mapping in mappings if mapping.has_huge_pages(base_page_size))


def read_smaps_rollup(tree: Tree, process: int | str = "self") -> dict[str, int] | None:
    """Return the sums over all mappings of ``process``: name -> bytes; None where there is no such file.

    It has the fields of a mapping but Size and the page sizes. Raises InputError for a malformed file.
    """
    path = f"proc/{process}/smaps_rollup"
    text = tree.read(path)
    if not text:
        return None
    header, _, lines = text.partition("\n")
    _parse_header(header, 1, path)
    return _parse_fields(lines, 2, path)[0]


def _is_plain(text: str, base_page_size: int) -> bool:
    """Tell whether no mapping has huge pages and all are printed alike, as most are; False says nothing.

    One function of the kernel prints all mappings: between two lines lies as much text in all of them as in the first,
    unless a number has more than eight digits. Jumping over it takes a third of the time of a search.
    """
    layout = _LAYOUT.match(text)
    if layout is None:
        return False
    return _plain(base_page_size, *map(len, layout.groups())).fullmatch(text) is not None


@lru_cache
def _plain(base_page_size: int, above: int, between: int, below: int) -> re.Pattern[str]:
    """Return what matches mappings without huge pages, with so many characters around the lines that tell."""
    page, none = f"{base_page_size // KIB:8} kB\n", f"{0:8} kB\n"
    return re.compile(
        rf"(?:[^\n]*+\n(?s:.{{{above}}})KernelPageSize: {page}(?s:.{{{between}}})"
        rf"AnonHugePages:  {none}ShmemPmdMapped: {none}FilePmdMapped:  {none}(?s:.{{{below}}})VmFlags:[^\n]*+\n)*+"
    )


@cache
def _huge_or_unusual(base_page_size: int) -> re.Pattern[str]:
    """Return what finds the mappings that may have huge pages.

    A mapping is passed over if its pages are base pages, and if the three lines of __show_smap() on THP are there, one
    after the other as since Linux 5.4, and zero.
    """
    return re.compile(
        rf"\nKernelPageSize:(?! +{base_page_size // KIB} kB\n)"
        r"|\nAnonHugePages:(?! +0 kB\nShmemPmdMapped: +0 kB\nFilePmdMapped: +0 kB\n)"
    )


def _start_of_mapping(text: str, position: int) -> int:
    """Return where the mapping around ``position`` starts: its first line alone starts with a hexadecimal digit."""
    start = text.rfind("\n", 0, position) + 1
    while start and text[start] not in _HEXADECIMAL:
        start = text.rfind("\n", 0, start - 1) + 1
    return start


def _cut(text: str, start: int) -> tuple[str, int]:
    """Return the text of the mapping that starts at ``start``, and the number of its first line."""
    following = _NEXT_MAPPING.search(text, start)
    return text[start : following.start() if following else len(text)], text.count("\n", 0, start) + 1


def _split(text: str) -> Iterator[tuple[str, int]]:
    """Yield the text of each mapping and the number of its first line."""
    line = 1
    for mapping in _NEXT_MAPPING.split(text) if text else ():
        yield mapping, line
        line += mapping.count("\n") + 1


def _parse_mapping(text: str, line: int, path: str) -> MemoryMapping:
    header, _, lines = text.partition("\n")
    match = _parse_header(header, line, path)
    fields, flags = _parse_fields(lines, line + 1, path)
    if not fields.keys() >= _REQUIRED:
        malformed(path, line, header, f"the lines {', '.join(sorted(_REQUIRED))} below it")
    return MemoryMapping(
        start=int(match["start"], 16),
        end=int(match["end"], 16),
        permissions=match["permissions"],
        offset=int(match["offset"], 16),
        device=match["device"],
        inode=int(match["inode"]),
        path=match["path"] or "",
        fields=fields,
        flags=flags,
    )


def _parse_header(header: str, line: int, path: str) -> re.Match[str]:
    match = _HEADER.fullmatch(header)
    if match is None or int(match["start"], 16) >= int(match["end"], 16):
        malformed(path, line, header, "a line such as '7f0000000000-7f0000200000 rw-p 00000000 00:00 0'")
    return match


def _parse_fields(lines: str, first: int, path: str) -> tuple[dict[str, int], frozenset[str]]:
    """Return the numbers and the flags below a header; what later kernels add and is no number is left out."""
    texts = lines.removesuffix("\n").split("\n")
    found = _FIELD.findall(lines)
    if len(found) < len(texts):
        line, text = next((line, text) for line, text in enumerate(texts, start=first) if not _FIELD.fullmatch(text))
        malformed(path, line, text, "a line such as 'Rss: 2048 kB'")
    fields: dict[str, int] = {}
    flags: frozenset[str] = frozenset()
    for line, (name, number, unit, words) in enumerate(found, start=first):
        if name in fields:
            malformed(path, line, texts[line - first], "every name once")
        if number:
            fields[name] = int(number) * (KIB if unit else 1)
        elif name == _FLAGS:
            flags = frozenset(words.split())
        elif name in _KNOWN:
            malformed(path, line, texts[line - first], f"a number behind {name}:")
    return fields, flags
