"""Memory that keeps its place in swap while it is only read: it is written there again, or is needed no more."""

import mmap
import os

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import ControlGroup, Version, new_group
from hugepage_qa.cases.folio_layout import expect_folios
from hugepage_qa.cases.frames import SWAP_CACHE, kpageflags
from hugepage_qa.cases.group_memory import actor_in, leave_memory
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.lru_batches import drain_lru_batches
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.swapped import need_swap, swap_out, swap_to_a_device
from hugepage_qa.cases.thp_memory import map_aligned, mapped_huge, pmd_size
from hugepage_qa.cases.thp_policy import base_pages, huge_pages, set_policy, sizes_in_turn
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest

REWRITTEN = Area("swap/rewritten-in-swap", sizes=Sizes.ONCE)

#: what a page holds each time that it goes to swap: the words of Memory.fill() with this value, or none, zeroes
_CONTENTS = (None, 1, None, 77, 78, None)
_PART = 5
#: huge pages of swap: more than twice what there is of memory
_ROOM = 8
WRITING = "mm/page_io.c swap_zeromap_folio_set(), swap_zeromap_folio_clear(), since 0ca0c24e3211"


@REWRITTEN.case(
    "what was zeroes when it went to swap and is something else the next time, and the other way round, comes back as"
    " it was last, all of it or every other base page: of base pages, of a huge page, and of shared memory",
    f"{WRITING}; mm/zswap.c zswap_store()",
    since="5.4",  # MADV_PAGEOUT
)
def zeroes_and_others(live: Live) -> None:
    size = pmd_size(live)
    need_swap(live, 4 * size)
    set_policy(live, "madvise")
    live.set_knob_if_there(f"{DIRECTORY}/shmem_enabled", "never")
    group = new_group(live, "memory", Version.TWO)
    for kind, shared, advice in (
        ("base pages", False, MADV_NOHUGEPAGE),
        ("a huge page", False, MADV_HUGEPAGE),
        ("shared memory", True, None),
    ):
        memory = map_aligned(live, 1, size, shared=shared, actor=actor_in(live, group), advice=advice)
        with live.about(kind):
            if advice == MADV_HUGEPAGE:
                memory.fill()
                _expect_pages(live, memory, size)
            _expect_last(live, memory, group)
        memory.actor.end()


@REWRITTEN.case(
    "what goes to swap on a device in huge pages of whichever size, and is read from there, comes back as it was last,"
    " zeroes or something else, all of it or every other base page",
    f"{WRITING}; mm/memory.c do_swap_page()",
    since="5.4",  # MADV_PAGEOUT
)
def on_a_device(live: Live) -> None:
    size = pmd_size(live)
    swap_to_a_device(live, _ROOM * size)
    group = new_group(live, "memory", Version.TWO)
    for page in sizes_in_turn(live):
        memory = map_aligned(live, 1, size, actor=actor_in(live, group), advice=MADV_HUGEPAGE)
        with live.about(f"pages of {page >> 10} kB"):
            memory.fill()
            _expect_pages(live, memory, page)
            _expect_last(live, memory, group)
        memory.actor.end()


@REWRITTEN.case(
    "of a huge page of any size that is zero but for one word, in its first or last base page or amid them, all of it"
    " comes back from swap on a device",
    f"{WRITING}; mm/page_io.c is_folio_zero_filled()",
    since="5.4",  # MADV_PAGEOUT
)
def one_word_alone(live: Live) -> None:
    size, base = pmd_size(live), live.base_page
    swap_to_a_device(live, _ROOM * size)
    group = new_group(live, "memory", Version.TWO)
    for page in sizes_in_turn(live):
        for alone in (0, base - WORD, page // 2, page - base, page - WORD):
            # what came back from swap is in small pages
            memory = map_aligned(live, 1, size, actor=actor_in(live, group), advice=MADV_HUGEPAGE)
            words = range(alone, size, page)
            for offset in words:
                memory.actor.write(memory.address + offset, _PART + offset)
            with live.about(f"pages of {page >> 10} kB, the word at {alone}"):
                _expect_pages(live, memory, page)
                leave_memory(live, memory, group)
                wrong = sum(memory.actor.read(memory.address + offset) != _PART + offset for offset in words)
                live.expect("words that are not as before", 0, wrong)
                found = memory.actor.nonzero(memory.address, memory.length, WORD)
                live.expect("words that are not zero", len(words), found)
            memory.actor.end()


@REWRITTEN.case(
    "of what came back from swap and was only read, so that it has its place there still, huge pages or base pages,"
    " MADV_FREE lets the kernel take all of its range, wherever that begins and ends, and nothing else",
    "madvise(2) MADV_FREE; Documentation/filesystems/proc.rst LazyFree; mm/madvise.c madvise_free_pte_range()",
    since="5.4",  # MADV_PAGEOUT
)
def freed_with_a_place_in_swap(live: Live) -> None:
    let_rest(live)
    size, base = pmd_size(live), live.base_page
    need_swap(live, _ROOM * size)
    # what was a huge page comes back as base pages
    for make, start, length in (
        (base_pages, 0, base),
        (base_pages, size // 2, size),
        (huge_pages, base, 2 * size - base),
    ):
        memory = make(live, 2)
        swap_out(live, memory, memory.length)
        memory.expect_filled()
        _need_places_in_swap(live, memory)

        def lazy(memory: Memory = memory, start: int = start, length: int = length) -> int:
            memory.actor.call("madvise", memory.address + start, length, mmap.MADV_FREE)
            drain_lru_batches(live, memory.actor)
            return memory.smaps().fields["LazyFree"]

        with live.about(f"{make.__name__}, {length} bytes from {start} on"):
            # what is being written to swap still, or is in a batch of another CPU, is passed over for a moment
            live.expect("LazyFree", length, live.host.last_look(lazy, length.__eq__))
        memory.actor.end()


def _need_places_in_swap(live: Live, memory: Memory) -> None:
    """Raise CannotRun where memory that was read back has no place in swap any more, but for a few base pages."""
    frames = memory.present_frames(memory.pages)
    kept = sum(bool(flags & SWAP_CACHE) for flags in kpageflags(live, memory.actor, frames))
    if kept * live.base_page < memory.length * 3 // 4:
        raise CannotRun("this kernel gives up the place in swap of what it reads from there")


def _expect_pages(live: Live, memory: Memory, page: int) -> None:
    """Expect memory that was just written to be in pages of ``page`` bytes.

    Raises CannotRun where memory is too fragmented for them.
    """
    expect_folios(live, memory, page)
    live.expect("bytes that a PMD maps", memory.length if page == pmd_size(live) else 0, mapped_huge(memory))


def _expect_last(live: Live, memory: Memory, group: ControlGroup) -> None:
    """Expect memory of a process in ``group`` to hold what was written last, each time that it comes back from swap."""
    zeroes = live.open(memory.actor, "/dev/zero", os.O_RDONLY)
    for time, value in enumerate(_CONTENTS):
        with live.about(f"time {time}"):
            if value is None:
                memory.actor.call("read", zeroes, memory.address, memory.length)
            else:
                memory.fill(value)
            leave_memory(live, memory, group)
            # what is only read keeps its place as long as half of the swap is free (mm/memory.c do_swap_page())
            if value is None:
                memory.expect_zero()
            else:
                memory.expect_filled(value)
    with live.about("every other base page"):
        others = range(0, memory.length, 2 * live.base_page)
        for offset in others:
            memory.actor.write(memory.address + offset, _PART + offset)
        leave_memory(live, memory, group)
        found = [memory.actor.read(memory.address + offset) for offset in others]
        wrong = sum(word != _PART + offset for word, offset in zip(found, others, strict=True))
        live.expect("words that are not what was written", 0, wrong)
        live.expect("words that are not zero", len(others), memory.actor.nonzero(memory.address, memory.length, WORD))


class ThpRewrittenInSwap(LiveTest):
    def test_rewritten_in_swap(self) -> None:
        self.run_area(REWRITTEN)
