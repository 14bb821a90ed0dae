"""How fragmented free memory is, as debugfs tells it for each size of blocks: it is what the free lists of zones hold.

Both files and /proc/buddyinfo count the same lists (nr_free in struct free_area).
"""

from collections.abc import Callable

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.debugfs import find_in_debugfs
from hugepage_qa.cases.fragments import fragment
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.kernel.memory_layout import FreeBlocks, read_free_blocks
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.plugins.avocado_test import LiveTest

TOLD = Area("accounting/told-fragmentation")

_STATEMENT = (
    "unusable_index and extfrag_index of debugfs tell for each zone and each order what follows from its free blocks, a"
    " share of free memory that is in smaller ones, and whether a block fails for want of memory or of such blocks"
)
_SOURCE = (
    "Documentation/admin-guide/sysctl/vm.rst extfrag_threshold; mm/vmstat.c unusable_free_index(),"
    " __fragmentation_index()"
)
#: the indexes are told in thousandths
_ONE = 1000
_SECONDS = 20.0

#: the free blocks of one zone, of each order, and the order that is asked for
_Index = Callable[[tuple[int, ...], int], int]


@TOLD.case(
    f"{_STATEMENT}, while a pool takes pages and gives them back",
    _SOURCE,
    sizes=Sizes.BUDDY,
    pages=2,
)
def beside_a_pool(live: Live) -> None:
    for pages in (2, 1, 0):
        live.set_nr(pages)
        _expect_told(live, f"a pool of {pages}")


@TOLD.case(f"{_STATEMENT}, where memory is fragmented, as little or as much as it is", _SOURCE, sizes=Sizes.ONCE)
def of_fragmented_memory(live: Live) -> None:
    # a huge page of radix page tables with base pages of 64K has 32 of them
    for kept in sorted({2, 8, min(64, pmd_size(live) // live.base_page // 2)}):
        fragments = fragment(live, kept)
        _expect_told(live, f"one base page of {kept} is left")
        fragments.memory.actor.end()
        _expect_told(live, "none is left")


def _expect_told(live: Live, when: str) -> None:
    for name, index in (("unusable_index", _unusable), ("extfrag_index", _fragmentation)):
        if live.differences:
            # each of the others would be waited for, too
            return
        expected, told = _last_look(live, find_in_debugfs(live, f"extfrag/{name}"), index)
        live.expect(f"{name} when {when}", expected, told)


def _last_look(live: Live, path: str, index: _Index) -> tuple[list[str], list[str]]:
    """Return the lines that a file has to have and those that it has, as soon as both are the same, or as they stay.

    Raises CannotRun where free memory changes all the time.
    """
    seen = list[tuple[list[str], list[str]]]()
    tree = ObservedTree(live.host)

    def is_told() -> bool:
        before = read_free_blocks(tree)
        told = (tree.read(path) or "").splitlines()
        if read_free_blocks(tree) == before:
            lines = [_line(zone, index) for zone in before], [" ".join(line.split()) for line in told]
            seen.append(lines)
        return bool(seen) and seen[-1][0] == seen[-1][1]

    live.host.wait_until(is_told, _SECONDS)
    if not seen:
        raise CannotRun("what is free changes all the time")
    return seen[-1]


def _line(zone: FreeBlocks, index: _Index) -> str:
    found = (index(zone.counts, order) for order in range(len(zone.counts)))
    # C divides towards zero
    words = (f"{int(each / _ONE)}.{each - int(each / _ONE) * _ONE:03d}" for each in found)
    return " ".join([f"Node {zone.node}, zone {zone.zone}", *words])


def _unusable(blocks: tuple[int, ...], order: int) -> int:
    free = _base_pages(blocks, 0)
    return (free - _base_pages(blocks, order)) * _ONE // free if free else _ONE


def _fragmentation(blocks: tuple[int, ...], order: int) -> int:
    if not any(blocks):
        return 0
    if any(blocks[order:]):
        return -_ONE
    return _ONE - (_ONE + _base_pages(blocks, 0) * _ONE // (1 << order)) // sum(blocks)


def _base_pages(blocks: tuple[int, ...], least: int) -> int:
    """Return how many base pages the blocks of order ``least`` and beyond have."""
    return sum(count << order for order, count in enumerate(blocks) if order >= least)


class ToldFragmentation(LiveTest):
    def test_told_fragmentation(self) -> None:
        self.run_area(TOLD)
