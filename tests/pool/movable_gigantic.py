"""Gigantic pages and memory for what can be moved alone: they come from there where vm.movable_gigantic_pages asks."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import FRAME, Memory
from hugepage_qa.cases.memory_blocks import ONLINE_MOVABLE, MemoryBlock, memory_blocks
from hugepage_qa.cases.memory_policy import bind
from hugepage_qa.cases.places import ordinary_memory
from hugepage_qa.cases.struct_pages import keep_struct_pages_that_nobody_counts
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest

GIGANTIC = Area("pool/movable-gigantic", sizes=Sizes.GIGANTIC)

DOC = "Documentation/admin-guide/sysctl/vm.rst movable_gigantic_pages; include/linux/hugetlb.h htlb_alloc_mask()"
_KNOB = "proc/sys/vm/movable_gigantic_pages"
#: it came with Linux 7.0
_SINCE = "7.0"
#: ranges that are tried, each of which may have a page that cannot be moved
_TRIED = 4
#: an emulated processor takes several for a page that is copied, and others may have it most of the time
_COPIED_SECONDS = 100
#: of others, which come from movable memory first
_BASE_PAGES = 64


@dataclass(frozen=True)
class _Range:
    """Movable memory of ``node`` with room for one gigantic page, and which blocks it consists of."""

    node: int
    blocks: tuple[MemoryBlock, ...]


@GIGANTIC.case(
    "a pool takes as many pages as a node has room for, and leaves movable memory to others",
    f"{DOC}; Documentation/admin-guide/mm/memory-hotplug.rst ZONE_MOVABLE",
)
def never_unless_asked(live: Live) -> None:
    live.set_knob_if_there(_KNOB, "0")
    movable = _movable_range(live)
    live.reserve(1, movable.node)
    # as many as it gets: a page is larger than a block
    live.set_nr(len(list(memory_blocks(live))), movable.node)
    pages = live.pool().nr
    memory = _pages_of(live, movable.node, live.pool(movable.node).nr)
    live.expect_pool(nr=pages, free=pages - memory.pages)
    _expect_to_lie(live, movable, memory, [])
    others = ordinary_memory(live, live.actor(), _BASE_PAGES)
    bind(others, [movable.node])
    others.fill()
    _expect_to_lie(live, movable, others, list(range(_BASE_PAGES)))


@GIGANTIC.case(
    "with vm.movable_gigantic_pages a pool takes movable memory first, gives it back, and no longer takes it when the"
    " knob is 0 again",
    DOC,
    since=_SINCE,
)
def taken_where_asked(live: Live) -> None:
    movable = _movable_range(live)
    for asked in ("1", "0", "1"):
        live.set_knob(_KNOB, asked)
        with live.about(f"{_KNOB} {asked}"):
            live.reserve(1, movable.node)
            memory = _pages_of(live, movable.node, 1)
            _expect_to_lie(live, movable, memory, [0] if asked == "1" else [])
            memory.actor.end()
            live.set_nr(0)
            live.expect_pool(nr=0, free=0)


@GIGANTIC.case(
    "a page in movable memory moves when that is taken, to a free one of another node, and holds what it held",
    "Documentation/admin-guide/mm/memory-hotplug.rst Memory Offlining and ZONE_MOVABLE; mm/memory_hotplug.c"
    " do_migrate_range(), mm/hugetlb.c alloc_hugetlb_folio_nodemask()",
    nodes=2,
    since=_SINCE,
)
def moved_when_taken(live: Live) -> None:
    live.set_knob(_KNOB, "1")
    movable = _movable_range(live)
    live.reserve(1, movable.node)
    memory = _pages_of(live, movable.node, 1)
    _expect_to_lie(live, movable, memory, [0])
    # those of other nodes alone are looked at (do_migrate_range())
    for other in live.nodes:
        if other != movable.node:
            live.reserve(1, other)
    pages = live.pool().nr
    live.expect("whether a block of it is taken", True, movable.blocks[0].is_taken(live, _COPIED_SECONDS))
    _expect_to_lie(live, movable, memory, [])
    memory.expect_filled()
    # what it left is free, and no longer in the pool
    live.expect_pool(nr=pages - 1, free=pages - 2)


def _movable_range(live: Live) -> _Range:
    """Have movable memory with room for one page until the case ends.

    Raises CannotRun where nothing can be taken, on a kernel without nodes, and as ``memory_blocks()`` does.
    """
    live.need_nodes()
    keep_struct_pages_that_nobody_counts(live)
    ranges: defaultdict[tuple[int, int], list[MemoryBlock]] = defaultdict(list)
    for block in memory_blocks(live):
        if block.size > live.size:
            raise CannotRun(f"a block of memory has {block.size >> 20} MiB, more than a page")
        ranges[block.node(live), block.number * block.size // live.size].append(block)
    whole = [_Range(node, tuple(each)) for (node, _), each in ranges.items() if len(each) == live.size // each[0].size]
    for movable in whole[:_TRIED]:
        if _is_made_movable(live, movable.blocks):
            return movable
    raise CannotRun(f"no {live.size >> 30} GiB of memory can be taken from the machine")


def _is_made_movable(live: Live, blocks: Sequence[MemoryBlock]) -> bool:
    """Make ``blocks`` movable until the case ends, and tell whether they are: all of them, or none."""
    for number, block in enumerate(blocks):
        if not block.is_taken(live):
            for taken in blocks[:number]:
                taken.put_back(live)
            return False
        live.when_actors_have_ended(block.put_back, live)
    for block in blocks:
        live.when_actors_have_ended(block.make_ordinary, live)
        block.add(live, ONLINE_MOVABLE)
    return True


def _pages_of(live: Live, node: int, pages: int) -> Memory:
    memory = live.map(pages)
    bind(memory, [node])
    memory.fill()
    return memory


def _expect_to_lie(live: Live, movable: _Range, memory: Memory, expected: list[int]) -> None:
    """Expect the pages ``expected`` of ``memory`` to lie in ``movable``, and the others not to."""
    frames = [entry & FRAME for entry in memory.pagemap(memory.at(page) for page in range(memory.pages))]
    inside = {frame for block in movable.blocks for frame in block.held(live, frames)}
    live.expect("pages in movable memory", expected, [page for page, frame in enumerate(frames) if frame in inside])


class MovableGigantic(LiveTest):
    def test_movable_gigantic(self) -> None:
        self.run_area(GIGANTIC)
