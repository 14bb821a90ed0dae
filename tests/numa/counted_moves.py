"""How many pages a call leaves where they are, what it tells of each, and how the kernel counts those that move."""

import errno
from collections.abc import Callable, Sequence
from functools import partial
from itertools import permutations

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import expect_change
from hugepage_qa.cases.held_and_moved import (
    LISTS,
    counted_moves,
    expect_moves,
    expect_ranges_to_move,
    one_at_a_time,
    placed,
)
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import (
    MOVE,
    MOVE_ALL,
    STRICT,
    Mode,
    bind,
    give_policy,
    migrate,
    move_pages,
    node_of,
    nodes_of,
    pages_told,
)
from hugepage_qa.cases.pages_of_a_node import expect_left, missing_node, reserve_on_all
from hugepage_qa.cases.pinned_pages import pipe_with
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.cases.thp_nodes import two_nodes_with_room
from hugepage_qa.cases.thp_policy import expect_all_huge
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.tree import read_integer, size_name
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.page_moves import ListedPage, moves_of
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

COUNTED = Area("numa/counted-moves")

COUNTERS = "Documentation/mm/page_migration.rst Monitoring Migration: PGMIGRATE_SUCCESS, PGMIGRATE_FAIL"
#: of each kind, and how many of them somebody holds
_OF_A_KIND, _HELD_OF_A_KIND = 3, 2


@COUNTED.case(
    "where some pages of a list cannot move, move_pages(2) returns how many have not moved, those that it has not tried"
    " among them, tells of those before them where they are, and leaves the others; each page that moved or failed"
    " counts as all its base pages",
    f"move_pages(2) RETURN VALUE; mm/migrate.c do_pages_move(), move_pages_and_store_status(), since 5984fabb6e82;"
    f" {COUNTERS}",
    since="6.1",
    nodes=2,
    sizes=Sizes.BUDDY,
)
def pages_that_are_left(live: Live) -> None:
    nodes = here, there = live.nodes[:2]
    for node in nodes:
        live.reserve(3, node)
    for number, kinds in enumerate(LISTS):
        shared = bool(number % 2)
        row = [kind.on(here, there, live.kernel_version) for kind in kinds]
        with live.about(f"{', '.join(kind.name.lower().replace('_', ' ') for kind in kinds)}, shared {shared}"):
            memory = expect_moves(live, row, partial(live.map, 3, shared=shared), partial(_counted, live))
            for node in nodes:
                found = moves_of(row).nodes.count(node)
                live.expect_pool(node=node, nr=3, free=3 - found)
            memory.actor.end()
            live.expect_pool(nr=6, free=6)


def _counted(live: Live, moved: int, failed: int) -> dict[str, int]:
    return counted_moves(moved, failed, live.size // live.base_page, transparent=False)


@COUNTED.case(
    "of a range of which one page cannot move the others do, by mbind(2), which is EIO if it is strict, and by"
    " migrate_pages(2), which returns that there is one; mbind(2) has all counted as all their base pages, and neither"
    " has any counted as a transparent huge page",
    f"mbind(2) EIO; migrate_pages(2) RETURN VALUE; mm/mempolicy.c do_mbind(), do_migrate_pages(); {COUNTERS}",
    since="6.1",  # what could not be moved when it was tried often is counted
    nodes=2,
    sizes=Sizes.BUDDY,
)
def ranges_with_a_page_that_stays(live: Live) -> None:
    nodes = live.nodes[:2]
    for node in nodes:
        live.reserve(3, node)

    def expect_pools(_memory: Memory, found: Sequence[int]) -> None:
        for node in nodes:
            live.expect_pool(node=node, nr=3, free=3 - found.count(node))

    expect_ranges_to_move(live, lambda actor: live.map(3, actor), partial(_counted, live), expect_pools)
    live.expect_pool(nr=6, free=6)


@COUNTED.case(
    "each page that somebody holds, of a pool, transparent or a base page, is one in what move_pages(2) and"
    " migrate_pages(2) return where several of each kind cannot move, in whichever order a list has them; the pages"
    " beside them move",
    "move_pages(2) RETURN VALUE; migrate_pages(2) RETURN VALUE; mm/migrate.c migrate_pages(), migrate_hugetlbs(),"
    " migrate_pages_batch()",
    since="6.1",
    nodes=2,
    sizes=Sizes.BUDDY,
)
def held_pages_of_every_kind(live: Live) -> None:
    here, there = two_nodes_with_room(live, _OF_A_KIND)
    for node in (here, there):
        live.reserve(_OF_A_KIND, node)
    actor = live.actor()
    kinds = (
        live.map(_OF_A_KIND, actor),
        map_aligned(live, _OF_A_KIND, pmd_size(live), actor=actor, advice=MADV_HUGEPAGE),
        map_aligned(live, _OF_A_KIND, live.base_page, actor=actor, advice=MADV_NOHUGEPAGE),
    )
    for memory in kinds:
        bind(memory, [here])
        memory.fill()
        for page in range(_HELD_OF_A_KIND):
            pipe_with(live, memory.part(page))
    expect_all_huge(live, kinds[1], node=here)
    held = len(kinds) * _HELD_OF_A_KIND
    of_kind = [here if page < _HELD_OF_A_KIND else there for page in range(_OF_A_KIND)]
    nodes = len(kinds) * of_kind

    def left_of(places: Sequence[int]) -> tuple[int, list[int]]:
        move_pages(actor, places, len(places) * [here])
        left, _told = pages_told(actor, places, len(places) * [there])
        return left, nodes_of(actor, places)

    for order in permutations(kinds):
        places = [memory.at(page) for memory in order for page in range(_OF_A_KIND)]
        # somebody may have a hold of another one for a moment
        found = live.host.last_attempt(partial(left_of, places), (held, nodes).__eq__)
        live.expect("pages that move_pages leaves, and nodes of all", (held, nodes), found)
    move_pages(actor, places, len(places) * [here])
    expect_left(live, actor, here, there, held)
    live.expect("nodes of all after migrate_pages", nodes, nodes_of(actor, places))
    for memory in kinds:
        memory.expect_filled()


@COUNTED.case(
    "a page that moves counts as all its base pages in pgmigrate_success, whichever call moves it, and in nothing that"
    " is counted of transparent huge pages",
    COUNTERS,
    since="5.17",
    nodes=2,
)
def a_moved_page_counts_as_its_base_pages(live: Live) -> None:
    here, there = live.nodes[:2]
    reserve_on_all(live, 1)
    for shared in (False, True):

        def bring(shared: bool = shared) -> Memory:
            return placed(live, [ListedPage(here, there)], live.map(1, shared=shared))

        def by_move_pages(memory: Memory) -> None:
            live.expect("status of move_pages", [there], move_pages(memory.actor, [memory.address], [there]))

        for move in (by_move_pages, partial(bind, nodes=[there], flags=STRICT | MOVE_ALL)):
            memory = expect_change(live, _counted(live, 1, 0), one_at_a_time(bring), move)
            live.expect("node of the page", there, node_of(memory))
            memory.expect_filled()
            memory.actor.end()
    live.expect_pool(nr=len(live.nodes), free=len(live.nodes))


@COUNTED.case(
    "a page of a pool counts as no transparent huge page of its size (nr_anon) when it has moved, nor when it has gone",
    f"{THP_DOC} nr_anon; mm/migrate.c __folio_migrate_mapping() (5d65c8d758f2)",
    since="6.12",
    nodes=2,
    sizes=Sizes.BUDDY,
)
def a_moved_page_is_not_transparent(live: Live) -> None:
    here, there = live.nodes[:2]
    file = f"{DIRECTORY}/{size_name(live.size)}/stats/nr_anon"
    if live.host.read(file) is None:
        raise CannotRun(f"there are no transparent huge pages of {live.size} bytes")
    reserve_on_all(live, 1)

    def read(live: Live) -> dict[str, int]:
        return {file: read_integer(ObservedTree(live.host), file) or 0}

    def bring() -> Memory:
        return placed(live, [ListedPage(here, there)], live.map(1))

    def move_and_end(memory: Memory) -> None:
        bind(memory, [there], flags=STRICT | MOVE_ALL)
        live.expect("node of the page", there, node_of(memory))
        memory.actor.end()

    known = {Quirk.MOVED_POOL_PAGE_STAYS_COUNTED: {file: 1}}
    expect_change(live, {file: 0}, bring, move_and_end, read, known=known)
    live.expect_pool(nr=len(live.nodes), free=len(live.nodes))


@COUNTED.case(
    "calls that are to move pages and are given a node that is not there, flags that they do not know, or a process"
    " that is not there, are refused, and leave pages behind that where they are, and the policy as it was",
    "move_pages(2), mbind(2), migrate_pages(2) ERRORS; mm/migrate.c do_pages_move(); mm/mempolicy.c do_mbind(),"
    " kernel_migrate_pages()",
    nodes=2,
)
def refused_calls(live: Live) -> None:
    here, there = live.nodes[:2]
    live.reserve(2, here)
    live.reserve(1, there)
    memory = placed(live, 2 * [ListedPage(here, there)], live.map(2))
    actor, both = memory.actor, [memory.at(0), memory.at(1)]
    missing = missing_node(live)
    gone = live.actor()
    gone.end()
    refusals: list[tuple[str, int, Callable[[], object]]] = [
        ("move_pages, no node", errno.ENODEV, lambda: move_pages(actor, both[:1], [missing])),
        ("move_pages, node -1", errno.ENODEV, lambda: move_pages(actor, both[:1], [-1])),
        ("move_pages, flags", errno.EINVAL, lambda: move_pages(actor, both, [there, there], 1 << 4)),
        ("move_pages, no process", errno.ESRCH, lambda: nodes_of(actor, both, gone.pid)),
        ("mbind, no node", errno.EINVAL, lambda: bind(memory, [missing], MOVE)),
        ("mbind, flags", errno.EINVAL, lambda: bind(memory, [there], MOVE | 1 << 4)),
        ("mbind, no mode", errno.EINVAL, lambda: give_policy(memory, 100, [there], MOVE)),
        ("mbind, nodes of the default", errno.EINVAL, lambda: give_policy(memory, Mode.DEFAULT, [there], MOVE)),
        ("migrate_pages, no process", errno.ESRCH, lambda: migrate(actor, here, there, gone.pid)),
        ("migrate_pages, no node", errno.EINVAL, lambda: migrate(actor, here, missing)),
    ]
    for name, number, call in refusals:
        with live.about(name):
            live.expect_errno(number, call)
            live.expect("nodes of the pages", [here, here], nodes_of(actor, both))
            live.expect("policy in numa_maps", f"bind:{here}", memory.numa_maps().policy)
    # what stands before the node that is not there has moved
    live.expect_errno(errno.ENODEV, move_pages, actor, both, [there, missing])
    live.expect("nodes of the pages", [there, here], nodes_of(actor, both))
    memory.expect_filled()


class CountedMoves(LiveTest):
    def test_counted_moves(self) -> None:
        self.run_area(COUNTED)
