"""The pages that a workload runs on: base pages, THP, or static huge pages of one size. Each is a configuration."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.counters import parse_meminfo
from hugepage_qa.kernel.cpu import read_cpu
from hugepage_qa.kernel.pools import read_pools
from hugepage_qa.kernel.thp import Thp, read_thp
from hugepage_qa.kernel.tree import Tree
from hugepage_qa.sizes import GIB, MIB, format_size

#: the configuration that others are set against, where it is measured: what a distribution runs with
REFERENCE = "thp"

_HALF = "/2"


class ProgramText(StrEnum):
    """Who makes the text of programs huge: madvise(2), or a mode of hugetext (1 files, 2 anonymous memory, 3 both)."""

    COLLAPSED = "text-thp"
    HUGETEXT_1 = "hugetext-1"
    HUGETEXT_2 = "hugetext-2"
    HUGETEXT_3 = "hugetext-3"
    #: with the end of a text that fills no huge page, too
    HUGETEXT_3_PADDED = "hugetext-3-padded"

    @property
    def mode(self) -> int:
        """What hugetext_enabled is."""
        return 0 if self is ProgramText.COLLAPSED else int(self.value.split("-")[1])

    @property
    def is_padded(self) -> bool:
        return self is ProgramText.HUGETEXT_3_PADDED

    @property
    def is_of_files(self) -> bool:
        """Whether the text of a program that is mapped from its file becomes huge."""
        return self is not ProgramText.HUGETEXT_2


class Kind(StrEnum):
    """Who makes a page huge."""

    BASE = "base"
    TRANSPARENT = "thp"
    STATIC = "shp"


@dataclass(frozen=True)
class Backing:
    """One kind of pages of ``page_size`` bytes. ``is_default``: of the default pool, of THP the size of a PMD.

    ``defrag``: the mode of ``transparent_hugepage/defrag``, None as the machine has it. ``shmem``: that of
    ``transparent_hugepage/shmem_enabled``, None for always. ``text``: how the text of programs becomes huge, None where
    it does not. ``is_halved``: half of the static pages that a workload needs are
    missing, and what does not get them falls back to base pages. That is a slow-down on purpose. ``guest``: the
    pages that programs in a guest have, where the backing is that of the guest and both are varied. ``beside``: the
    backing of a second guest that is busy at the same time.
    """

    kind: Kind
    page_size: int
    is_default: bool = False
    is_halved: bool = False
    defrag: str | None = None
    shmem: str | None = None
    text: ProgramText | None = None
    guest: str | None = None
    beside: "Backing | None" = None

    @property
    def in_use(self) -> "tuple[Backing, ...]":
        """All that is in use at the same time."""
        return (self,) if self.beside is None else (self, self.beside)

    @property
    def is_all_static(self) -> bool:
        """Whether all memory that can be has to be on static pages."""
        return self.kind is Kind.STATIC and not self.is_halved

    def without_hidden(self, figures: Mapping[str, list[float]]) -> Mapping[str, list[float]]:
        """Return ``figures`` without huge pages had, where smaps tells of none but those of the size of a PMD."""
        if self.kind is not Kind.TRANSPARENT or self.is_default:
            return figures
        return {name: values for name, values in figures.items() if not name.endswith("-huge")}

    @property
    def name(self) -> str:
        """The configuration in the samples: ``4k``, ``thp``, ``thp-64K``, ``thp-defrag-defer``, ``thp-shmem-advise``,
        ``shp-2M``, ``hugetext-1``, ``host=4k,guest=huge``, ``thp-beside-4k``.
        """
        if self.beside is not None:
            return f"{replace(self, beside=None).name}-beside-{self.beside.name}"
        if self.guest is not None:
            return f"host={replace(self, guest=None).name},guest={self.guest}"
        if self.text is not None:
            return self.text.value
        size = format_size(self.page_size)
        if self.kind is Kind.TRANSPARENT:
            of_size = REFERENCE if self.is_default else f"{REFERENCE}-{size}"
            modes = {"defrag": self.defrag, "shmem": self.shmem}
            return "-".join([of_size, *(f"{name}-{mode}" for name, mode in modes.items() if mode is not None)])
        if self.kind is Kind.BASE:
            return size.lower()
        return f"shp-{size}{_HALF if self.is_halved else ''}"


def find_backings(tree: Tree) -> tuple[Backing, ...]:
    """Return the backings that the machine has, base pages first. Raises InputError for a malformed file."""
    base = read_cpu(tree).base_page_size
    if base is None:
        raise InputError("/proc/self/smaps: cannot be read, expected it to tell the size of a base page")
    thp = read_thp(tree)
    default = parse_meminfo(tree.read("proc/meminfo") or "", "proc/meminfo").get("Hugepagesize")
    transparent = _transparent(thp, thp.hpage_pmd_size) if thp and thp.hpage_pmd_size else []
    static = [Backing(Kind.STATIC, pool.size, pool.size == default) for pool in read_pools(tree)]
    return (Backing(Kind.BASE, base), *transparent, *static)


def _transparent(thp: Thp, pmd_size: int) -> list[Backing]:
    """Return THP as the machine has it, of each smaller size that anonymous memory can have, and in each mode of defrag
    and of shared memory.
    """
    usual = Backing(Kind.TRANSPARENT, pmd_size, is_default=True)
    smaller = [one.size for one in thp.sizes if one.size < pmd_size and one.enabled is not None]
    modes = {name: found.allowed for name, found in thp.selections.items()}
    return [
        usual,
        *(Backing(Kind.TRANSPARENT, size) for size in smaller),
        *(replace(usual, defrag=mode) for mode in modes.get("defrag", ())),
        *(replace(usual, shmem=mode) for mode in modes.get("shmem_enabled", ())),
    ]


def text_backings(there: Sequence[Backing]) -> tuple[Backing, ...]:
    """Return the ways in which text becomes huge, whether this kernel has them or not; all else is on base pages."""
    return tuple(replace(one, text=text) for one in there if one.kind is Kind.BASE for text in ProgramText)


def halved_backings(there: Sequence[Backing]) -> tuple[Backing, ...]:
    """Return the static backings of ``there`` with half of their pages; a single page of 1 GiB has no half."""
    static = [one for one in there if one.kind is Kind.STATIC and one.page_size < GIB]
    return tuple(replace(one, is_halved=True) for one in static)


def _is_usual(one: Backing, largest: int) -> bool:
    if one.kind is Kind.TRANSPARENT:
        return one.is_default and one.defrag is None and one.shmem is None
    return one.kind is Kind.BASE or one.is_default or one.page_size == largest


def choose_backings(there: Sequence[Backing], names: Sequence[str]) -> tuple[Backing, ...]:
    """Return those of ``there`` that are called ``names``; without names base pages, THP, and the usual static sizes.

    THP is as the machine has it; usual are the default size and that of 1 GiB or the largest below it. What makes text
    huge may be named, too, whether this kernel has it or not. Raises InputError for an unknown name.
    """
    if not names:
        static = [one for one in there if one.kind is Kind.STATIC]
        largest = max((one.page_size for one in static if MIB <= one.page_size <= GIB), default=0)
        return tuple(one for one in there if _is_usual(one, largest))
    known = {one.name: one for one in (*there, *text_backings(there))}
    for name in names:
        if name not in known:
            raise InputError(f"--configuration {name}: expected one that this machine has: {', '.join(known)}")
    return tuple(one for name, one in known.items() if name in names)
