"""Parts of mappings that mremap(2) moves by base pages: what of them is in swap, and which part of a file they show."""

import mmap
import os
import signal
from functools import partial
from itertools import compress, product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import compact_if_short
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act, let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory, value_or_signal
from hugepage_qa.cases.swapped import need_swap, swap_out, swapped
from hugepage_qa.cases.thp_memory import pmd_size, room_for
from hugepage_qa.cases.thp_policy import base_pages, expect_huge_bytes, give_on_advice, huge_pages
from hugepage_qa.cases.thp_shared_memory import expect_shared, map_start, mount_tmpfs
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE, MAP_FIXED, MREMAP_FIXED, MREMAP_MAYMOVE
from hugepage_qa.plugins.avocado_test import LiveTest

MOVED_PARTS = Area("thp/moved-parts", sizes=Sizes.ONCE)

_PAGES, _NEW_VALUE = 2, 77
#: huge ranges of a mapping of which some are not touched
_RANGES = 4


@MOVED_PARTS.case(
    "what is in swap of a mapping, all of it or a half, is in swap where mremap(2) has moved it, as a whole or in part,"
    " to an aligned address or not, and holds what it held when it comes back; the rest stays as it was",
    "mremap(2); Documentation/filesystems/proc.rst Swap; mm/mremap.c move_ptes(), move_page_tables()",
)
def moved_in_swap(live: Live) -> None:
    let_rest(live)
    size, base = pmd_size(live), live.base_page
    need_swap(live, 2 * _PAGES * size)
    places = ((0, _PAGES * size), (0, base), (base, size), (size // 2, size), (_PAGES * size - base, base))
    for make, out, (start, length), shift in product(
        (huge_pages, base_pages), (_PAGES * size, size + size // 2), places, (0, base)
    ):
        with live.about(f"{make.__name__}, {out} bytes in swap, {length} from {start} on, to a place {shift} further"):
            memory = make(live, _PAGES)
            swap_out(live, memory, out)
            moved = _moved(live, memory, start, length, room_for(memory.actor, _PAGES + 1, size) + shift)
            of_it = max(0, min(out, start + length) - start)
            live.expect("bytes in swap, there", of_it, swapped(moved))
            live.expect("words that changed, there", 0, memory.actor.check(moved.address, length, WORD, 1 + start))
            _expect_rest(live, memory, start, length)
            memory.actor.end()


@MOVED_PARTS.case(
    "mremap(2) moves all that was touched of a mapping, whichever of its huge ranges nobody has touched, to an aligned"
    " address or not, also across two tables of them: private and shared memory, in huge pages and base pages;"
    " the rest is zero there",
    "mremap(2); mm/mremap.c move_page_tables(), get_extent(), move_huge_pmd(), move_normal_pmd(), move_ptes()",
)
def moved_with_untouched_ranges(live: Live) -> None:
    give_on_advice(live)
    size, base = pmd_size(live), live.base_page
    compact_if_short(live, size, _RANGES)
    # a mapping of which one half is of one table of huge ranges, and the other half of the next
    actor, table = live.actor(), live.mmu.table(size)
    place = room_for(actor, 1, table) + table - _RANGES // 2 * size
    kinds = product((mmap.MAP_PRIVATE, mmap.MAP_SHARED), (MADV_HUGEPAGE, MADV_NOHUGEPAGE), (0, base))
    for (kind, advice, shift), touched in product(kinds, product((False, True), repeat=_RANGES)):
        actor.mmap(_RANGES * size, READ_WRITE, kind | mmap.MAP_ANONYMOUS | MAP_FIXED, address=place)
        memory = Memory(live, actor, place, _RANGES, size)
        memory.advise(advice)
        for page in compress(range(_RANGES), touched):
            memory.fill_part(page * size, base)
        with live.about(f"mapped with flag {kind}, advice {advice}, touched {touched}, to a place {shift} further"):
            expect_huge_bytes(live, memory, size * sum(touched) if advice == MADV_HUGEPAGE else 0)
            moved = _moved(live, memory, 0, memory.length, room_for(actor, _RANGES + 1, size) + shift)
            wanted = [1 + page * size if touched[page] else 0 for page in range(_RANGES)]
            there = [value_or_signal(partial(moved.read, page)) for page in range(0, moved.pages, size // base)]
            live.expect("what the ranges begin with", wanted, there)
            for page, is_there in enumerate(touched):
                first = page * size + base * is_there
                live.expect("words of the rest that are not zero", 0, moved.nonzero(first, (page + 1) * size - first))
        moved.unmap()


@MOVED_PARTS.case(
    "a part of a mapping of a file of a tmpfs that mremap(2) has moved, once and again, shows that part of the file, in"
    " memory and when it is faulted in again, and what follows it when it grows; what is written there is in the file",
    "mremap(2); mm/mremap.c move_vma(), mremap_to()",
)
def moved_of_a_file(live: Live) -> None:
    let_nobody_else_act(live)
    size, base = pmd_size(live), live.base_page
    places = ((base, base), (size, size), (size - base, 2 * base), (size + base, size - 2 * base))
    points = {huge: mount_tmpfs(live, huge) for huge in ("always", "never")}
    for (huge, point), (start, length), shift in product(points.items(), places, (0, base)):
        with live.about(f"huge={huge}, {length} bytes from {start} on, to a place {shift} further"):
            actor = live.actor()
            memory = map_start(live, actor, live.open(actor, point, live.host.uapi.o_tmpfile | os.O_RDWR), _PAGES)
            expect_shared(live, memory, huge == "always", f"huge={huge}")
            whole = memory.seen_by(actor.fork())
            check = partial(actor.check, step=WORD, value=1 + start)
            moved = memory
            for where in ("moved", "moved again"):
                at = start if moved is memory else 0
                moved = _moved(live, moved, at, length, room_for(actor, _PAGES + 1, size) + shift)
                live.expect(f"words that are others, {where}", 0, check(moved.address, length))
                actor.call("madvise", moved.address, length, mmap.MADV_DONTNEED)
                live.expect(f"words that are others, {where}, touched anew", 0, check(moved.address, length))
            longer = length + base if start + length + base <= whole.length else length
            grown = actor.call("mremap", moved.address, length, longer, MREMAP_MAYMOVE)
            live.expect("words that are others when it has grown", 0, check(grown, longer))
            actor.fill(grown, length, WORD, _NEW_VALUE + start)
            live.expect("words of the file that are not what was written", 0, whole.wrong(start, length, _NEW_VALUE))
            rest = whole.wrong_beside(start, start + length)
            live.expect("words of the rest of the file that changed", 0, rest)
            actor.end()


def _moved(live: Live, memory: Memory, start: int, length: int, address: int) -> Memory:
    """Move ``length`` bytes of a mapping, and expect nothing to be where they were; return them where they are."""
    flags, old = MREMAP_MAYMOVE | MREMAP_FIXED, memory.address + start
    live.expect("where it is", address, memory.actor.call("mremap", old, length, length, flags, address))
    for place in (old, old + length - WORD):
        live.expect_signal(signal.SIGSEGV, memory.actor.read, place)
    return Memory(live, memory.actor, address, length // live.base_page, live.base_page)


def _expect_rest(live: Live, memory: Memory, start: int, length: int) -> None:
    behind = start + length
    wrong = memory.wrong_beside(start, behind)
    live.expect("words of the rest that changed", 0, wrong)


class ThpMovedParts(LiveTest):
    def test_moved_parts(self) -> None:
        self.run_area(MOVED_PARTS)
