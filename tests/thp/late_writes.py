"""Memory that the kernel may take, or has in swap as well, until it is written: what it holds when it has moved."""

import mmap
from collections.abc import Callable
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.folio_layout import expect_folios
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import PRESENT, SWAPPED, WORD, Memory
from hugepage_qa.cases.memory_policy import MOVES, bind, move_all
from hugepage_qa.cases.swapped import need_swap, page_all_out, parts_out
from hugepage_qa.cases.thp_memory import free_lazily, mapped_huge, need_blocks, pmd_size
from hugepage_qa.cases.thp_nodes import two_nodes_with_room
from hugepage_qa.cases.thp_policy import (
    advised,
    base_pages,
    huge_pages,
    map_in_parts,
    mapped_in_parts,
    set_policy,
    smaller_sizes,
)
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_PAGEOUT
from hugepage_qa.plugins.avocado_test import LiveTest

LATE_WRITES = Area("thp/late-writes", sizes=Sizes.ONCE)

_NEW_VALUE = 77
#: what is seen as dirty is passed over the first time, and may go to swap the next
_RECLAIMS = 3
_ORDERS = ("written, moved", "moved, written", "written, moved, back", "written, protected, moved")


@LATE_WRITES.case(
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
            _expect_written_kept(live, nodes, _smaller_pages, in_swap=False)


@LATE_WRITES.case(
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


@LATE_WRITES.case(
    "what is written after MADV_FREE to base pages or a huge page of any size, mapped as a whole or in parts, is there"
    " or in swap when it was reclaimed, with swap or without, and holds what was written; the rest holds what it held,"
    " or zeroes",
    "madvise(2) MADV_FREE; mm/rmap.c try_to_unmap_one(); mm/vmscan.c shrink_folio_list()",
    since="5.4",  # MADV_PAGEOUT
)
def written_and_reclaimed(live: Live) -> None:
    let_rest(live)
    size, base = pmd_size(live), live.base_page
    parts = (0, base), (base, base), (size // 2, size // 2), (size - base, base), (0, size)
    for has_swap in (False, True):
        if has_swap:
            need_swap(live, size)
        for make, (start, length) in product((base_pages, huge_pages, mapped_in_parts), parts):
            with live.about(f"{make.__name__}, {length} bytes at {start}, swap {has_swap}"):
                _expect_kept(live, make(live), start, length, has_swap=has_swap, by_page=make is base_pages)
    set_policy(live, "madvise", pmd="never")
    for (smaller, path), (start, length) in product(smaller_sizes(live)[-1:], parts):
        live.set_knob(f"{path}/enabled", "always")
        memory = advised(live)
        memory.fill()
        with live.about(f"pages of {smaller >> 10} kB, {length} bytes at {start}"):
            expect_folios(live, memory, smaller)
            _expect_kept(live, memory, start, length, has_swap=True, by_page=False)


def _expect_kept(live: Live, memory: Memory, start: int, length: int, *, has_swap: bool, by_page: bool) -> None:
    """Write a part of ``memory`` when nobody needs it any more, and expect that to be kept under reclaim; end it.

    All of it has to leave memory where it ``has_swap``, and the rest of what is taken ``by_page`` anyway.
    """
    _freed(live, memory)
    memory.fill_part(start, length, _NEW_VALUE)
    for _time in range(_RECLAIMS):
        memory.advise(MADV_PAGEOUT)
    base, entries = live.base_page, memory.whole_pagemap()
    lost = sum(not entry & (PRESENT | SWAPPED) for entry in entries[start // base : (start + length) // base])
    if lost:
        # nothing is to be reclaimed from a kernel that has lost pages, nor compacted
        live.fail("base pages that were written and are neither there nor in swap", 0, lost)
    if has_swap:
        page_all_out(live, memory)
    elif by_page:
        _expect_taken(live, memory, start, length)
    live.expect("words that were written and changed", 0, memory.wrong(start, length, _NEW_VALUE))
    for first, rest in ((0, start), (start + length, memory.size - start - length)):
        if rest:
            others = rest // WORD - memory.nonzero(first, rest)
            live.expect("words of the rest that are neither zero nor as before", others, memory.wrong(first, rest))
    memory.actor.end()


def _expect_taken(live: Live, memory: Memory, start: int, length: int) -> None:
    """Expect reclaim to take all base pages but those of a part."""

    def left() -> int:
        kept, entries = range(start // live.base_page, (start + length) // live.base_page), memory.whole_pagemap()
        return sum(bool(entry & PRESENT) for place, entry in enumerate(entries) if place not in kept)

    live.host.wait_until(lambda: parts_out(live, memory, [(0, memory.length)], lambda: not left()))
    live.expect("base pages that nobody has written and are there", 0, left())


def _freed(live: Live, memory: Memory) -> None:
    live.host.wait_until(partial(free_lazily, live, memory))
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
        by = tuple(MOVES)[number % len(MOVES)]
        memory = make(live, nodes[0])
        with live.about(f"{make.__name__.strip('_')}, {order}, {length} bytes at {start}, by {by}"):
            (_swapped_in if in_swap else _freed)(live, memory)
            for step in order.split(", "):
                match step:
                    case "written":
                        memory.fill_part(start, length, _NEW_VALUE)
                    case "protected":
                        memory.protect(mmap.PROT_READ)
                    case "moved":
                        move_all(live, memory, by, *nodes)
                    case "back":
                        move_all(live, memory, by, *reversed(nodes))
            page_all_out(live, memory)
            live.expect("words that changed under reclaim", 0, memory.wrong(start, length, _NEW_VALUE))
            if in_swap:
                rest = memory.wrong_beside(start, start + length)
                live.expect("words that were not written and changed", 0, rest)
        memory.actor.end()


def _base_pages(live: Live, node: int) -> Memory:
    return _filled_on(live, node, MADV_NOHUGEPAGE)


def _smaller_pages(live: Live, node: int) -> Memory:
    memory = _filled_on(live, node, MADV_HUGEPAGE)
    size, _path = smaller_sizes(live)[-1]
    expect_folios(live, memory, size)
    return memory


def _huge_page(live: Live, node: int) -> Memory:
    memory = _filled_on(live, node, MADV_HUGEPAGE)
    need_blocks(live, memory, node)
    live.expect("bytes that huge pages map", memory.length, mapped_huge(memory))
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


class ThpLateWrites(LiveTest):
    def test_late_writes(self) -> None:
        self.run_area(LATE_WRITES)
