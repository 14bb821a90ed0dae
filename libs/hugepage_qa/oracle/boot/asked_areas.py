"""What hugetlb_cma= asks for, given once or again: of all nodes or of some, in bytes or in per cent of their memory.

Source: mm/hugetlb_cma.c cmdline_parse_hugetlb_cma().
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hugepage_qa.oracle.boot.cstring import memparse, scan_decimal

_ALL = 100


@dataclass(frozen=True)
class AskedSize:
    """A number of bytes, or of per cent of memory."""

    number: int = 0
    is_percentage: bool = False


@dataclass(frozen=True)
class AskedAreas:
    """A size of all nodes together, or sizes by node; none of them is 0 that has a node. One of both is empty."""

    of_all: AskedSize = AskedSize()
    of_nodes: Mapping[int, AskedSize] = field(default_factory=dict)
    #: what the log says of percentages that are none
    messages: tuple[str, ...] = ()

    @property
    def are_none(self) -> bool:
        """Whether nothing is asked for."""
        return not self.of_all.number and not self.of_nodes

    @property
    def have_percentages(self) -> bool:
        """Whether a size depends on memory."""
        return any(size.is_percentage for size in (self.of_all, *self.of_nodes.values()))


def read_asked_areas(values: Sequence[str], *, has_percentages: bool) -> AskedAreas:
    """Return what hugetlb_cma= with one of ``values`` after the other asks for.

    A size of all takes the place of whatever was asked for before, a size of a node that of this node, and of all. What
    is no size changes nothing.
    """
    asked = AskedAreas()
    for value in values:
        asked = _read(asked, value, has_percentages=has_percentages)
    return asked


def _read(asked: AskedAreas, text: str, *, has_percentages: bool) -> AskedAreas:
    rest = text
    while scanned := scan_decimal(rest):
        node, after = scanned
        is_of_a_node = after.startswith(":")
        # of all it is read from the start, whatever came before
        number, rest = memparse(after[1:] if is_of_a_node else text)
        size = AskedSize(number, has_percentages and rest.startswith("%"))
        is_refused = size.is_percentage and number > _ALL
        if is_of_a_node:
            asked = replace(asked, of_all=AskedSize())
        if is_refused:
            where = f" for node {node}" if is_of_a_node else ""
            message = f"hugetlb_cma: invalid percentage {number}{where}"
            return replace(asked, messages=(*asked.messages, message))
        if not is_of_a_node:
            return replace(asked, of_all=size, of_nodes={})
        of_nodes = {**asked.of_nodes, node: size}
        asked = replace(asked, of_nodes={node: size for node, size in of_nodes.items() if size.number})
        rest = rest.removeprefix("%") if size.is_percentage else rest
        if not rest.startswith(","):
            break
        rest = rest[1:]
    return asked
