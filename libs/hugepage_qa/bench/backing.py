"""The pages that a workload runs on: base pages, THP, or static huge pages of one size. Each is a configuration."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.counters import parse_meminfo
from hugepage_qa.kernel.cpu import read_cpu
from hugepage_qa.kernel.pools import read_pools
from hugepage_qa.kernel.thp import read_thp
from hugepage_qa.kernel.tree import Tree
from hugepage_qa.sizes import GIB, MIB, format_size

#: the configuration that others are set against, where it is measured: what a distribution runs with
REFERENCE = "thp"

_HALF = "/2"


class Kind(StrEnum):
    """Who makes a page huge."""

    BASE = "base"
    TRANSPARENT = "thp"
    STATIC = "shp"


@dataclass(frozen=True)
class Backing:
    """One kind of pages of ``page_size`` bytes (of THP: the size of a PMD). ``is_default``: of the default pool.

    ``is_halved``: half of the static pages that a workload needs are missing, and what does not get them falls back
    to base pages. That is a slow-down on purpose. ``guest``: the pages that programs in a guest have, where the backing
    is that of the guest and both are varied. ``beside``: the backing of a second guest that is busy at the same time.
    """

    kind: Kind
    page_size: int
    is_default: bool = False
    is_halved: bool = False
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

    @property
    def name(self) -> str:
        """The configuration in the samples: ``4k``, ``thp``, ``shp-2M``, ``host=4k,guest=huge``, ``thp-beside-4k``."""
        if self.beside is not None:
            return f"{replace(self, beside=None).name}-beside-{self.beside.name}"
        if self.guest is not None:
            return f"host={replace(self, guest=None).name},guest={self.guest}"
        if self.kind is Kind.TRANSPARENT:
            return REFERENCE
        size = format_size(self.page_size)
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
    transparent = [Backing(Kind.TRANSPARENT, thp.hpage_pmd_size)] if thp and thp.hpage_pmd_size else []
    static = [Backing(Kind.STATIC, pool.size, pool.size == default) for pool in read_pools(tree)]
    return (Backing(Kind.BASE, base), *transparent, *static)


def halved_backings(there: Sequence[Backing]) -> tuple[Backing, ...]:
    """Return the static backings of ``there`` with half of their pages; a single page of 1 GiB has no half."""
    static = [one for one in there if one.kind is Kind.STATIC and one.page_size < GIB]
    return tuple(replace(one, is_halved=True) for one in static)


def choose_backings(there: Sequence[Backing], names: Sequence[str]) -> tuple[Backing, ...]:
    """Return those of ``there`` that are called ``names``; without names base pages, THP, and the usual static sizes.

    Usual are the default size and that of 1 GiB or the largest below it. Raises InputError for an unknown name.
    """
    if not names:
        static = [one for one in there if one.kind is Kind.STATIC]
        largest = max((one.page_size for one in static if MIB <= one.page_size <= GIB), default=0)
        return tuple(one for one in there if one.kind is not Kind.STATIC or one.is_default or one.page_size == largest)
    known = {one.name: one for one in there}
    for name in names:
        if name not in known:
            raise InputError(f"--configuration {name}: expected one that this machine has: {', '.join(known)}")
    return tuple(one for one in there if one.name in names)
