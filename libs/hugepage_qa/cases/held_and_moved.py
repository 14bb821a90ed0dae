"""Lists of pages, some of which somebody has a hold of, that move_pages(2) is to move, and what it says of them."""

import enum
import errno
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from hugepage_qa.cases.changed_counters import expect_change
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import (
    MOVE,
    MOVE_ALL,
    STRICT,
    bind,
    nodes_of,
    pages_told,
)
from hugepage_qa.cases.pages_of_a_node import expect_left
from hugepage_qa.cases.pinned_pages import pipe_with
from hugepage_qa.oracle.page_moves import ListedPage, moves_of, status_of_absent
from hugepage_qa.process.actor import Actor
from hugepage_qa.version import KernelVersion

#: what a number of pages that moved and of pages that failed changes in /proc/vmstat
Counted = Callable[[int, int], Mapping[str, int]]
#: what it counts of transparent huge pages alone: moved, failed, split to be moved
_OF_THP = "thp_migration_success", "thp_migration_fail", "thp_migration_split"
_MOVED_HUGE = "thp_migration_success", "thp_migration_split"
_PAGES_OF_A_RANGE, _HELD_OF_IT = 3, 1


class Kind(enum.Enum):
    """What is to come of a page of a list: it goes to the other node, comes from there, or stays."""

    GOES = enum.auto()
    COMES = enum.auto()
    HELD_GOES = enum.auto()
    HELD_COMES = enum.auto()
    RIGHT = enum.auto()
    HELD_RIGHT = enum.auto()
    ARRIVED = enum.auto()
    ABSENT = enum.auto()

    def on(self, here: int, there: int, version: KernelVersion) -> ListedPage:
        """Return the page for two nodes, of a pool if it is absent."""
        held = self in (Kind.HELD_GOES, Kind.HELD_COMES, Kind.HELD_RIGHT)
        match self:
            case Kind.GOES | Kind.HELD_GOES:
                return ListedPage(here, there, held)
            case Kind.COMES | Kind.HELD_COMES:
                return ListedPage(there, here, held)
            case Kind.RIGHT | Kind.HELD_RIGHT:
                return ListedPage(here, here, held)
            case Kind.ARRIVED:
                return ListedPage(there, there)
            case Kind.ABSENT:
                return ListedPage(status_of_absent(version), there)


#: each way in which a row of pages for one node ends, with and without a page in it that cannot move
LISTS: Sequence[tuple[Kind, Kind, Kind]] = (
    (Kind.GOES, Kind.COMES, Kind.GOES),
    (Kind.GOES, Kind.RIGHT, Kind.GOES),
    (Kind.HELD_GOES, Kind.RIGHT, Kind.GOES),
    (Kind.HELD_GOES, Kind.ARRIVED, Kind.GOES),
    (Kind.HELD_GOES, Kind.COMES, Kind.GOES),
    (Kind.HELD_GOES, Kind.ABSENT, Kind.GOES),
    (Kind.HELD_GOES, Kind.GOES, Kind.GOES),
    (Kind.GOES, Kind.HELD_GOES, Kind.GOES),
    (Kind.GOES, Kind.HELD_GOES, Kind.COMES),
    (Kind.GOES, Kind.COMES, Kind.HELD_GOES),
    (Kind.GOES, Kind.HELD_COMES, Kind.GOES),
    (Kind.HELD_GOES, Kind.HELD_GOES, Kind.COMES),
    (Kind.HELD_GOES, Kind.HELD_GOES, Kind.HELD_GOES),
    (Kind.HELD_RIGHT, Kind.GOES, Kind.ABSENT),
    (Kind.RIGHT, Kind.ABSENT, Kind.HELD_COMES),
)


def placed(live: Live, row: Sequence[ListedPage], memory: Memory) -> Memory:
    """Bind each page of ``memory`` to the node that ``row`` says, fill it, and hold it if it is held; return it."""
    for number, page in enumerate(row):
        if page.node < 0:
            continue
        part = memory.part(number)
        bind(part, [page.node])
        # as fill() of all would
        part.fill(1 + number * memory.size)
        if page.held:
            pipe_with(live, part)
    wanted = [page.node for page in row]
    live.expect("nodes before", wanted, nodes_of(memory.actor, [memory.at(page) for page in range(len(row))]))
    return memory


def one_at_a_time(new: Callable[[], Memory]) -> Callable[[], Memory]:
    """Return what calls ``new`` and ends the process that had what it returned before: pages are few."""
    before: list[Memory] = []

    def next_one() -> Memory:
        while before:
            before.pop().actor.end()
        before.append(new())
        return before[0]

    return next_one


def counted_moves(moved: int, failed: int, each: int, *, transparent: bool) -> dict[str, int]:
    """Return what /proc/vmstat counts where so many pages of ``each`` base pages have moved, and failed to.

    Source: Documentation/mm/page_migration.rst Monitoring Migration.
    """
    of_thp = (moved, failed, 0) if transparent else (0, 0, 0)
    of_all = {"pgmigrate_success": moved * each, "pgmigrate_fail": failed * each}
    return of_all | dict(zip(_OF_THP, of_thp, strict=True))


def expect_moves(
    live: Live,
    row: Sequence[ListedPage],
    new_memory: Callable[[], Memory],
    counted: Counted,
    inside: int = 0,
) -> Memory:
    """Move pages as ``row`` says and expect what comes of it, and what is ``counted`` of pages that moved or failed.

    Each is named by the address ``inside`` bytes behind its start. Returns the memory, which has them then.
    """
    expected, fresh = moves_of(row), one_at_a_time(new_memory)

    def prepare() -> Memory:
        return placed(live, row, fresh())

    def move(memory: Memory) -> None:
        addresses = [memory.at(number) + inside for number in range(len(row))]
        found = pages_told(memory.actor, addresses, [page.target for page in row])
        live.expect("pages left, and status of each", (expected.left, expected.status), found)
        live.expect("nodes of the pages", expected.nodes, nodes_of(memory.actor, addresses))

    memory = expect_change(live, counted(expected.moved, expected.failed), prepare, move)
    for number, page in enumerate(row):
        if page.node >= 0:
            memory.expect_filled(first=number, pages=1)
    return memory


def expect_ranges_to_move(
    live: Live,
    map_for: Callable[[Actor], Memory],
    counted: Counted,
    expect_also: Callable[[Memory, Sequence[int]], None],
) -> None:
    """Move three pages by mbind(2) and migrate_pages(2), one held or none, and expect what comes of it.

    ``map_for`` maps them for an actor; ``expect_also`` looks at what else there is to see of them on their nodes then.
    """
    here, there = live.nodes[:2]
    ways: dict[str, Callable[[Memory, bool], None]] = {
        "mbind, strict": partial(_by_mbind, live, there, STRICT | MOVE),
        "mbind, strict, all": partial(_by_mbind, live, there, STRICT | MOVE_ALL),
        "mbind": partial(_by_mbind, live, there, MOVE),
        "migrate_pages": partial(_by_migrate_pages, live, here, there),
    }
    for name, way in ways.items():
        for held in (False, True):
            row = [ListedPage(here, there, held and page == _HELD_OF_IT) for page in range(_PAGES_OF_A_RANGE)]

            def bring(row: Sequence[ListedPage] = row) -> Memory:
                return placed(live, row, map_for(live.actor()))

            def move(memory: Memory, way: Callable[[Memory, bool], None] = way, held: bool = held) -> None:
                way(memory, held)

            with live.about(f"{name}, held {held}"):
                change = counted(len(row) - held, int(held))
                if name == "migrate_pages":
                    # base pages of the process move as well, and what is held is tried again while one of them is, too
                    change = {of_huge: change[of_huge] for of_huge in _MOVED_HUGE}
                memory = expect_change(live, change, one_at_a_time(bring), move)
                nodes = [here if page.held else there for page in row]
                found = nodes_of(memory.actor, [memory.at(page) for page in range(len(row))])
                live.expect("nodes of the pages", nodes, found)
                memory.expect_filled()
                expect_also(memory, nodes)
                memory.actor.end()


def _by_mbind(live: Live, node: int, flags: int, memory: Memory, held: bool) -> None:
    if held and flags & STRICT:
        live.expect_errno(errno.EIO, bind, memory, [node], flags)
    else:
        bind(memory, [node], flags)


def _by_migrate_pages(live: Live, here: int, there: int, memory: Memory, held: bool) -> None:
    expect_left(live, memory.actor, here, there, int(held))
