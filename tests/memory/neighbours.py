"""Huge pages and ordinary memory side by side: what grows, moves or shrinks leaves the other alone."""

import errno

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.places import (
    free_place,
    need_places_of_any_size,
    ordinary_memory,
    take_addresses,
    take_all_addresses,
)
from hugepage_qa.kernel.uapi import MAP_FIXED_NOREPLACE, MREMAP_FIXED, MREMAP_MAYMOVE
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor, Refused

NEIGHBOURS = Area("neighbours")
HEAP = "brk(2); mm/mmap.c brk(): a base page stays free below the next mapping"
GROW = "mremap(2) ENOMEM; mm/mremap.c"
MOVE = "mremap(2) MREMAP_FIXED; mm/mremap.c mremap_to()"
#: base pages that the heap grows by at least
_GROWTH = 16
#: below it are the addresses of who names none (DEFAULT_MAP_WINDOW of powerpc)
_WINDOW = 1 << 47


@NEIGHBOURS.case("the heap grows up to huge pages and no further, and both hold what they held", HEAP, pages=1)
def heap_below_huge_pages(live: Live) -> None:
    need_places_of_any_size(live)
    actor = live.actor()
    heap = -(-actor.call("brk", 0) // live.base_page) * live.base_page
    place = -(-(heap + _GROWTH * live.base_page) // live.size) * live.size
    memory = live.map(1, actor, at=place, flags=MAP_FIXED_NOREPLACE)
    memory.fill(3)
    top = place - live.base_page
    for wanted in (top, place, place + live.size):
        live.expect("the end of the heap", f"{top:#x}", f"{actor.call('brk', wanted):#x}")
    first, last = (Memory(live, actor, at, 1, live.base_page) for at in (heap, top - live.base_page))
    first.fill(4)
    last.fill(5)
    memory.expect_filled(3)
    live.expect_pool(nr=1, free=0)
    memory.unmap()
    live.expect("the end of the heap", f"{place:#x}", f"{actor.call('brk', place):#x}")
    first.expect_filled(4)
    last.expect_filled(5)
    live.expect_pool(nr=1, free=1)


def huge_page_in_the_middle(live: Live) -> Memory:
    """Map one filled huge page, with room for another one on each side. Raises CannotRun where none is for others."""
    need_places_of_any_size(live)
    actor = live.actor()
    place = free_place(live, actor, 3)
    memory = live.map(1, actor, at=place + live.size, flags=MAP_FIXED_NOREPLACE)
    memory.fill(3)
    return memory


@NEIGHBOURS.case("ordinary memory grows up to huge pages, and elsewhere if it must and may", GROW, pages=1)
def ordinary_memory_grows(live: Live) -> None:
    memory = huge_page_in_the_middle(live)
    call, page = memory.actor.call, live.base_page
    ordinary = ordinary_memory(live, memory.actor, 1, memory.address - 2 * page)
    ordinary.fill(4)
    live.expect("where it grew", ordinary.address, call("mremap", ordinary.address, page, 2 * page, 0))
    ordinary.expect_filled(4)
    live.expect_errno(errno.ENOMEM, call, "mremap", ordinary.address, 2 * page, 3 * page, 0)
    ordinary.expect_filled(4)
    place = call("mremap", ordinary.address, 2 * page, live.size, MREMAP_MAYMOVE)
    grown = Memory(live, memory.actor, place, live.size // page, page)
    grown.expect_filled(4, pages=1)
    live.expect("words of what it grew by that are not zero", 0, memory.actor.nonzero(grown.at(1), page))
    memory.expect_filled(3)
    live.expect_pool(nr=1, free=0)


@NEIGHBOURS.case("huge pages do not grow into ordinary memory", GROW, pages=2)
def huge_pages_do_not_grow(live: Live) -> None:
    memory = huge_page_in_the_middle(live)
    behind = ordinary_memory(live, memory.actor, 1, memory.at(1))
    behind.fill(4)
    for flags in (0, MREMAP_MAYMOVE):
        words = memory.address, live.size, 2 * live.size, flags
        live.expect_errno(errno.EINVAL, memory.actor.call, "mremap", *words)
        live.expect_pool(nr=2, free=1)
    behind.expect_filled(4)
    memory.expect_filled(3)


@NEIGHBOURS.case(
    "huge pages are moved beside ordinary memory, and both hold what they held", MOVE, since="5.16", pages=1
)
def huge_pages_move_beside(live: Live) -> None:
    need_places_of_any_size(live)
    memory = live.map(1)
    memory.fill(3)
    actor, page = memory.actor, live.base_page
    place = free_place(live, actor, 3) + live.size
    before, behind = (ordinary_memory(live, actor, 1, at) for at in (place - page, place + live.size))
    before.fill(4)
    behind.fill(5)
    flags = MREMAP_MAYMOVE | MREMAP_FIXED
    live.expect("the address", place, actor.call("mremap", memory.address, live.size, live.size, flags, place))
    moved = Memory(live, actor, place, 1, live.size)
    moved.expect_filled(3)
    live.expect_pool(nr=1, free=0)
    moved.unmap()
    live.expect_pool(nr=1, free=1)
    before.expect_filled(4)
    behind.expect_filled(5)


@NEIGHBOURS.case("ordinary memory is moved beside huge pages, and both hold what they held", MOVE, pages=1)
def ordinary_memory_moves_beside(live: Live) -> None:
    memory = huge_page_in_the_middle(live)
    actor, page = memory.actor, live.base_page
    for place in (memory.address - page, memory.at(1)):
        ordinary = ordinary_memory(live, actor, 1)
        ordinary.fill(4)
        flags = MREMAP_MAYMOVE | MREMAP_FIXED
        live.expect("the address", place, actor.call("mremap", ordinary.address, page, page, flags, place))
        moved = Memory(live, actor, place, 1, page)
        moved.expect_filled(4)
        memory.expect_filled(3)
        moved.unmap()
        memory.expect_filled(3)
        live.expect_pool(nr=1, free=0)


@NEIGHBOURS.case(
    "ordinary memory is not moved to a part of a huge page, which stays as it was",
    f"{MOVE}; munmap(2) Huge page mappings; mm/hugetlb.c hugetlb_vm_op_split()",
    pages=1,
)
def ordinary_memory_moves_onto_a_part(live: Live) -> None:
    memory = live.map(1)
    memory.fill(3)
    actor, page = memory.actor, live.base_page
    ordinary = ordinary_memory(live, actor, 1)
    ordinary.fill(4)
    for place in (memory.address, memory.address + page, memory.at(1) - page):
        words = ordinary.address, page, page, MREMAP_MAYMOVE | MREMAP_FIXED, place
        live.expect_errno(errno.EINVAL, actor.call, "mremap", *words)
        memory.expect_filled(3)
        ordinary.expect_filled(4)
        live.expect_pool(nr=1, free=0)


@NEIGHBOURS.case(
    "where ordinary memory has taken all addresses but for one place, huge pages are mapped there, below everything and"
    " above, and where there is none they are refused",
    "mmap(2) ENOMEM; arch/x86/mm/hugetlbpage.c hugetlb_get_unmapped_area_topdown(); mm/mmap.c vm_unmapped_area()",
    sizes=Sizes.BUDDY,
    pages=1,
)
def only_place_that_is_left(live: Live) -> None:
    need_places_of_any_size(live)
    actor = live.actor()
    taken = take_all_addresses(live, actor)
    _expect_no_place(live, actor)
    live.expect_pool(nr=1, free=1)
    for start in (min(taken), max(taken)):
        # twice as long as needed: one page in it is aligned
        place = Memory(live, actor, start, 2, live.size)
        place.unmap()
        memory = live.map(1, actor)
        live.expect(f"whether it is mapped from {start:#x} on", True, start <= memory.address < place.at(2))
        memory.fill()
        memory.expect_filled()
        _expect_no_place(live, actor)
        live.expect_pool(nr=1, free=0)
        memory.unmap()
        live.expect_pool(nr=1, free=1)
        take_addresses(live, actor, place.length, at=start)


def _expect_no_place(live: Live, actor: Actor) -> None:
    """Expect that no place is left for a huge page. Raises KnownBug."""
    try:
        memory = live.map(1, actor)
    except Refused as refusal:
        live.expect("errno without a place", errno.ENOMEM, refusal.errno)
        return
    live.expect("where a page is mapped", None, memory.address, {Quirk.MAPPED_BEYOND_THE_WINDOW: _WINDOW})
    memory.unmap()


class Neighbours(LiveTest):
    def test_neighbours(self) -> None:
        self.run_area(NEIGHBOURS)
