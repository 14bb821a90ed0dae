"""What trace events tell of pages that move: of each mapping where it is and how large its page, of all how many."""

from collections.abc import Callable, Mapping
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.held_and_moved import placed
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import MOVE_ALL, STRICT, bind, move_pages, nodes_of
from hugepage_qa.cases.thp_memory import need_blocks
from hugepage_qa.cases.thp_nodes import filled_on, two_nodes_with_room
from hugepage_qa.cases.trace_events import DOC, Told, TraceEvents
from hugepage_qa.oracle.page_moves import ListedPage
from hugepage_qa.plugins.avocado_test import LiveTest

TRACED = Area("numa/traced-moves")

#: pages of a pool, and transparent ones, that move at once
_PAGES = 2
_WAYS: Mapping[str, Callable[[Memory, int], object]] = {
    "move_pages": lambda memory, node: move_pages(memory.actor, _addresses(memory), _PAGES * [node], MOVE_ALL),
    "mbind": lambda memory, node: bind(memory, [node], STRICT | MOVE_ALL),
}


@TRACED.case(
    "of each mapping of a page that moves, of one process or of two, the trace events set_migration_pte and"
    " remove_migration_pte tell its address and the order of the page, and mm_migrate_pages tells how many base pages"
    " moved, and of no transparent huge page",
    f"{DOC}; include/trace/events/migrate.h; mm/rmap.c try_to_migrate_one(), mm/migrate.c remove_migration_pte(), since"
    " 4cc79b3303f2, migrate_pages()",
    since="5.18",
    nodes=2,
    sizes=Sizes.BUDDY,
)
def pages_of_a_pool(live: Live) -> None:
    here, there = live.nodes[:2]
    events = TraceEvents(live)
    for node in (here, there):
        live.reserve(_PAGES, node)
    order = (live.size // live.base_page).bit_length() - 1
    for way, move in _WAYS.items():
        for processes in (1, 2):
            with live.about(f"{way}, mapped by {processes}"):
                memory = placed(live, _PAGES * [ListedPage(here, there)], live.map(_PAGES, shared=processes > 1))
                if processes > 1:
                    # who only has the mapping has none of its pages mapped
                    memory.fork().expect_filled()
                times = {f"(addr == {address} && order == {order})": processes for address in _addresses(memory)}
                expected = [Told(f"migrate/{name}_migration_pte", _within(memory), times) for name in ("set", "remove")]
                expected.append(_moved(memory.length // live.base_page, transparent=0))
                events.expect(memory.actor, expected, partial(move, memory, there))
                live.expect("nodes of the pages", _PAGES * [there], nodes_of(memory.actor, _addresses(memory)))
                memory.expect_filled()
                memory.actor.end()
                live.expect_pool(nr=2 * _PAGES, free=2 * _PAGES)


@TRACED.case(
    "of each transparent huge page that moves the trace events set_migration_pmd and remove_migration_pmd tell the"
    " address, set_migration_pte and remove_migration_pte none, and mm_migrate_pages tells how many base pages moved,"
    " and how many transparent huge pages",
    f"{DOC}; include/trace/events/thp.h; mm/huge_memory.c set_pmd_migration_entry(), remove_migration_pmd(), since"
    " 283fd6fe0528; mm/migrate.c migrate_pages()",
    since="5.18",
    nodes=2,
    sizes=Sizes.ONCE,
)
def transparent_pages(live: Live) -> None:
    events = TraceEvents(live)
    here, there = two_nodes_with_room(live, _PAGES)

    def attempt() -> tuple[Memory, Mapping[str, tuple[int, int]]]:
        memory = filled_on(live, live.actor(), here, _PAGES)
        act = partial(_move_whole, live, memory, there)
        return memory, events.found(memory.actor, _of_whole_pages(live, memory), act)

    # a huge page that somebody has a hold of in that moment is split, or stays
    memory, found = live.host.last_attempt(attempt, lambda seen: all(wanted == got for wanted, got in seen[1].values()))
    for what, (wanted, got) in found.items():
        live.expect(what, wanted, got)
    live.expect("nodes of the pages", _PAGES * [there], nodes_of(memory.actor, _addresses(memory)))
    memory.expect_filled()


def _of_whole_pages(live: Live, memory: Memory) -> list[Told]:
    times = {f"addr == {address}": 1 for address in _addresses(memory)}
    expected = [Told(f"thp/{name}_migration_pmd", _within(memory), times) for name in ("set", "remove")]
    expected += [Told(f"migrate/{name}_migration_pte", _within(memory), {}) for name in ("set", "remove")]
    return [*expected, _moved(memory.length // live.base_page, transparent=_PAGES)]


def _move_whole(live: Live, memory: Memory, node: int) -> None:
    _WAYS["move_pages"](memory, node)
    # what finds no free block is split, and moved as base pages
    need_blocks(live, memory, node)


def _addresses(memory: Memory) -> list[int]:
    return [memory.at(page) for page in range(memory.pages)]


def _within(memory: Memory) -> str:
    return f"addr >= {memory.address} && addr < {memory.address + memory.length}"


def _moved(base_pages: int, *, transparent: int) -> Told:
    """Return what is told of a call that moves so many pages; others may be moved to make room for them."""
    told = f"succeeded == {base_pages} && failed == 0"
    times = {f"thp_succeeded == {transparent} && thp_failed == 0 && thp_split == 0": 1}
    return Told("migrate/mm_migrate_pages", told, times)


class TracedMoves(LiveTest):
    def test_traced_moves(self) -> None:
        self.run_area(TRACED)
