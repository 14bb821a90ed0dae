"""Blocks of pages by what they are for, movable pages or others: /proc/pagetypeinfo, which root alone may read."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hugepage_qa.kernel.tree import Tree, malformed

PAGE_BLOCKS = "proc/pagetypeinfo"
UNMOVABLE, MOVABLE = "Unmovable", "Movable"
#: what only those have who cannot wait for memory, and what nobody gets any more
ATOMIC, ISOLATED = "HighAtomic", "Isolate"
#: what only memory that can move gets, and who wants it contiguous
CONTIGUOUS = "CMA"

_PAGES = re.compile(r"Pages per block: +([0-9]{1,10})")
_ZONE = r"Node +(?P<node>[0-9]{1,5}), zone +(?P<zone>\w+)"
# what is free in a list beyond 100000 blocks is not counted (pagetypeinfo_showfree_print() in mm/vmstat.c)
_FREE = re.compile(rf"{_ZONE}, type +(?P<type>\w+)(?P<counts>(?: +>?[0-9]{{1,10}})+) *")
# with page_owner=on blocks that are mixed are counted behind those that there are
_TYPES = re.compile(r"Number of (?:blocks type|(?P<mixed>mixed blocks)) +(?P<types>\w+(?: +\w+)*) *")
_BLOCKS = re.compile(rf"{_ZONE}(?P<counts>(?: +[0-9]{{1,10}})+) *")


@dataclass(frozen=True)
class ZoneBlocks:
    """The blocks of one zone of a node.

    ``pages`` is how many base pages a block has. ``blocks`` maps what a block is for to how many there are; ``free``
    maps it to how many free ranges of 2**order base pages there are of each order, up to 100000.
    """

    node: int
    zone: str
    pages: int
    blocks: Mapping[str, int]
    free: Mapping[str, tuple[int, ...]]

    def free_pages(self, of: str) -> int:
        """Return how many base pages are free in blocks that are ``of`` one kind."""
        return self.free_in_ranges(of, 0)

    def free_blocks(self, of: str) -> int:
        """Return how many blocks of one kind are free as a whole."""
        return self.free_in_ranges(of, (self.pages - 1).bit_length()) // self.pages

    def free_in_ranges(self, of: str, order: int) -> int:
        """Return how many base pages are free in blocks of one kind, in ranges of 2**order of them and longer ones."""
        return sum(count << at for at, count in enumerate(self.free.get(of, ())) if at >= order)


def read_page_blocks(tree: Tree) -> tuple[ZoneBlocks, ...]:
    """Return the blocks of each zone, none where the file cannot be read. Raises InputError for a malformed line."""
    pages, types, mixed = 0, list[str](), False
    free: dict[tuple[str, str], dict[str, tuple[int, ...]]] = {}
    found = list[ZoneBlocks]()
    for number, line in enumerate((tree.read(PAGE_BLOCKS) or "").split("\n"), start=1):
        if match := _PAGES.fullmatch(line):
            pages = int(match[1])
        elif match := _FREE.fullmatch(line):
            counts = tuple(int(count.removeprefix(">")) for count in match["counts"].split())
            free.setdefault((match["node"], match["zone"]), {})[match["type"]] = counts
        elif match := _TYPES.fullmatch(line):
            types, mixed = match["types"].split(), bool(match["mixed"])
        elif not mixed and (match := _BLOCKS.fullmatch(line)):
            blocks = [int(count) for count in match["counts"].split()]
            if not pages or len(blocks) != len(types):
                malformed(PAGE_BLOCKS, number, line, f"a number for each of {types}, behind the pages of a block")
            of_zone = free.get((match["node"], match["zone"]), {})
            found.append(
                ZoneBlocks(int(match["node"]), match["zone"], pages, dict(zip(types, blocks, strict=True)), of_zone)
            )
    return tuple(found)
