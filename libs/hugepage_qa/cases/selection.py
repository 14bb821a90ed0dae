"""Which cases, and on which page sizes, a run is to have: the one place that decides it."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from hugepage_qa.cases.case import Area, Case, Sizes, result_name
from hugepage_qa.errors import InputError
from hugepage_qa.sizes import format_size


@dataclass(frozen=True)
class Selection:
    """Cases by name, and page sizes in bytes; where none is named, all.

    A name is that of a case (``grow-and-shrink``), the same with its area (``/pool/pool/grow-and-shrink``), or that of
    one result (``/pool/pool/grow-and-shrink/2M``), and may be a pattern. A case that runs once is about no page size:
    no choice of sizes leaves it out.
    """

    cases: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()

    def includes(self, area: Area, case: Case, size: int | None) -> bool:
        """Tell whether the run has ``case`` on pages of ``size`` bytes, None for a case that runs once."""
        in_size = size is None or not self.sizes or size in self.sizes
        names = _names(area, case, size)
        return in_size and (not self.cases or any(_matches(pattern, names) for pattern in self.cases))

    def has(self, area: Area, case: Case, sizes: Collection[int]) -> bool:
        """Tell whether the run has ``case`` on a machine with pages of ``sizes`` bytes, be it on none of them."""
        return self.includes(area, case, None) or bool(self.sizes_of(area, case, sizes))

    def sizes_of(self, area: Area, case: Case, sizes: Collection[int]) -> list[int | None]:
        """Return on which of ``sizes``, those of the machine, the run has ``case``: None for one that runs once."""
        return [size for size in ((None,) if case.sizes is Sizes.ONCE else sizes) if self.includes(area, case, size)]

    def require(self, areas: Sequence[Area], sizes: Collection[int]) -> None:
        """Raise InputError for a name that no case of ``areas`` has, or a page size that is none of ``sizes``."""
        for size in self.sizes:
            if size not in sizes:
                there = ", ".join(map(format_size, sizes)) or "no size"
                raise InputError(f"--size {format_size(size)}: expected a page size of the machine, which has {there}")
        known = set(_all_names(areas, sizes))
        for pattern in self.cases:
            if not _matches(pattern, known):
                near = get_close_matches(pattern, known, n=1, cutoff=0)
                example = f", such as {near[0]}" if near else ", and these files have none"
                raise InputError(f"--case {pattern}: expected the name of a case, or a pattern of names{example}")


EVERYTHING = Selection()


def _matches(pattern: str, names: Collection[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def _names(area: Area, case: Case, size: int | None) -> set[str]:
    return {case.name, result_name(area, case, None), result_name(area, case, size)}


def _all_names(areas: Sequence[Area], sizes: Collection[int]) -> Iterator[str]:
    for area in areas:
        for case in area.cases:
            for size in (None, *sizes):
                yield from _names(area, case, size)
