"""Base pages that lie apart, with nothing or something else between them, and that go to another node all the same."""

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import MOVE, MOVE_ALL, MOVE_STRICTLY, bind, migrate, nodes_of, pages_told
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.cases.thp_memory import let_nothing_be_balanced, map_aligned, pmd_size
from hugepage_qa.kernel.uapi import MADV_DONTNEED, MADV_GUARD_INSTALL, MADV_NOHUGEPAGE, PROT_NONE
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused
from hugepage_qa.version import KernelVersion

WITH_HOLES = Area("numa/moved-with-holes", sizes=Sizes.ONCE)

WALK = "mm/mempolicy.c queue_folios_pte_range(), queue_pages_range(), mm/pagewalk.c"
#: each of base pages as many as a huge page has: of the third and the fifth nothing is touched, so that these are not
#: there
_TABLES, _WITH_PAGES = 5, (0, 1, 3)
#: what a few base pages and their page tables take
_ENOUGH = 16 << 20
_GUARDS_SINCE = KernelVersion(6, 13)
#: for the node of a page that move_pages(2) leaves out of what it tells
_UNTOLD = "nothing"

#: the node of a base page by its number, None where there is none
Nodes = dict[int, int | str | None]
#: has the base pages from a first to before a last one go to a node; returns what it tells of each, if it does
Way = Callable[[Memory, int, int, Sequence[int], int], Nodes]
#: does something to a base page that lies on a node, and returns where it is then
Between = Callable[[Memory, int], int | None]


@WITH_HOLES.case(
    "mbind(2) that is to move pages, strictly or not, moves each base page of its range, before, between and behind"
    " holes of one base page, of some, and of whole page tables, wherever it begins and ends, whatever there is in the"
    " holes: nothing, zeroes that were read, what was given back, guards, closed pages, or such as are on the node"
    " already; none beside the range moves, and each holds what it held",
    f"mbind(2) MPOL_MF_MOVE, MPOL_MF_MOVE_ALL, MPOL_MF_STRICT; {WALK}",
    nodes=2,
)
def by_mbind(live: Live) -> None:
    ranges = _ranges(live)
    # who else has a page, and whether it is an error, is of no matter to where a range ends
    for flags, of_these in ((MOVE, ranges), (MOVE_ALL, ranges[:2]), (MOVE_STRICTLY, ranges[:2])):
        with live.about(f"flags {flags}"):
            _expect_to_move(live, partial(_by_mbind, flags), of_these)


@WITH_HOLES.case(
    "move_pages(2) moves each base page of a list that names holes, too, whatever is in them, tells where it is then,"
    " and of a hole an error; none beside them moves, and each holds what it held",
    "move_pages(2) ENOENT, EFAULT; mm/migrate.c do_pages_move(), add_folio_for_migration()",
    nodes=2,
)
def by_a_list(live: Live) -> None:
    _expect_to_move(live, _by_list, _ranges(live))


@WITH_HOLES.case(
    "migrate_pages(2) moves each base page of a process, before, between and behind holes, whatever is in them, and"
    " each holds what it held",
    f"migrate_pages(2); mm/mempolicy.c migrate_to_node(); {WALK}",
    nodes=2,
)
def by_process(live: Live) -> None:
    _expect_to_move(live, partial(_by_process, live.nodes[0]), _ranges(live)[:1])


def _expect_to_move(live: Live, way: Way, ranges: Sequence[tuple[int, int]]) -> None:
    """Have base pages of each kind, with all that there may be between them, move by ``way``, range by range."""
    here, there = live.nodes[:2]
    need_memory(live, (here, there), _ENOUGH)
    let_nothing_be_balanced(live)
    let_rest(live)
    actor = live.actor()
    for shared, (first, end) in product((False, True), ranges):
        for name, between in _things_between(live, shared=shared):
            whole = map_aligned(live, _TABLES, pmd_size(live), shared=shared, actor=actor, advice=MADV_NOHUGEPAGE)
            memory = Memory(live, actor, whole.address, whole.length // live.base_page, live.base_page)
            with live.about(f"shared {shared}, {name} in the holes, base pages {first} to {end - 1}"):
                before = _apart(live, memory, between)
                _expect_range_to_move(live, memory, before, way, (first, end))
            memory.unmap()


def _apart(live: Live, memory: Memory, between: Between) -> Nodes:
    """Touch base pages that lie apart, have something ``between`` them, and return where each of both is."""
    here = live.nodes[0]
    bind(memory, [here])
    for page in (*_pages_there(live), *_pages_between(live)):
        memory.touch(page, 1 + page)
    found: Nodes = dict.fromkeys(_pages_there(live), here)
    found |= {page: between(memory, page) for page in _pages_between(live)}
    # what is beside a table that is not there, and within one
    every = pmd_size(live) // live.base_page
    found |= dict.fromkeys((2 * every, 3 * every - 1, 4 * every, 5 * every - 1))
    live.expect("base pages on other nodes before", {}, _wrong(found, _nodes(memory, found)))
    return found


def _expect_range_to_move(live: Live, memory: Memory, before: Nodes, way: Way, pages: tuple[int, int]) -> None:
    there = live.nodes[1]
    first, end = pages
    inside = sorted(page for page in before if first <= page < end)
    wanted = before | {page: there for page in inside if before[page] is not None}

    def move() -> dict[str, str]:
        try:
            told = way(memory, first, end, inside, there)
        except Refused as refusal:
            return {"the call": str(refusal)}
        wrong = _wrong({page: wanted[page] for page in told}, told)
        return {f"{page}, as told": difference for page, difference in wrong.items()} | {
            f"{page}": difference for page, difference in _wrong(wanted, _nodes(memory, wanted)).items()
        }

    # somebody may have a hold of a page for a moment
    live.expect("base pages on a wrong node", {}, live.host.last_attempt(move, lambda wrong: not wrong))
    # some may have been closed
    memory.protect(READ_WRITE)
    held = {page: 1 + page for page in before if before[page] is not None}
    live.expect("words that changed", {}, {page: word for page in held if (word := memory.read(page)) != held[page]})


def _nodes(memory: Memory, pages: Mapping[int, object]) -> Nodes:
    found = nodes_of(memory.actor, [memory.at(page) for page in pages])
    return {page: node if node >= 0 else None for page, node in zip(pages, found, strict=True)}


def _wrong(wanted: Nodes, found: Nodes) -> dict[int, str]:
    """Return which base pages are not where they are wanted."""
    return {page: f"{found[page]} instead of {wanted[page]}" for page in sorted(found) if found[page] != wanted[page]}


def _pages_there(live: Live) -> list[int]:
    """Return the base pages that are touched: such as lie alone, and beside each other, at both ends of a table."""
    every = pmd_size(live) // live.base_page
    half = every // 2
    inside = (0, 1, 3, half - 1, half + 1, every - 1)
    return [table * every + page for table, page in product(_WITH_PAGES, inside)]


def _pages_between(live: Live) -> list[int]:
    """Return base pages beside these: with nothing else in front of them or behind them, and without."""
    every = pmd_size(live) // live.base_page
    half = every // 2
    return [table * every + page for table, page in product(_WITH_PAGES, (2, half, half + 2))]


def _ranges(live: Live) -> list[tuple[int, int]]:
    """Return ranges of base pages: all, from a hole to another one, within a table, over one, and of a hole alone."""
    every = pmd_size(live) // live.base_page
    half = every // 2
    return [
        (0, _TABLES * every),
        (2, 3 * every + half + 1),
        (2 * every, _TABLES * every),
        (half + 2, 2 * every),
        (1, half + 2),
        (0, half),
        (2, 4),
        (2, 3),
    ]


def _things_between(live: Live, *, shared: bool) -> Iterator[tuple[str, Between]]:
    """Yield what there may be in a hole, by name."""
    there = live.nodes[1]
    yield "what was given back", partial(_given_back, shared)
    yield "pages of the other node", partial(_on_node, live, there)
    if not live.has_bug(Quirk.BALANCED_PAGES_MISSED):
        yield "closed pages", partial(_closed, live.nodes[0])
    if not shared:
        # what is shared has a page for zeroes that are read
        yield "zeroes", partial(_zeroes, live)
    if live.kernel_version >= _GUARDS_SINCE and not shared:
        yield "guards", _guarded


def _given_back(shared: bool, memory: Memory, page: int) -> int | None:
    memory.advise(mmap.MADV_REMOVE if shared else MADV_DONTNEED, page, 1)
    return None


def _on_node(live: Live, node: int, memory: Memory, page: int) -> int | None:
    move = partial(pages_told, memory.actor, [memory.at(page)], [node])
    # somebody may have a hold of it for a moment
    live.host.last_attempt(move, lambda told: told[1] == [node])
    return node


def _closed(node: int, memory: Memory, page: int) -> int | None:
    """Close a base page to all access: that nobody may read it holds up no move."""
    memory.protect(PROT_NONE, page, 1)
    return node


def _zeroes(live: Live, memory: Memory, page: int) -> int | None:
    memory.advise(MADV_DONTNEED, page, 1)
    live.expect("what is read of a page that was given back", 0, memory.read(page))
    return None


def _guarded(memory: Memory, page: int) -> int | None:
    memory.advise(MADV_GUARD_INSTALL, page, 1)
    return None


def _by_mbind(flags: int, memory: Memory, first: int, end: int, _inside: Sequence[int], node: int) -> Nodes:
    bind(memory.part(first, end - first), [node], flags)
    return {}


def _by_list(memory: Memory, _first: int, _end: int, inside: Sequence[int], node: int) -> Nodes:
    _left, told = pages_told(memory.actor, [memory.at(page) for page in inside], [node] * len(inside))
    return {page: _as_told(word) for page, word in zip(inside, told, strict=True)}


def _as_told(word: int | None) -> int | str | None:
    """Return the node that move_pages(2) tells of a page by ``word``: none by an error, for which there is no page."""
    if word is None:
        return _UNTOLD
    return None if word < 0 else word


def _by_process(source: int, memory: Memory, _first: int, _end: int, _inside: Sequence[int], node: int) -> Nodes:
    migrate(memory.actor, source, node)
    return {}


class MovedWithHoles(LiveTest):
    def test_moved_with_holes(self) -> None:
        self.run_area(WITH_HOLES)
