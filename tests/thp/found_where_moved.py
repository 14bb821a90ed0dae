"""Pages that their process has moved to other addresses: who looks for all that map them finds them there.

Who moves a page to another node, splits it or swaps it out takes it from all that map it, and who tells whether it is
idle asks all of them (rmap_walk() in mm/rmap.c): by its place in its mapping it is found where that is, and there each
of its base pages.
"""

from collections.abc import Callable, Iterator
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.debugfs import expect_split
from hugepage_qa.cases.fragmentation import expect_no_shortage
from hugepage_qa.cases.idle_bitmap import DOC as IDLE_DOC
from hugepage_qa.cases.idle_bitmap import IdleBitmap, let_uses_show
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import MOVES, pages_told
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.cases.swapped import need_swap, page_all_out, swap_out
from hugepage_qa.cases.thp_memory import pmd_size, room_for
from hugepage_qa.cases.thp_policy import advised, base_pages, huge_pages, mapped_in_parts, set_policy, smaller_sizes
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, shared_base_pages, shared_huge_pages
from hugepage_qa.cases.user_moves import MOVE as MOVED_BY_USER
from hugepage_qa.cases.user_moves import Sides
from hugepage_qa.plugins.avocado_test import LiveTest

FOUND = Area("thp/found-where-moved", sizes=Sizes.ONCE)

_WALK = "mm/page_vma_mapped.c page_vma_mapped_walk(); mm/rmap.c try_to_migrate_one()"
_REMAPPED = "mremap(2); mm/mremap.c move_page_tables()"
_SPLIT = "mm/huge_memory.c split_huge_pages_pid()"
_PAGES = 3
#: somebody may have a hold of a page for a moment, which is long on a busy machine
_SECONDS = 60.0
_HUGE = huge_pages, mapped_in_parts, shared_huge_pages
_SHARED = shared_base_pages, shared_huge_pages

#: memory where it is now, what its first word holds, and what it is, in words
_Moved = tuple[Memory, int, str]


@FOUND.case(
    "huge pages, smaller ones and base pages, private and shared, that mremap() has put anywhere in page tables, also"
    " across two of them, move to another node, by whichever call, all of them, with what they hold",
    f"{_REMAPPED}; move_pages(2); mbind(2); migrate_pages(2); {_WALK}",
    nodes=2,
)
def remapped_moves_to_a_node(live: Live) -> None:
    need_memory(live, live.nodes[:2], 2 * _PAGES * pmd_size(live))
    for make in (*_HUGE, base_pages, shared_base_pages, _smaller_pages):
        _each(live, _remapped(live, make), _expect_moves)


@FOUND.case(
    "huge pages, private and shared, that mremap() has put anywhere in page tables, also across two of them, are split"
    " when they are to be, and hold what they held",
    f"{_REMAPPED}; {_SPLIT}; {_WALK}",
    since="5.13",
)
def remapped_is_split(live: Live) -> None:
    for make in _HUGE:
        _each(live, _remapped(live, make), _expect_split)


@FOUND.case(
    "huge pages, smaller ones and base pages, private and shared, that mremap() has put anywhere in page tables, also"
    " across two of them, are swapped out when they are to be, all of them, and hold what they held",
    f"{_REMAPPED}; madvise(2) MADV_PAGEOUT; mm/page_vma_mapped.c page_vma_mapped_walk(); mm/rmap.c try_to_unmap_one()",
    since="5.4",
)
def remapped_is_swapped_out(live: Live) -> None:
    need_swap(live, _PAGES * pmd_size(live))
    for make in (*_HUGE, base_pages, shared_base_pages, _smaller_pages):
        _each(live, _remapped(live, make), partial(_expect_swapped_out, is_shared=make in _SHARED))


@FOUND.case(
    "what UFFDIO_MOVE has taken out of huge pages, whole or in part, and of base pages, and put where it was missing,"
    " moves to another node, by whichever call, all of it, with what it holds",
    f"{MOVED_BY_USER}; move_pages(2); mbind(2); migrate_pages(2); {_WALK}; mm/huge_memory.c move_pages_huge_pmd()"
    " (adef440691ba)",
    since="6.8",
    nodes=2,
)
def moved_by_user_moves_to_a_node(live: Live) -> None:
    need_memory(live, live.nodes[:2], 2 * _PAGES * pmd_size(live))
    for make in (huge_pages, mapped_in_parts, base_pages):
        _each(live, _moved_by_user(live, make), _expect_moves)


@FOUND.case(
    "whole huge pages that UFFDIO_MOVE has put where they were missing are split there when they are to be, and hold"
    " what they held",
    f"{MOVED_BY_USER}; {_SPLIT}; {_WALK}; mm/huge_memory.c move_pages_huge_pmd() (adef440691ba)",
    since="6.8",
)
def moved_by_user_is_split(live: Live) -> None:
    _each(live, _moved_by_user(live, huge_pages, only_whole=True), _expect_split)


@FOUND.case(
    "what UFFDIO_MOVE has taken out of huge pages, whole or in part, and of base pages, and put where it was missing,"
    " is swapped out when it is to be, all of it, and holds what it held",
    f"{MOVED_BY_USER}; madvise(2) MADV_PAGEOUT; mm/rmap.c try_to_unmap_one(); mm/huge_memory.c move_pages_huge_pmd()"
    " (adef440691ba)",
    since="6.8",
)
def moved_by_user_is_swapped_out(live: Live) -> None:
    need_swap(live, _PAGES * pmd_size(live))
    for make in (huge_pages, mapped_in_parts, base_pages):
        _each(live, _moved_by_user(live, make), partial(_expect_swapped_out, is_shared=False))


@FOUND.case(
    "a huge page, private or shared, that mremap() has put anywhere in page tables, also across two of them, is idle no"
    " longer when any of its base pages is used after it was marked so",
    f"{IDLE_DOC}; {_REMAPPED}; mm/page_vma_mapped.c page_vma_mapped_walk(); mm/page_idle.c"
    " page_idle_clear_pte_refs_one()",
)
def remapped_is_used(live: Live) -> None:
    bitmap = IdleBitmap(live)
    for make in _HUGE:
        _each(live, _remapped(live, make), partial(_expect_uses_seen, bitmap=bitmap))


def _each(live: Live, moved: Iterator[_Moved], expect: Callable[[Live, Memory], None]) -> None:
    """Expect something of all memory that was moved, and it to hold then what it held."""
    for memory, value, what in moved:
        with live.about(what):
            expect(live, memory)
            live.expect("words that changed", 0, memory.wrong(0, memory.length, value))
        memory.actor.end()
        if live.differences:
            # so it is with each of the others, which would be waited for, too
            break


def _remapped(live: Live, make: Callable[[Live, int], Memory]) -> Iterator[_Moved]:
    """Have mremap() move huge pages, or as much memory, to whole page tables, and across two of them."""
    _let_be(live)
    base, size = live.base_page, pmd_size(live)
    # of what is across two tables the first one has all base pages but one, half of them, or one
    for shift in (0, base, size // 2, size - base):
        memory = make(live, _PAGES)
        there = memory.moved_to(room_for(memory.actor, _PAGES + 1, size) + shift)
        # shared memory that leaves its table is mapped when it is used
        there.expect_filled()
        yield there, 1, f"{make.__name__.strip('_')}, {shift} bytes behind a boundary"


def _moved_by_user(live: Live, make: Callable[[Live, int], Memory], *, only_whole: bool = False) -> Iterator[_Moved]:
    """Have UFFDIO_MOVE move huge pages, or as much memory: whole ones, and such as are split for it."""
    _let_be(live)
    base, size = live.base_page, pmd_size(live)
    # where it begins, where it goes, and its length
    whole = (0, 0, _PAGES * size), (0, size, 2 * size), (2 * size, 0, size)
    parts = (0, base, size), (base, base, size), (size // 2, size, 2 * size), (size - base, 0, 2 * base)
    for span in whole if only_whole else (*whole, *parts):
        sides = Sides.of(live, make(live, _PAGES))
        sides.move_all(*span)
        start, to, length = span
        step = size if length % size == 0 and span in whole else base
        there = Memory(live, sides.target.actor, sides.target.address + to, length // step, step)
        yield there, 1 + start, f"{make.__name__}, start, place and length {span}"


def _smaller_pages(live: Live, pages: int) -> Memory:
    """Return memory in the largest pages that are smaller than huge ones; in base pages where there are none."""
    set_policy(live, "never")
    for _size, path in smaller_sizes(live)[-1:]:
        live.set_knob(f"{path}/enabled", "always")
    memory = advised(live, pages, None)
    memory.fill()
    return memory


def _let_be(live: Live) -> None:
    """Have nobody else move or collapse memory, and shared memory be huge as its policy says, until the case ends."""
    let_rest(live)
    set_policy(live, "madvise")
    let_only_pmd_inherit(live)


def _expect_moves(live: Live, memory: Memory) -> None:
    first, second = live.nodes[:2]
    # wherever it is, after the first two it has moved
    for by, source, node in (
        ("mbind", second, first),
        ("mbind", first, second),
        ("migrate_pages", second, first),
        ("move_pages", first, second),
        ("migrate_pages", second, first),
    ):
        live.host.wait_until(partial(_is_moved, live, memory, by, source, node), _SECONDS)
        found = memory.numa_maps().nodes
        if found.keys() != {node}:
            expect_no_shortage(live, pmd_size(live), _PAGES, node)
        wanted = {node: memory.length // live.base_page}
        if found != wanted:
            # each of the others would be waited for, too
            live.fail(f"base pages of each node after {by}", wanted, found)


def _is_moved(live: Live, memory: Memory, by: str, source: int, node: int) -> bool:
    """Move memory, and tell whether all of it is there: what somebody else has a hold of is passed over."""
    if by == "move_pages" and memory.size > live.base_page:
        # huge pages move as a whole, by whichever base page they are named
        whole = [memory.at(page + 1) - live.base_page for page in range(memory.pages)]
        pages_told(memory.actor, whole, [node] * len(whole))
        if memory.numa_maps().nodes.keys() == {node}:
            return True
    MOVES[by](live, memory, source, node)
    return memory.numa_maps().nodes.keys() == {node}


def _expect_split(live: Live, memory: Memory) -> None:
    end = memory.address + memory.length
    expect_split(live, f"{memory.actor.pid},{memory.address:#x},{end:#x}", memory.pages)


def _expect_swapped_out(live: Live, memory: Memory, *, is_shared: bool) -> None:
    if is_shared:
        page_all_out(live, memory)
    else:
        swap_out(live, memory, memory.length)


def _expect_uses_seen(live: Live, memory: Memory, *, bitmap: IdleBitmap) -> None:
    page, base = memory.part(1), live.base_page
    # the first and the last base page, and those on both sides of where page tables meet
    border = -page.address % page.size
    for offset in sorted({0, max(border - base, 0), border, page.size - base}):
        first = bitmap.mark_huge(page)
        let_uses_show(page)
        found = page.actor.read(page.address + offset)
        live.expect(f"the word that was read at {offset}", 1 + page.size + offset, found)
        live.expect(f"whether it is idle when byte {offset} was read", 0, bitmap.is_idle(first))


class ThpFoundWhereMoved(LiveTest):
    def test_found_where_moved(self) -> None:
        self.run_area(FOUND)
