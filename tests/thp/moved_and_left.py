"""Huge pages of lists and ranges of which some cannot move: what calls return and tell, and how all are counted.

And pages that the kernel could take until they were written: what they hold when they have moved.
"""

import errno
import mmap
from collections.abc import Callable
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.held_and_moved import LISTS, Kind, expect_moves, expect_ranges_to_move
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.memory_policy import MOVE, MOVE_ALL, bind, migrate, move_pages, nodes_of
from hugepage_qa.cases.swapped import need_swap, page_all_out
from hugepage_qa.cases.thp_memory import free_lazily, map_aligned, mapped_huge, need_blocks, pmd_size
from hugepage_qa.cases.thp_nodes import two_nodes_with_room
from hugepage_qa.cases.thp_policy import advised, map_in_parts, set_policy, smaller_sizes
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

MOVED_AND_LEFT = Area("thp/moved-and-left", sizes=Sizes.ONCE)

_PAGES = 3
_NEW_VALUE = 77
#: what is done to memory that the kernel may take, or of which it has a copy in swap
_ORDERS = ("written, moved", "moved, written", "written, moved, back", "written, protected, moved")
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
        both = memory, memory.seen_by(memory.actor.fork())
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
    "what is written after MADV_FREE to base pages or a huge page of any size, mapped as a whole or in parts, is kept"
    " under reclaim when it has moved to another node, by whichever call, or there and back; also where it may only be"
    " read by then, and where it moved before it was written",
    "madvise(2) MADV_FREE; mm/huge_memory.c set_pmd_migration_entry(), remove_migration_pmd(); mm/rmap.c"
    " try_to_migrate_one(); mm/migrate.c remove_migration_pte()",
    since="5.4",  # MADV_PAGEOUT
    nodes=2,
)
def written_after_it_was_free(live: Live) -> None:
    nodes = two_nodes_with_room(live, 1)
    let_rest(live)
    need_swap(live, pmd_size(live))
    for make in (_base_pages, _huge_page, _huge_page_in_parts):
        _expect_written_kept(live, nodes, make, in_swap=False)
    for size, path in smaller_sizes(live)[-1:]:
        set_policy(live, "madvise", pmd="never")
        live.set_knob(f"{path}/enabled", "always")
        with live.about(f"pages of {size >> 10} kB"):
            _expect_written_kept(live, nodes, _pages_of_any_size, in_swap=False)


@MOVED_AND_LEFT.case(
    "what is written to memory that came back from swap, a huge page or base pages before, is kept under reclaim when"
    " it has moved to another node, by whichever call, or there and back; also where it may only be read by then, and"
    " where it moved before it was written",
    "move_pages(2); mm/rmap.c try_to_migrate_one(); mm/migrate.c folio_migrate_mapping(), remove_migration_pte()",
    nodes=2,
)
def written_after_it_was_in_swap(live: Live) -> None:
    nodes = two_nodes_with_room(live, 1)
    let_rest(live)
    need_swap(live, 2 * pmd_size(live))
    for make in (_base_pages, _huge_page):
        _expect_written_kept(live, nodes, make, in_swap=True)


def _freed(live: Live, memory: Memory) -> None:
    live.host.wait_until(partial(free_lazily, memory))
    live.expect("LazyFree", memory.length, memory.smaps().fields["LazyFree"])


def _swapped_in(live: Live, memory: Memory) -> None:
    page_all_out(live, memory)
    memory.expect_filled()


def _expect_written_kept(
    live: Live, nodes: tuple[int, int], make: Callable[[Live, int], Memory], *, in_swap: bool
) -> None:
    """Expect of memory that the kernel may take, or that is ``in_swap`` as well, to keep what is written, as it moves.

    What is written is all of it, or one base page. What is in swap is kept, too.
    """
    size, base = pmd_size(live), live.base_page
    parts = [(place, base) for place in (0, size // 2, size - base)]
    rows = product(_ORDERS, (True, False))
    for number, (order, is_all) in enumerate(rows):
        start, length = (0, size) if is_all else parts[number // 2 % len(parts)]
        by = tuple(_CALLS)[number % len(_CALLS)]
        memory = make(live, nodes[0])
        with live.about(f"{make.__name__.strip('_')}, {order}, {length} bytes at {start}, by {by}"):
            (_swapped_in if in_swap else _freed)(live, memory)
            for step in order.split(", "):
                match step:
                    case "written":
                        memory.actor.fill(memory.address + start, length, WORD, _NEW_VALUE + start)
                    case "protected":
                        memory.protect(mmap.PROT_READ)
                    case "moved":
                        _move(live, memory, by, *nodes)
                    case "back":
                        _move(live, memory, by, *reversed(nodes))
            page_all_out(live, memory)
            live.expect("words that changed under reclaim", 0, memory.wrong(start, length, _NEW_VALUE))
            if in_swap:
                rest = memory.wrong(0, start) + memory.wrong(start + length, size - start - length)
                live.expect("words that were not written and changed", 0, rest)
        memory.actor.end()


def _move(live: Live, memory: Memory, by: str, source: int, target: int) -> None:
    """Move all that is there of ``memory``, again where somebody had a hold of a part of it in that moment."""

    def elsewhere() -> set[int]:
        # what was not written the kernel may have taken: it is nowhere
        return {node for node in nodes_of(memory.actor, _all_places(live, memory)) if node >= 0} - {target}

    def has_moved() -> bool:
        _CALLS[by](live, memory, source, target)
        return not elsewhere()

    live.host.wait_until(has_moved)
    live.expect("other nodes that it is on", set(), elsewhere())


def _by_move_pages(live: Live, memory: Memory, _source: int, target: int) -> None:
    places = _all_places(live, memory)
    move_pages(memory.actor, places, [target] * len(places))


def _by_mbind(_live: Live, memory: Memory, _source: int, target: int) -> None:
    bind(memory, [target], MOVE)


def _by_migrate_pages(_live: Live, memory: Memory, source: int, target: int) -> None:
    migrate(memory.actor, source, target)


_CALLS = {"move_pages": _by_move_pages, "mbind": _by_mbind, "migrate_pages": _by_migrate_pages}


def _all_places(live: Live, memory: Memory) -> range:
    return range(memory.address, memory.at(memory.pages), live.base_page)


def _base_pages(live: Live, node: int) -> Memory:
    return _filled_on(live, node, MADV_NOHUGEPAGE)


def _pages_of_any_size(live: Live, node: int) -> Memory:
    return _filled_on(live, node, MADV_HUGEPAGE)


def _huge_page(live: Live, node: int) -> Memory:
    memory = _filled_on(live, node, MADV_HUGEPAGE)
    need_blocks(live, memory, node)
    _expect_whole(live, memory)
    return memory


def _huge_page_in_parts(live: Live, node: int) -> Memory:
    memory = _huge_page(live, node)
    map_in_parts(live, memory)
    return memory


def _filled_on(live: Live, node: int, advice: int) -> Memory:
    memory = advised(live, 1, advice)
    bind(memory, [node])
    memory.fill()
    return memory


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
