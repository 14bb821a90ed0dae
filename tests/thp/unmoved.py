"""Pages that somebody holds and that therefore cannot be moved: what each way of moving them answers and counts."""

import errno
from collections.abc import Callable
from functools import partial

from hugepage_qa.cases import memory_policy
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import expect_change
from hugepage_qa.cases.fragmentation import compact_if_short
from hugepage_qa.cases.held_and_moved import counted_moves
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.cases.pinned_pages import Pin, pipe_with
from hugepage_qa.cases.thp_memory import need_blocks, pmd_size
from hugepage_qa.cases.thp_policy import advised, set_policy
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused

UNMOVED = Area("thp/unmoved", sizes=Sizes.ONCE)

COUNTED = "Documentation/mm/page_migration.rst Monitoring Migration; mm/migrate.c migrate_pages()"
#: more than the pages of which one is held
_PAGES = 2
_Move = Callable[[Live, int, bool, Memory], object]
_Hold = Callable[[Live, Memory], object]


@UNMOVED.case(
    "a page that somebody holds stays on its node, and counts as one that could not be moved, a huge one also with all"
    " its base pages; those beside it move, and count as moved",
    f"move_pages(2); mbind(2) EIO; {COUNTED}",
    since="6.1",  # what could not be moved when it was tried often is counted, and move_pages(2) tells of the last row
    nodes=2,
)
def held(live: Live) -> None:
    _expect_to_stay(live, pipe_with)


@UNMOVED.case(
    "a page that is pinned, and therefore stays mapped, stays on its node, and counts as one that could not be moved, a"
    " huge one also with all its base pages; those beside it move, and count as moved",
    f"io_uring_register(2) IORING_REGISTER_BUFFERS; move_pages(2); mbind(2) EIO; {COUNTED}, migrate_folio_unmap()",
    since="6.1",
    nodes=2,
)
def pinned(live: Live) -> None:
    _expect_to_stay(live, _pin)


def _pin(live: Live, memory: Memory) -> None:
    Pin(live, memory).hold()


def _expect_to_stay(live: Live, hold: _Hold) -> None:
    """Expect of huge pages and of base pages the first one, which somebody has a ``hold`` of, to stay, alone."""
    old, new = live.nodes[:2]
    size, base = pmd_size(live), live.base_page
    need_memory(live, (old, new), 2 * _PAGES * size)
    set_policy(live, "madvise")
    for huge in (True, False):
        compact_if_short(live, size, 2 * _PAGES)
        each = size // base if huge else 1
        moved = _PAGES * size // base // each - 1
        counted = counted_moves(moved, 1, each, transparent=huge)
        for move in (_move, _bind):
            answers: list[object] = []

            def act(memory: Memory, move: _Move = move, huge: bool = huge, answers: list[object] = answers) -> None:
                answers.append(move(live, new, huge, memory))

            with live.about(f"huge: {huge}, {move.__name__[1:]}"):
                memory = expect_change(live, counted, partial(_held, live, old, huge, hold), act)
                # of the attempt that counts: the first page that compaction has a hold of ends move_pages(2)
                wanted = (1, (moved + 1) * [None]) if move is _move else errno.EIO
                live.expect("what is told of the move", wanted, answers[-1])
                nodes = memory.numa_maps().nodes
                live.expect("base pages of each node in numa_maps", {old: each, new: moved * each}, nodes)
                live.expect("AnonHugePages", memory.length if huge else 0, memory.smaps().anon_huge_pages)
                memory.expect_filled()


def _held(live: Live, node: int, huge: bool, hold: _Hold) -> Memory:
    """Return memory on ``node``, in huge pages or in base pages, of which somebody has a ``hold`` of the first one."""
    actor = live.actor()
    memory_policy.set_policy(actor, memory_policy.Mode.BIND, [node])
    memory = advised(live, _PAGES, MADV_HUGEPAGE if huge else MADV_NOHUGEPAGE, actor=actor)
    memory.fill()
    if huge:
        need_blocks(live, memory, node)
    hold(live, memory)
    return memory


def _move(live: Live, node: int, huge: bool, memory: Memory) -> tuple[int, list[int | None]]:
    """Have each page moved, huge or not; return what move_pages(2) tells as left, and of each of them."""
    step = memory.size if huge else live.base_page
    places = range(memory.address, memory.address + memory.length, step)
    return memory_policy.pages_told(memory.actor, places, [node] * len(places))


def _bind(_live: Live, node: int, _huge: bool, memory: Memory) -> int | None:
    """Have all of it moved by mbind(2); return its errno."""
    try:
        memory_policy.bind(memory, [node], memory_policy.MOVE_STRICTLY)
    except Refused as refusal:
        return refusal.errno
    return None


class ThpUnmoved(LiveTest):
    def test_unmoved(self) -> None:
        self.run_area(UNMOVED)
