"""Huge pages that went to swap and are in memory still, of which parts are protected before they are wanted again."""

import mmap
import signal
from collections.abc import Sequence
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.folio_layout import expect_folios
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import PRESENT, Memory
from hugepage_qa.cases.swapped import page_all_out, swap_to_a_device
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.cases.thp_policy import sizes_in_turn
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, PROT_NONE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest

FORBIDDEN = Area("swap/forbidden-parts", sizes=Sizes.ONCE)

#: pages of each size: one of which a part is protected, and one that shows what a fault brings of the others
_PAGES = 2
#: huge pages of swap
_ROOM = 8


@FORBIDDEN.case(
    "a part of a huge page, of a PMD or smaller, that was swapped to a device and is in memory still, and that may not"
    " be written or accessed since, is not mapped by faults of the rest: who writes or reads it gets SIGSEGV, and all"
    " of the page holds what it held",
    "mprotect(2); mm/memory.c do_swap_page()",
    since="6.11",  # before, a fault maps a base page of such a huge page, and no others
)
def parts_stay_protected(live: Live) -> None:
    let_rest(live)
    swap_to_a_device(live, _ROOM * pmd_size(live))
    for size in sizes_in_turn(live):
        base, half = live.base_page, size // 2
        parts = (0, base), (size - base, base), (0, half), (half, half), (half // 2, half)
        for (start, length), prot in product(parts, (mmap.PROT_READ, PROT_NONE)):
            with live.about(f"pages of {size >> 10} kB, protection {prot} of {length} bytes at {start}"):
                memory = live.host.last_attempt(partial(_whole_in_swap, live, size), bool)
                if memory is None:
                    raise CannotRun("what was swapped out comes back by base pages: others have taken its memory")
                _expect_protected(live, memory, start, length, prot)
            memory.actor.end()


def _whole_in_swap(live: Live, size: int) -> Memory | None:
    """Return pages of ``size`` bytes, all but the last one in swap; None where a touch did not map all of that one.

    What is written to a device is in memory still, if nobody else has taken that.
    """
    with_blocks(live, size, _PAGES)
    memory = map_aligned(live, _PAGES, size, advice=MADV_HUGEPAGE)
    memory.fill()
    expect_folios(live, memory, size)
    page_all_out(live, memory)
    last = memory.part(_PAGES - 1)
    last.touch(value=1 + memory.length - size)
    if all(_mapped(last)):
        return memory
    memory.actor.end()
    return None


def _expect_protected(live: Live, memory: Memory, start: int, length: int, prot: int) -> None:
    """Protect a part of the first page, and expect it to be so when the rest was read."""
    page = memory.part(0)
    page.actor.call("mprotect", page.address + start, length, prot)
    live.expect("words of the rest that changed", 0, page.wrong_beside(start, start + length))
    mapped = _mapped(page)[start // live.base_page : (start + length) // live.base_page]
    live.expect("base pages of what is protected that were mapped", 0, sum(mapped))
    for place in (start, start + length - live.base_page):
        if prot == PROT_NONE:
            live.expect_signal(signal.SIGSEGV, page.actor.read, page.address + place)
        live.expect_signal(signal.SIGSEGV, page.actor.write, page.address + place, 0)
    page.protect(READ_WRITE)
    memory.expect_filled()


def _mapped(page: Memory) -> Sequence[bool]:
    """Return which base pages are mapped."""
    return [bool(entry & PRESENT) for entry in page.whole_pagemap()]


class ThpForbiddenParts(LiveTest):
    def test_forbidden_parts(self) -> None:
        self.run_area(FORBIDDEN)
