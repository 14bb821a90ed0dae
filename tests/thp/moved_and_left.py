"""Huge pages of lists and ranges of which some cannot move: what calls return and tell, and how all are counted."""

from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.held_and_moved import LISTS, Kind, expect_moves, expect_ranges_to_move
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
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
    " are counted, also as all their base pages, and none is split",
    f"move_pages(2) RETURN VALUE; mm/migrate.c do_pages_move(), move_pages_and_store_status(), since 5984fabb6e82;"
    f" {COUNTERS}",
    since="6.1",
    nodes=2,
)
def pages_of_a_list(live: Live) -> None:
    here, there = two_nodes_with_room(live, _PAGES)
    for number, kinds in enumerate(LISTS):
        if Kind.ABSENT in kinds:
            # what is told of base pages without a page table, or with one, has nothing to do with huge pages
            continue
        shared = bool(number % 2)
        row = [kind.on(here, there, live.kernel_version) for kind in kinds]
        with live.about(f"{', '.join(kind.name.lower().replace('_', ' ') for kind in kinds)}, shared {shared}"):
            memory = expect_moves(live, row, partial(_mapped, live, shared), partial(_counted, live))
            _expect_whole(live, memory)
            memory.actor.end()


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


def _counted(live: Live, moved: int, failed: int) -> dict[str, int]:
    each = pmd_size(live) // live.base_page
    pages = {"pgmigrate_success": moved * each, "pgmigrate_fail": failed * each}
    return pages | {"thp_migration_success": moved, "thp_migration_fail": failed, "thp_migration_split": 0}


def _expect_whole(live: Live, memory: Memory) -> None:
    live.expect("bytes that huge pages map", memory.length, mapped_huge(memory))


class MovedAndLeft(LiveTest):
    """Huge pages that move between NUMA nodes, and some that cannot.

    :avocado: enable
    """

    def test_moved_and_left(self) -> None:
        """Every case, once for the machine."""
        self.run_area(MOVED_AND_LEFT)
