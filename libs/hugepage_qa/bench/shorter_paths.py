"""What has to be shorter on huge pages than on as many bytes of base pages, whatever another kernel takes for it.

A kernel that moves a huge page base page by base page may do so since ever, so that no comparison with an older one
shows it. Where huge pages are cleared and copied, both kinds of memory cost the same; all else is done once for each
page, of which there are hundreds fewer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from hugepage_qa.sizes import KIB, parse_size

#: what is done to huge pages as a whole on every kernel; a write to one that a child has, too, may split it
_AS_A_WHOLE = ("fault", "unmap", "fork", "move", "migrate")
#: from which size on: a folio of fewer base pages is mapped by each of them (medium)
_LEAST = 256 * KIB


@dataclass(frozen=True)
class LongPath:
    """A path that takes ``length`` instructions for a huge page, and ``base`` for as much memory in base pages."""

    name: str
    length: float
    base: float

    def __str__(self) -> str:
        return f"{self.name}: {self.length:,.0f} instructions for a page, and {self.base:,.0f} for as many base pages"


def no_shorter_paths(boots: Sequence[Mapping[str, Sequence[float]]]) -> Iterator[LongPath]:
    """Yield each path of ``boots``, which are metric -> instructions for a page, that is no shorter on huge pages."""
    lengths = {name: median(length for boot in boots for length in boot.get(name, ())) for name in boots[0]}
    for name, length in lengths.items():
        operation, kind, size = name.split("-")
        for base_name, each in lengths.items():
            of_base, base_kind, base_size = base_name.split("-")
            is_of_both = operation == of_base and operation in _AS_A_WHOLE and kind != base_kind == "base"
            if is_of_both and parse_size(size) >= _LEAST:
                base = each * (parse_size(size) // parse_size(base_size))
                if length >= base:
                    yield LongPath(name, length, base)
