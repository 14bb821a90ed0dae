"""The mappings of a process and the pages behind them: /proc/PID/smaps, smaps_rollup (proc_pid_smaps(5))."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hugepage_qa.kernel.tree import Tree
from hugepage_qa.kernel.values import malformed
from hugepage_qa.sizes import KIB

# show_map_vma(), fs/proc/task_mmu.c: "7f1cf8600000-7f1cf8a00000 rw-s 00000000 00:10 3072   /anon_hugepage (deleted)".
# Only a newline is escaped in a path, so that a line may hold every other character, carriage returns too.
_HEADER = re.compile(
    r"(?P<start>[0-9a-f]{1,16})-(?P<end>[0-9a-f]{1,16}) (?P<permissions>[r-][w-][x-][sp])"
    r" (?P<offset>[0-9a-f]{1,16}) (?P<device>[0-9a-f]{2,5}:[0-9a-f]{2,5}) (?P<inode>[0-9]{1,20})(?: +(?P<path>.*))?",
    re.DOTALL,
)
_NEXT_MAPPING = re.compile(r"\n(?=[0-9a-f]+-)")
# what __show_smap() prints of a mapping without huge pages since Linux 5.4, and before
_NO_HUGE_PAGES = (
    "\nAnonHugePages:         0 kB\nShmemPmdMapped:        0 kB\nFilePmdMapped:         0 kB"
    "\nShared_Hugetlb:        0 kB\nPrivate_Hugetlb:       0 kB\n",
    "\nAnonHugePages:         0 kB\nShmemPmdMapped:        0 kB"
    "\nShared_Hugetlb:        0 kB\nPrivate_Hugetlb:       0 kB\n",
)
_FIELD = re.compile(r"(?P<name>[A-Za-z_]\w*): *(?P<value>.*)", re.DOTALL | re.ASCII)
_NUMBER = re.compile(r"(?P<number>[0-9]{1,20})(?P<unit> kB)?")
_FLAGS = "VmFlags"

# every kernel since 2.6.29 prints these; without them a mapping is cut off
_REQUIRED = frozenset({"Size", "KernelPageSize", "MMUPageSize", "Rss"})
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
        return self.kernel_page_size != base_page_size or any(self._huge(name) for name in _HUGE)

    def _huge(self, name: str) -> int:
        # a kernel without the line has no such pages: the lines came with them (ShmemPmdMapped 4.8, FilePmdMapped 5.4)
        return self.fields.get(name, 0)


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


def parse_smaps(text: str, path: str) -> tuple[MemoryMapping, ...]:
    """Return the mappings in ``text``, which was read from ``path``; raises InputError, which names the line."""
    return tuple(_parse_mapping(mapping, line, path) for line, mapping in _split(text))


def parse_huge_mappings(text: str, path: str, base_page_size: int) -> tuple[MemoryMapping, ...]:
    """Return the mappings that ``parse_smaps`` returns and that have huge pages, fast where few or none have.

    Only these are parsed, and others that do not look as usual. Raises InputError for a malformed one among them.
    """
    base_pages, no_huge_pages = _usual(text, base_page_size)
    # every mapping has one line KernelPageSize; three searches for fixed strings are faster than anything else
    if text.count("\nKernelPageSize:") == text.count(base_pages) == text.count(no_huge_pages):
        return ()
    mappings = (
        _parse_mapping(mapping, line, path)
        for line, mapping in _split(text)
        if base_pages not in mapping or no_huge_pages not in mapping
    )
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


def _usual(text: str, base_page_size: int) -> tuple[str, str]:
    """Return two pieces of text; a mapping in ``text`` that holds both has no huge pages."""
    base_page = f"{base_page_size // KIB:8} kB\n"
    no_huge_pages = next((lines for lines in _NO_HUGE_PAGES if lines in text), _NO_HUGE_PAGES[0])
    return f"\nKernelPageSize: {base_page}MMUPageSize:    {base_page}", no_huge_pages


def _split(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number of its first line and the text of each mapping."""
    line = 1
    for mapping in _NEXT_MAPPING.split(text.removesuffix("\n")) if text else ():
        yield line, f"{mapping}\n"
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
    fields: dict[str, int] = {}
    flags: frozenset[str] = frozenset()
    for line, text in enumerate(lines.removesuffix("\n").split("\n"), start=first):
        match = _FIELD.fullmatch(text)
        if match is None:
            malformed(path, line, text, "a line such as 'Rss: 2048 kB'")
        name, value = match["name"], match["value"]
        number = _NUMBER.fullmatch(value)
        if name in fields:
            malformed(path, line, text, "every name once")
        if name == _FLAGS:
            flags = frozenset(value.split())
        elif number:
            fields[name] = int(number["number"]) * (KIB if number["unit"] else 1)
        elif name in _KNOWN:
            malformed(path, line, text, f"a number behind {name}:")
    return fields, flags
