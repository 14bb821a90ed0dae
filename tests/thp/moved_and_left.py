"""Huge pages of lists and ranges of which some cannot move: what calls return and tell, and how all are counted."""

import errno
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.held_and_moved import LISTS, Kind, counted_moves, expect_moves, expect_ranges_to_move
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import MOVE, MOVE_ALL, bind, move_pages, nodes_of
from hugepage_qa.cases.thp_memory import map_aligned, mapped_huge, pmd_size
from hugepage_qa.cases.thp_nodes import two_nodes_with_room
from hugepage_qa.cases.thp_policy import advised
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

MOVED_AND_LEFT = Area("thp/moved-and-left", sizes=Sizes.ONCE)

_PAGES = 3
COUNTERS = "Documentation/mm/page_migration.rst Monitoring Migration"


@MOVED_AND_LEFT.case(
    "where some huge pages of a list cannot move, move_pages(2) returns how many have not moved, those that it has not"
    " tried among them, tells of those before them where they are, and leaves the others; those that moved or failed"
    " are counted, also as all their base pages, and none is split, whichever of its base pages it is named by",
    f"move_pages(2) RETURN VALUE; mm/migrate.c do_pages_move(), add_folio_for_migration(),"
    f" move_pages_and_store_status(), since 5984fabb6e82; {COUNTERS}",
    since="6.1",
    nodes=2,
)
def pages_of_a_list(live: Live) -> None:
    here, there = two_nodes_with_room(live, _PAGES)
    places = _inside(live)
    for number, kinds in enumerate(LISTS):
        if Kind.ABSENT in kinds:
            # what is told of base pages without a page table, or with one, has nothing to do with huge pages
            continue
        shared = bool(number % 2)
        inside = places[number // 2 % len(places)]
        row = [kind.on(here, there, live.kernel_version) for kind in kinds]
        names = ", ".join(kind.name.lower().replace("_", " ") for kind in kinds)
        with live.about(f"{names}, shared {shared}, named by byte {inside}"):
            memory = expect_moves(live, row, partial(_mapped, live, shared), partial(_counted, live), inside)
            _expect_whole(live, memory)
            memory.actor.end()


@MOVED_AND_LEFT.case(
    "a huge page that two processes have stays, EACCES, unless it is to move for all of them, whichever of its base"
    " pages and of the processes names it; it is where both are told that it is",
    "move_pages(2) EACCES, MPOL_MF_MOVE_ALL; mm/migrate.c add_folio_for_migration(), do_pages_stat_array()",
    nodes=2,
)
def pages_of_two_processes(live: Live) -> None:
    here, there = two_nodes_with_room(live, _PAGES)
    for shared in (False, True):
        memory = _mapped(live, shared)
        bind(memory, [here])
        memory.fill()
        both = memory, memory.fork()
        for one in both:
            one.expect_filled()
        node, others = here, {here: there, there: here}
        for (number, one), inside in product(enumerate(both), _inside(live)):
            addresses = [one.at(page) + inside for page in range(_PAGES)]
            with live.about(f"shared {shared}, process {number}, named by byte {inside}"):
                for flags, expected in ((MOVE, -errno.EACCES), (MOVE_ALL, others[node])):
                    found = move_pages(one.actor, addresses, _PAGES * [others[node]], flags)
                    live.expect(f"status with flags {flags}", _PAGES * [expected], found)
                    nodes = _PAGES * [node if flags == MOVE else others[node]]
                    for other in both:
                        live.expect(f"nodes with flags {flags}", nodes, nodes_of(other.actor, addresses))
                node = others[node]
        for one in reversed(both):
            _expect_whole(live, one)
            one.expect_filled()
            one.actor.end()


@MOVED_AND_LEFT.case(
    "of a range of which one huge page cannot move the others do, by mbind(2), which is EIO if it is strict, and by"
    " migrate_pages(2), which returns that there is one; those that moved are counted, with mbind(2) also those that"
    " failed, and both as all their base pages, and none is split",
    f"mbind(2) EIO; migrate_pages(2) RETURN VALUE; mm/mempolicy.c do_mbind(), do_migrate_pages(); {COUNTERS}",
    since="6.1",
    nodes=2,
)
def pages_of_a_range(live: Live) -> None:
    two_nodes_with_room(live, _PAGES)
    for shared in (False, True):
        with live.about(f"shared {shared}"):
            expect_ranges_to_move(
                live,
                partial(_mapped, live, shared),
                partial(_counted, live),
                lambda memory, _nodes: _expect_whole(live, memory),
            )


def _mapped(live: Live, shared: bool, actor: Actor | None = None) -> Memory:
    if shared:
        return map_aligned(live, _PAGES, pmd_size(live), shared=True, actor=actor, advice=MADV_HUGEPAGE)
    return advised(live, _PAGES, actor=actor)


def _inside(live: Live) -> tuple[int, ...]:
    """Return where the base pages of a huge page begin by which it is named: the first two, one within, the last."""
    size = pmd_size(live)
    return 0, live.base_page, size // 2, size - live.base_page


def _counted(live: Live, moved: int, failed: int) -> dict[str, int]:
    return counted_moves(moved, failed, pmd_size(live) // live.base_page, transparent=True)


def _expect_whole(live: Live, memory: Memory) -> None:
    live.expect("bytes that huge pages map", memory.length, mapped_huge(memory))


class MovedAndLeft(LiveTest):
    def test_moved_and_left(self) -> None:
        self.run_area(MOVED_AND_LEFT)
