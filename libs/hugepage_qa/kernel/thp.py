"""Transparent huge pages in sysfs, hugetext included (Documentation/admin-guide/mm/transhuge.rst, mm/huge_memory.c)."""

from collections.abc import Mapping
from dataclasses import dataclass

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.tree import Tree, malformed, parse_integer, read_numbers, size_directories, size_name

DIRECTORY = "sys/kernel/mm/transparent_hugepage"

_SELECTIONS = frozenset({"enabled", "defrag", "shmem_enabled"})
_NUMBERS = frozenset({"use_zero_page", "hpage_pmd_size", "hugetext_enabled", "hugetext_pad_threshold"})


@dataclass(frozen=True)
class Selection:
    """A file that offers values and marks one: ``always [madvise] never``."""

    selected: str
    allowed: tuple[str, ...]


@dataclass(frozen=True)
class ThpSize:
    """The knobs of one page size (``size`` in bytes), since Linux 6.8; ``stats`` are counts of events or pages.

    ``enabled`` is None where anonymous memory cannot have this size (two base pages), ``shmem_enabled`` before 6.11.
    """

    size: int
    enabled: Selection | None
    shmem_enabled: Selection | None
    stats: Mapping[str, int]

    @property
    def name(self) -> str:
        """The directory name, for example ``hugepages-64kB``."""
        return size_name(self.size)


@dataclass(frozen=True)
class Thp:
    """Everything below /sys/kernel/mm/transparent_hugepage.

    ``selections`` and ``numbers`` hold the files of the directory itself, those of later kernels included;
    ``sizes`` the per-size directories by ascending size; ``khugepaged`` the knobs and counters of the thread.
    """

    selections: Mapping[str, Selection]
    numbers: Mapping[str, int]
    sizes: tuple[ThpSize, ...]
    khugepaged: Mapping[str, int]

    @property
    def enabled(self) -> str | None:
        """always, madvise or never."""
        return self._selected("enabled")

    @property
    def defrag(self) -> str | None:
        """always, defer, defer+madvise, madvise or never."""
        return self._selected("defrag")

    @property
    def shmem_enabled(self) -> str | None:
        """always, within_size, advise, never, deny or force; None without CONFIG_SHMEM."""
        return self._selected("shmem_enabled")

    @property
    def hpage_pmd_size(self) -> int | None:
        """Bytes of a PMD-sized page."""
        return self.numbers.get("hpage_pmd_size")

    @property
    def hugetext_enabled(self) -> int | None:
        """Bit 0: file text, bit 1: anonymous executable memory; None on kernels without hugetext."""
        return self.numbers.get("hugetext_enabled")

    def _selected(self, name: str) -> str | None:
        selection = self.selections.get(name)
        return selection.selected if selection else None


def read_thp(tree: Tree) -> Thp | None:
    """Return the THP knobs, or None where the kernel or the processor has no THP (then the directory is absent).

    Raises InputError for a malformed file. Files that no known kernel has are left out unless they hold
    a selection or a number.
    """
    if not tree.names(DIRECTORY):
        return None
    selections: dict[str, Selection] = {}
    numbers: dict[str, int] = {}
    for name in tree.names(DIRECTORY):
        _sort_file(tree, name, selections, numbers)
    sizes = [
        ThpSize(
            size=size,
            enabled=_read_selection(tree, f"{path}/enabled"),
            shmem_enabled=_read_selection(tree, f"{path}/shmem_enabled"),
            stats=read_numbers(tree, f"{path}/stats"),
        )
        for size, path in size_directories(tree, DIRECTORY).items()
    ]
    return Thp(selections, numbers, tuple(sizes), read_numbers(tree, f"{DIRECTORY}/khugepaged"))


def parse_selection(text: str, path: str) -> Selection:
    """Return the values in ``text`` and which one stands in brackets; raises InputError unless exactly one does."""
    words = text.split()
    marked = [word[1:-1] for word in words if word.startswith("[") and word.endswith("]")]
    allowed = tuple(word.removeprefix("[").removesuffix("]") for word in words)
    if len(marked) != 1 or not all(allowed) or "[" in "".join(allowed):
        malformed(path, 1, text, "values with one in brackets, such as 'always [madvise] never'")
    return Selection(marked[0], allowed)


def _sort_file(tree: Tree, name: str, selections: dict[str, Selection], numbers: dict[str, int]) -> None:
    path = f"{DIRECTORY}/{name}"
    text = tree.read(path)
    if text is None:
        return
    try:
        if name in _SELECTIONS or (name not in _NUMBERS and "[" in text):
            selections[name] = parse_selection(text, path)
        else:
            numbers[name] = parse_integer(text, path)
    except InputError:
        if name in _SELECTIONS | _NUMBERS:
            raise


def _read_selection(tree: Tree, path: str) -> Selection | None:
    text = tree.read(path)
    return None if text is None else parse_selection(text, path)
