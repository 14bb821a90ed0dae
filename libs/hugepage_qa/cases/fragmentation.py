"""How fragmented memory is, and judgements that depend on it: repeated, and told together with it."""

from collections.abc import Callable
from dataclasses import dataclass

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.result import FRAGMENTED
from hugepage_qa.kernel.memory_layout import read_free_blocks
from hugepage_qa.machine.host import CannotRun

#: how often an outcome that depends on fragmentation is tried
SAMPLES = 3
#: free blocks beyond those wanted: others allocate at the same time
_MARGIN = 8
_FREE = "free blocks, "
_COMPACTED = "memory was compacted"


@dataclass(frozen=True)
class Fragmentation:
    """Free memory by /proc/buddyinfo, in bytes: all of it, and what of it is in blocks smaller than ``size``.

    ``owed`` is how many pages of ``size`` bytes who asks for them gets of that without compaction.
    """

    size: int
    free: int
    scattered: int
    owed: int

    @property
    def blocks(self) -> int:
        """How many blocks of ``size`` bytes are free, those that nobody gets among them."""
        return (self.free - self.scattered) // self.size

    @property
    def unusable(self) -> float:
        """The share of the free memory that is in smaller blocks, as unusable_index in debugfs has it."""
        return self.scattered / self.free if self.free else 0.0

    def __str__(self) -> str:
        kept = f"{self.owed} to be had, " if self.owed < self.blocks else ""
        return f"{self.blocks} {_FREE}{kept}{self.unusable:.2f} of the free memory unusable"


def fragmentation(live: Live, size: int, node: int | None = None, *, movable: bool = True) -> Fragmentation:
    """Return how fragmented memory of a node, or all, is for blocks of ``size`` bytes, ``movable`` ones or others."""
    order = (size // live.base_page).bit_length() - 1
    free = usable = 0
    for zone in read_free_blocks(live.host):
        if node in (None, zone.node):
            for at, count in enumerate(zone.counts):
                free += count << at
                usable += count << at if at >= order else 0
    owed = live.free_blocks(node, size, movable=movable)
    return Fragmentation(size, free * live.base_page, (free - usable) * live.base_page, owed)


def with_blocks(live: Live, size: int, pages: int, node: int | None = None, *, movable: bool = True) -> Fragmentation:
    """Return how fragmented memory of a node, or all, is for ``pages`` pages of ``size`` bytes.

    Where free blocks are too few for them, memory is compacted before, as ``compact_if_short`` does.
    """
    now = fragmentation(live, size, node, movable=movable)
    return fragmentation(live, size, node, movable=movable) if _compacted(live, now, size, pages) else now


def compact_if_short(live: Live, size: int, pages: int) -> bool:
    """Drop caches and compact memory where free blocks are too few; return whether it was done, which is told, too."""
    return _compacted(live, fragmentation(live, size), size, pages)


def _compacted(live: Live, now: Fragmentation, size: int, pages: int) -> bool:
    if now.owed >= pages + _MARGIN:
        return False
    live.make_room()
    live.notes.append(f"{_COMPACTED}: {now} before, {fragmentation(live, size)} after")
    return True


def tell(live: Live, *found: object) -> None:
    """Tell with the verdict how fragmented memory was last, and whether it had to be compacted before."""
    compacted = [note for note in live.notes if note.startswith(_COMPACTED)]
    others = [note for note in live.notes if _FREE not in note]
    live.notes = [*others, *compacted[-1:], *map(str, found)]


def expect_no_shortage(live: Live, size: int, pages: int, node: int | None = None, *, movable: bool = True) -> None:
    """Raise CannotRun where memory, of a node or all, is too fragmented for pages of ``size`` bytes: none is owed then.

    What ``with_blocks`` could do was done before.
    """
    now = fragmentation(live, size, node, movable=movable)
    if now.unusable > 0 and now.owed < pages + _MARGIN:
        raise CannotRun(f"{FRAGMENTED}: {now}")


def expect_no_node_short(live: Live, size: int, pages: int) -> None:
    """Raise CannotRun where memory of any node is too fragmented for pages of ``size`` bytes.

    Who does not reclaim, or has to stay on a node, gets no block of another one: shared memory in most modes of defrag,
    khugepaged and MADV_COLLAPSE (mm/mempolicy.c alloc_pages_mpol(), mm/khugepaged.c).
    """
    for node in (*live.before.nodes, None):
        expect_no_shortage(live, size, pages, node)


def expect_at_fault(
    live: Live, subject: str, huge: bool, prepare: Callable[[], Memory], node: int | None = None
) -> None:
    """Expect the memory that ``prepare`` maps to get PMD-sized pages when it is written, or none of them.

    With a ``node`` they come from there alone. Tried several times. A huge page is owed where there are free blocks: an
    attempt without them says nothing. Raises CannotRun where no attempt says anything.
    """
    counted = 0
    for _sample in range(SAMPLES):
        memory = prepare()
        now = with_blocks(live, memory.size, memory.pages if huge else 0, node)
        memory.fill()
        if not huge or now.owed >= memory.pages + _MARGIN:
            counted += 1
            expected = memory.length if huge else 0
            live.expect(f"AnonHugePages, {subject} ({now})", expected, memory.smaps().anon_huge_pages)
        memory.expect_filled()
        memory.unmap()
        tell(live, now)
    if not counted:
        raise CannotRun(f"{FRAGMENTED}: {live.notes[-1]}")
