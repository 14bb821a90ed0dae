"""What was written since clear_refs was, and then moved, merged or swapped out: who tracks it is told of it still.

So is who tracks what the kernel may write without a fault: memory that is pinned.
"""

import errno
import mmap
from collections.abc import Callable
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.clear_refs import clear_refs, need_soft_dirty, soft_dirty_pages, while_nothing_moves
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act, let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import PRESENT, SOFT_DIRTY, Memory, runs
from hugepage_qa.cases.merged_mappings import merges
from hugepage_qa.cases.merged_pages import (
    KSM_DOC,
    await_merged,
    expect_all_merged,
    merged_pages,
    start_merging,
)
from hugepage_qa.cases.pinned_pages import Pin
from hugepage_qa.cases.swapped import need_swap, swap_out
from hugepage_qa.cases.thp_memory import pmd_size, room_for
from hugepage_qa.cases.thp_policy import advised, base_pages, huge_pages, mapped_in_parts, set_policy
from hugepage_qa.cases.thp_shared_memory import shared_base_pages, shared_huge_pages
from hugepage_qa.kernel.ksm import DIRECTORY
from hugepage_qa.kernel.uapi import (
    MADV_HUGEPAGE,
    MADV_MERGEABLE,
    MADV_NOHUGEPAGE,
    MADV_POPULATE_WRITE,
    MAP_FIXED,
    MREMAP_FIXED,
    MREMAP_MAYMOVE,
)
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor, Refused

KEPT_SOFT_DIRTY = Area("thp/kept-soft-dirty", sizes=Sizes.ONCE)

SOFT = "Documentation/admin-guide/mm/soft-dirty.rst"
NEW = f"{SOFT} new memory regions; mremap(2); mm/mremap.c move_soft_dirty_pte(), move_normal_pmd(), move_normal_pud()"
#: huge pages that are moved, of which a part is moved, too
_PAGES = 3
_HUGE = huge_pages, shared_huge_pages
_KINDS = *_HUGE, mapped_in_parts, base_pages, shared_base_pages


@KEPT_SOFT_DIRTY.case(
    "memory that mremap(2) moves is soft-dirty where it is then, written since clear_refs was or not: huge pages, parts"
    " of them, base pages and shared memory, to where page tables begin as they did, or not, as a whole or in part",
    NEW,
)
def moved(live: Live) -> None:
    let_nobody_else_act(live)
    size, half, base = pmd_size(live), pmd_size(live) // 2, live.base_page
    # from where, how much, and how far behind the start of a page table
    ranges = (0, 6 * half, 0), (0, 6 * half, base), (half, 4 * half, half), (half, 5 * half, 0), (half, base, half)
    left, with_tables = dict[str, list[range]](), dict[str, list[range]]()
    for make, (offset, length, shift) in product(_KINDS, ranges):
        memory = make(live, _PAGES)
        need_soft_dirty(live, memory)
        clear_refs(live, memory)
        to = room_for(memory.actor, _PAGES + 3, size) + size + shift
        row = f"{make.__name__}, {length} bytes from {offset} on, to {shift} behind the start of a page table"
        with live.about(row):
            there = _moved_to(live, memory, offset, length, to)
        tables = range(-shift % size // base, ((shift + length) // size * size - shift) // base)
        moves_tables = (shift - offset) % size == 0 and make not in _HUGE
        left[row], with_tables[row] = _not_soft_dirty(there), [tables] if moves_tables and tables else []
        memory.actor.end()
    _expect_none(live, left, with_tables)


@KEPT_SOFT_DIRTY.case(
    "huge pages and base pages that mremap(2) moves with all that a page table can have beside them, which nobody has"
    " touched, are soft-dirty where they are then",
    NEW,
)
def moved_with_all_beside(live: Live) -> None:
    let_rest(live)
    set_policy(live, "madvise")
    size = pmd_size(live)
    table = live.mmu.table(size)
    left, all_of_them = dict[str, list[range]](), dict[str, list[range]]()
    for advice in (MADV_HUGEPAGE, MADV_NOHUGEPAGE):
        actor = live.actor()
        start = _map_noreserve(live, actor, table)
        actor.call("madvise", start, table, advice)
        memory = Memory(live, actor, start, 2, size)
        need_soft_dirty(live, memory)
        memory.fill()
        clear_refs(live, memory)
        to, flags = start + 2 * table, MREMAP_MAYMOVE | MREMAP_FIXED
        live.expect("where it is", to, actor.call("mremap", start, table, table, flags, to))
        there = Memory(live, actor, to, 2, size)
        row = "advised" if advice == MADV_HUGEPAGE else "base pages"
        left[row], all_of_them[row] = _not_soft_dirty(there), [range(there.length // live.base_page)]
        there.expect_filled()
        actor.end()
    _expect_none(live, left, all_of_them)


@KEPT_SOFT_DIRTY.case(
    "memory that was mapped since clear_refs was written, and nobody has touched, is soft-dirty still when its mapping"
    " has become one with mappings that are not, before it, behind it or both, and whichever of them changes: by its"
    " protection, by advice, by being locked or by being moved there",
    f"{SOFT}: new memory regions; include/linux/mm.h VMA_STICKY_FLAGS; mm/vma.c vma_merge_existing_range()",
)
def of_merged_mappings(live: Live) -> None:
    let_nobody_else_act(live)
    size, left = pmd_size(live), dict[str, list[range]]()
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED
    for page, way in product(range(_PAGES), merges()):
        actor = live.actor()
        place = room_for(actor, _PAGES, size)
        memory = Memory(live, actor, actor.mmap(_PAGES * size, READ_WRITE, flags, address=place), _PAGES, size)
        need_soft_dirty(live, memory)
        clear_refs(live, memory)
        live.expect("soft-dirty base pages before", [], soft_dirty_pages(memory))
        merge = way.begin(memory, page)
        actor.mmap(size, READ_WRITE, flags, address=memory.at(page))
        merge()
        new = {*range(size // live.base_page)}
        left[f"page {page} of {_PAGES} is new, {way.name}"] = runs(new - {*soft_dirty_pages(memory.part(page))})
        live.expect("what the new page holds", 0, memory.read(page))
        actor.end()
    # which of them are so depends on which mapping grows
    known = {row: [range(size // live.base_page)] for row in _rows(left)}
    subject = "new base pages that are not soft-dirty"
    live.expect(subject, {}, _rows(left), {Quirk.MERGED_MAPPING_NOT_SOFT_DIRTY: known})


@KEPT_SOFT_DIRTY.case(
    "what was written since clear_refs was is soft-dirty still when KSM has merged it with equal pages: base pages,"
    " huge pages, which it splits, and zeroes, of which it makes the zero page",
    f"{SOFT}; {KSM_DOC}; mm/ksm.c replace_page()",
    since="5.14",  # MADV_POPULATE_WRITE
)
def merged(live: Live) -> None:
    start_merging(live)
    live.set_knob(f"{DIRECTORY}/use_zero_pages", "1")
    # what is merged before takes the place of what is written
    equal, another = huge_pages(live), huge_pages(live)
    expect_all_merged(live, equal, another)
    left, by_merging = dict[str, list[range]](), dict[str, list[range]]()
    for make in (huge_pages, mapped_in_parts, base_pages, _zeroes):
        memory, row = make(live), make.__name__.strip("_")
        need_soft_dirty(live, memory)
        with live.about(row):
            written = _written_again(live, memory, zero=make is _zeroes)
            memory.advise(MADV_MERGEABLE)
            await_merged(live, memory, partial(_merged_count, memory, equal))
            gone = merged_pages(memory, equal)
            live.expect("whether KSM merged some of what was written", True, bool(written & gone))
            lost = written - {*soft_dirty_pages(memory)}
            left[row], by_merging[row] = runs(lost), runs(lost & gone)
            if make is _zeroes:
                memory.expect_zero()
            else:
                memory.expect_filled()
        memory.actor.end()
    subject = "written base pages that are soft-dirty no more"
    live.expect(subject, _rows({}), _rows(left), {Quirk.MERGING_ENDS_SOFT_DIRTY: _rows(by_merging)})


@KEPT_SOFT_DIRTY.case(
    "base pages that are pinned, and no others, stay soft-dirty when clear_refs is written, until they are let go: the"
    " kernel may write them without a fault; so does all of a huge page that is mapped in parts and pinned in part",
    f"{SOFT}; fs/proc/task_mmu.c pte_is_pinned(), clear_soft_dirty() (9348b73c2e1b)",
    since="5.11",
)
def pinned(live: Live) -> None:
    let_nobody_else_act(live)
    size, base = pmd_size(live), live.base_page
    # the first and the last base page of a huge page, and what lies on both sides of its middle
    for make, (start, end) in product(
        (mapped_in_parts, base_pages), ((0, base), (size - base, size), (size // 2 - base, size // 2 + base))
    ):
        memory = make(live, 2)
        need_soft_dirty(live, memory)
        # what has been protected may need a fault once more before it can be written (Linux 6.1)
        memory.fill()
        pin = Pin(live, memory)
        pin.hold((start, end - start))
        kept = range(size // base) if make is mapped_in_parts else range(start // base, end // base)
        with live.about(f"{make.__name__}, pinned from {start} to {end}"):
            clear_refs(live, memory)
            live.expect("base pages that are soft-dirty", [kept], runs({*soft_dirty_pages(memory)}))
            pin.let_go()
            clear_refs(live, memory)
            live.expect("base pages that are soft-dirty when let go", [], runs({*soft_dirty_pages(memory)}))
            memory.expect_filled()
        memory.actor.end()


@KEPT_SOFT_DIRTY.case(
    "what was written since clear_refs was is soft-dirty while it is in swap and when it has come back: huge pages,"
    " some mapped in parts, and base pages, of which no other one is; and nothing is that was in swap when clear_refs"
    " was written once more, but what is written then",
    f"{SOFT}; fs/proc/task_mmu.c pte_to_pagemap_entry(), clear_soft_dirty(); mm/rmap.c try_to_unmap_one(); mm/memory.c"
    " do_swap_page()",
    since="5.4",  # MADV_PAGEOUT
)
def in_swap(live: Live) -> None:
    let_nobody_else_act(live)
    need_swap(live, 2 * pmd_size(live))
    for make in (huge_pages, mapped_in_parts, base_pages):
        with live.about(make.__name__):
            memory, written, told = while_nothing_moves(live, partial(_swapped_and_back, live, make))
            lost = {where: runs(written - found) for where, found in told.items()}
            live.expect("written base pages that are soft-dirty no more", {}, _rows(lost))
            # a huge page that is split for swap is soft-dirty then: its parts are dirty (pte_mkdirty() of x86)
            if make is base_pages:
                others = {where: runs(found - written) for where, found in told.items()}
                live.expect("base pages that are soft-dirty and were not written", {}, _rows(others))
            swap_out(live, memory, memory.length)
            clear_refs(live, memory)
            live.expect("soft-dirty base pages in swap, cleared there", [], runs({*soft_dirty_pages(memory)}))
            written_then = _write_some(live, memory)
            lost_then = runs(written_then - {*soft_dirty_pages(memory)})
            live.expect("base pages that were written from swap and are not soft-dirty", [], lost_then)
            memory.expect_filled()
        memory.actor.end()


def _swapped_and_back(
    live: Live, make: Callable[[Live, int], Memory]
) -> tuple[tuple[Memory, set[int], dict[str, set[int]]], bool]:
    """Return memory, which of it was written and is soft-dirty, and which is so in swap and when it has come back.

    And whether no other base page is.
    """
    memory, told = make(live, 2), dict[str, set[int]]()
    need_soft_dirty(live, memory)
    # what has been protected may need a fault once more before it can be written (Linux 6.1)
    memory.fill()
    written = _written_again(live, memory, zero=False)
    swap_out(live, memory, memory.length)
    told["in swap"] = {*soft_dirty_pages(memory)}
    memory.expect_filled()
    told["when it is back"] = {*soft_dirty_pages(memory)}
    return (memory, written, told), all(found <= written for found in told.values())


def _zeroes(live: Live) -> Memory:
    memory = advised(live, 1, MADV_NOHUGEPAGE)
    memory.advise(MADV_POPULATE_WRITE)
    return memory


def _written_again(live: Live, memory: Memory, *, zero: bool) -> set[int]:
    """Write what is in some base pages again, and return which are soft-dirty then: all of a page that is huge."""
    clear_refs(live, memory)
    _write_some(live, memory, zero=zero)
    return {*soft_dirty_pages(memory)}


def _write_some(live: Live, memory: Memory, *, zero: bool = False) -> set[int]:
    """Write what is in some base pages of the first huge page again, and return which."""
    numbers = {0, 1, 5, memory.size // live.base_page - 1}
    for number in sorted(numbers):
        offset = number * live.base_page
        memory.actor.write(memory.address + offset, 0 if zero else 1 + offset)
    return numbers


def _merged_count(memory: Memory, other: Memory) -> int:
    return len(merged_pages(memory, other))


def _rows(pages: dict[str, list[range]]) -> dict[str, list[range]]:
    """Return the rows that have pages."""
    return {row: found for row, found in pages.items() if found}


def _moved_to(live: Live, memory: Memory, offset: int, length: int, to: int) -> Memory:
    """Move a part of ``memory`` that holds what it was filled with, and return it there."""
    start, flags = memory.address + offset, MREMAP_MAYMOVE | MREMAP_FIXED
    live.expect("where it is", to, memory.actor.call("mremap", start, length, length, flags, to))
    size = min(length, memory.size // 2)
    return Memory(live, memory.actor, to, length // size, size)


def _map_noreserve(live: Live, actor: Actor, length: int) -> int:
    """Map memory at a multiple of its length, with room for twice as much behind it. Raises CannotRun without room."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | live.host.uapi.map_noreserve | MAP_FIXED
    try:
        return actor.mmap(length, READ_WRITE, flags, address=room_for(actor, 4, length))
    except Refused as refusal:
        if refusal.errno != errno.ENOMEM:
            raise
        raise CannotRun(f"no room for {length >> 20} MiB, of addresses or with vm.overcommit_memory=2") from refusal


def _not_soft_dirty(there: Memory) -> list[range]:
    """Return the base pages that are there and not soft-dirty."""
    entries = enumerate(there.whole_pagemap())
    return runs({number for number, entry in entries if entry & PRESENT and not entry & SOFT_DIRTY})


def _expect_none(live: Live, left: dict[str, list[range]], with_tables: dict[str, list[range]]) -> None:
    """Expect nothing to be left that is not soft-dirty; a known bug is of what was moved ``with_tables``."""
    found = _rows(left)
    # tables of huge pages are moved since 5.11 alone
    known = {row: with_tables[row] for row in found}
    live.expect("base pages that are not soft-dirty", {}, found, {Quirk.MOVED_TABLES_NOT_SOFT_DIRTY: known})


class ThpKeptSoftDirty(LiveTest):
    def test_kept_soft_dirty(self) -> None:
        self.run_area(KEPT_SOFT_DIRTY)
