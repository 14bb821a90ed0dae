"""Huge pages that KSM merges: with equal ones, and with the zero page."""

import mmap
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from operator import eq

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.madv_collapse import collapse_memory
from hugepage_qa.cases.mapped_memory import FRAME, WORD, Memory
from hugepage_qa.cases.merged_pages import (
    KSM_DOC,
    await_merged,
    base_page_count,
    counted_of_process,
    expect_all_merged,
    merged_pair,
    pages_with_one_frame,
    shared_frames,
    start_merging,
)
from hugepage_qa.cases.process_counters import anonymous_memory, tells_resident
from hugepage_qa.cases.thp_memory import need_blocks, room_for
from hugepage_qa.cases.thp_policy import advised, huge_pages, set_policy
from hugepage_qa.kernel.ksm import DIRECTORY
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.kernel.uapi import (
    MADV_DONTNEED,
    MADV_HUGEPAGE,
    MADV_MERGEABLE,
    MADV_NOHUGEPAGE,
    MADV_POPULATE_WRITE,
    MADV_UNMERGEABLE,
)
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

MERGED = Area("ksm/merged", sizes=Sizes.ONCE)

_NEW_VALUE = 77
#: what compaction moves has one frame for all again
_MOVED_SECONDS = 2.0
_ZERO_PAGES = "ksm_zero_pages"


@MERGED.case(
    "KSM merges equal base pages of huge pages, locked or not, which hold what they held, and what is written is its"
    " writer's alone",
    f"{KSM_DOC}; {THP_DOC}; mm/ksm.c try_to_merge_one_page()",
)
def equal_pages(live: Live) -> None:
    start_merging(live)
    for locked in range(3):
        memory, equal = both = huge_pages(live), huge_pages(live)
        for each in both[:locked]:
            each.lock()
        with live.about(f"{locked} of two are locked"):
            expect_all_merged(live, memory, equal)
            live.expect("AnonHugePages", [0, 0], [each.smaps().anon_huge_pages for each in both])
            memory.expect_filled()
            equal.fill(_NEW_VALUE)
            memory.expect_filled()
            equal.expect_filled(_NEW_VALUE)
        for each in both:
            each.actor.end()


@MERGED.case(
    "KSM merges base pages of one huge page that are equal to no others, which hold what they held, as does the rest",
    f"{KSM_DOC}; mm/ksm.c cmp_and_merge_page()",
)
def equal_parts(live: Live) -> None:
    start_merging(live)
    memory, base = huge_pages(live), live.base_page
    offsets = [3 * base, memory.size // 2, memory.size - base]
    places = [memory.address + offset for offset in offsets]
    for place in places:
        memory.actor.fill(place, base, WORD, _NEW_VALUE)
    memory.advise(MADV_MERGEABLE)

    def fewer() -> int:
        return len(places) - len({entry & FRAME for entry in memory.pagemap(places)})

    live.expect("frames that they are fewer", len(places) - 1, await_merged(live, memory, fewer, len(places) - 1))
    memory.expect_huge(0)
    changed = sum(memory.actor.check(place, base, WORD, _NEW_VALUE) for place in places)
    for start, end in pairwise([-base, *offsets, memory.size]):
        changed += memory.wrong(start + base, end - start - base)
    live.expect("words that changed", 0, changed)


@MERGED.case(
    "KSM merges equal base pages behind memory that nobody has touched, in one page table, each that there is",
    f"{KSM_DOC}; mm/ksm.c scan_get_next_rmap_item()",
)
def pages_behind_holes(live: Live) -> None:
    start_merging(live)
    set_policy(live, "never")
    memory, equal = advised(live), advised(live)
    count = base_page_count(live, memory)
    there = [number for number in range(1, count) if number % 5 == 0 or count // 4 < number < count // 2]
    for each in (memory, equal):
        for number in there:
            each.actor.write(each.address + number * live.base_page, 1 + number)
        each.advise(MADV_MERGEABLE)
    found = await_merged(live, memory, lambda: shared_frames(memory, equal), len(there))
    live.expect("base pages with one frame for both", len(there), found)
    for each in (memory, equal):
        read = [each.actor.read(each.address + number * live.base_page) for number in there]
        live.expect("what they hold", [1 + number for number in there], read)
        live.expect("Rss", len(there) * live.base_page, each.smaps().rss)


@MERGED.case(
    "of a huge page of zeroes KSM makes the zero page where use_zero_pages says so: it is no memory of the process, and"
    " what is written is one base page of it again",
    f"{KSM_DOC} use_zero_pages; mm/ksm.c replace_page()",
)
def pages_of_zeroes(live: Live) -> None:
    start_merging(live)
    live.set_knob(f"{DIRECTORY}/use_zero_pages", "1")
    set_policy(live, "madvise")
    memory = advised(live, 1)
    memory.touch(value=0)
    need_blocks(live, memory)
    memory.expect_huge(about="of zeroes")
    resident, count = anonymous_memory(live, memory), base_page_count(live, memory)
    memory.advise(MADV_MERGEABLE)
    found = await_merged(live, memory, lambda: count - memory.smaps().rss // live.base_page)
    live.expect("base pages that are no memory of the process", count, found)
    memory.expect_huge(0, about="when they were merged")
    # what ksmd takes off on its CPU may not be added up yet
    if tells_resident(live, memory.length):
        # an actor has little else, of which some may come meanwhile
        less = resident - anonymous_memory(live, memory)
        live.expect("RssAnon is less by most of it", True, less > memory.length // 2)
    memory.expect_zero()
    memory.touch(value=_NEW_VALUE)
    live.expect("Rss when a word was written", live.base_page, memory.smaps().rss)
    live.expect("what is read", _NEW_VALUE, memory.read())


@MERGED.case(
    "ksm_zero_pages of a process is how many pages of zeroes it has that KSM has put there: each that is written, given"
    " back, unmapped, moved, not to be merged any more or made part of a huge page is one less, and one that is"
    " protected and may be written again is counted as before",
    f"{KSM_DOC} ksm_zero_pages, MADV_UNMERGEABLE; mm/ksm.c replace_page(); include/linux/ksm.h"
    " ksm_might_unmap_zero_page(); mm/khugepaged.c __collapse_huge_page_copy_succeeded(); mm/mremap.c move_vma()",
    since="6.6",
)
def counted_pages_of_zeroes(live: Live) -> None:
    for lose in _LOSSES:
        with live.about(lose.__name__.strip("_")):
            _expect_lost(live, lose)


def _expect_lost(live: Live, lose: Callable[[Live, Memory], int]) -> None:
    """Expect ksm_zero_pages to be what ``lose`` returns less when it has acted on a huge page of merged zeroes."""
    start_merging(live)
    live.set_knob(f"{DIRECTORY}/use_zero_pages", "1")
    memory = advised(live, 1, MADV_NOHUGEPAGE)
    count, before = base_page_count(live, memory), _zero_pages(live, memory)
    memory.advise(MADV_POPULATE_WRITE)
    # not of zeroes, so that one page can be written, as a collapse asks for
    memory.touch()
    memory.advise(MADV_MERGEABLE)
    found = await_merged(live, memory, lambda: _zero_pages(live, memory) - before, count - 1)
    live.expect("ksm_zero_pages when all but one are merged", count - 1, found)
    # what is lost is not to be merged again
    live.set_knob(f"{DIRECTORY}/run", "0")
    left = count - 1 - lose(live, memory)
    live.expect("ksm_zero_pages then", left, _zero_pages(live, memory) - before)
    memory.actor.end()


def _zero_pages(live: Live, memory: Memory) -> int:
    found = counted_of_process(live, memory)
    if _ZERO_PAGES not in found:
        raise CannotRun(f"this kernel has no {_ZERO_PAGES} in /proc/PID/ksm_stat")
    return found[_ZERO_PAGES]


def _write(live: Live, memory: Memory) -> int:
    base, every = live.base_page, base_page_count(live, memory)
    # the first one is no page of zeroes
    for number in (0, 1, 2, every // 2, every - 1):
        memory.actor.write(memory.address + number * base, _NEW_VALUE)
    return 4


def _give_back(live: Live, memory: Memory) -> int:
    memory.actor.call("madvise", memory.address + memory.size // 2, memory.size // 2, MADV_DONTNEED)
    return base_page_count(live, memory) // 2


def _unmap(live: Live, memory: Memory) -> int:
    memory.actor.call("munmap", memory.address + memory.size // 2, memory.size // 2)
    return base_page_count(live, memory) // 2


def _collapse(live: Live, memory: Memory) -> int:
    memory.advise(MADV_HUGEPAGE)
    collapse_memory(live, memory)
    memory.expect_huge()
    live.expect("words that are not zero", 1, memory.nonzero(0, memory.length))
    return base_page_count(live, memory) - 1


def _protect(_live: Live, memory: Memory) -> int:
    for prot in (mmap.PROT_READ, READ_WRITE):
        memory.protect(prot)
    return 0


def _move(live: Live, memory: Memory) -> int:
    # what is merged is unmerged first: at another place it could be taken for what was there
    there = memory.moved_to(room_for(memory.actor, memory.pages + 1, memory.size) + live.base_page)
    live.expect("what is read", 1, there.read())
    return base_page_count(live, memory) - 1


def _unmerge(live: Live, memory: Memory) -> int:
    half = memory.size // 2
    memory.actor.call("madvise", memory.address + half, half, MADV_UNMERGEABLE)
    return base_page_count(live, memory) // 2


#: by which of them pages of zeroes are lost: each returns how many
_LOSSES = (_write, _give_back, _unmap, _collapse, _protect, _move, _unmerge)


@MERGED.case(
    "each base page that is not to be merged any more is its process's own again, at whichever end of a huge page it"
    " is, and no other one; a child and all others keep what is merged, and hold what they held",
    f"{KSM_DOC} MADV_UNMERGEABLE; madvise(2); mm/ksm.c ksm_madvise(), unmerge_ksm_pages()",
)
def parts_not_to_be_merged(live: Live) -> None:
    memory, equal = merged_pair(live)
    child = memory.fork()
    count, half = base_page_count(live, memory), memory.size // live.base_page // 2
    merged = set(range(count))
    _expect_merged(live, memory, equal, merged)
    # the ends of all, of huge pages, what is unmerged already, and all
    parts = (0, 1), (count - 1, 1), (2 * half - 1, 2), (half, 3), (half - 1, half + 4), (0, count)
    for first, pages in parts:
        address = memory.address + first * live.base_page
        memory.actor.call("madvise", address, pages * live.base_page, MADV_UNMERGEABLE)
        merged -= set(range(first, first + pages))
        with live.about(f"{pages} base pages from {first} of {count} on"):
            _expect_merged(live, memory, equal, merged)
            _expect_merged(live, child, equal, set(range(count)))
            to_be_merged = sum(mapping.size for mapping in memory.all_mappings() if "mg" in mapping.flags)
            live.expect("memory that is to be merged (mg)", len(merged) * live.base_page, to_be_merged)
            for each, left in ((memory, len(merged)), (child, count), (equal, count)):
                _expect_in_smaps(live, each, left)
                each.expect_filled()
    memory.fill(_NEW_VALUE)
    memory.expect_filled(_NEW_VALUE)
    for each in (child, equal):
        each.expect_filled()


@MERGED.case(
    "2 in run has every base page be its process's own again, none is counted as shared then, and all hold what they"
    " held; 1 has them be merged again",
    f"{KSM_DOC} run, pages_shared, pages_sharing; mm/ksm.c run_store(), unmerge_and_remove_all_rmap_items()",
)
def all_unmerged(live: Live) -> None:
    if live.host.has_others:
        raise CannotRun("others use this machine, and what is merged of theirs may have no room")
    memory, equal = merged_pair(live)
    count = base_page_count(live, memory)
    for run, merged in (("2", 0), ("1", count)):
        live.host.write(f"{DIRECTORY}/run", run)
        count_shared = partial(shared_frames, memory, equal)
        found = await_merged(live, memory, count_shared) if merged else count_shared()
        with live.about(f"run is {run}"):
            live.expect("base pages with one frame for both", merged, found)
            tree = ObservedTree(live.host)
            # frames, and how often each is mapped but once
            counts = [read_integer(tree, f"{DIRECTORY}/pages_{name}") for name in ("shared", "sharing")]
            live.expect("pages_shared, pages_sharing", [merged, merged], counts)
            for each in (memory, equal):
                _expect_in_smaps(live, each, merged)
                each.expect_filled()


def _expect_merged(live: Live, memory: Memory, other: Memory, merged: set[int]) -> None:
    """Expect these base pages of ``memory``, and no others, to have the frames that those of ``other`` have.

    One that compaction moves between two looks, or in the moment of one, is looked at again.
    """
    look = partial(pages_with_one_frame, memory, other)
    found = live.host.last_look(look, partial(eq, merged), _MOVED_SECONDS)
    live.expect("base pages that are merged and should not be, or should be and are not", [], sorted(found ^ merged))


def _expect_in_smaps(live: Live, memory: Memory, merged: int) -> None:
    mappings = memory.all_mappings()
    live.expect("AnonHugePages of what was merged", 0, sum(mapping.anon_huge_pages for mapping in mappings))
    # Linux 6.1 has no such line
    found = [mapping.fields["KSM"] for mapping in mappings if "KSM" in mapping.fields]
    if found:
        live.expect("KSM of smaps", merged * live.base_page, sum(found))


class ThpMerged(LiveTest):
    def test_merged(self) -> None:
        self.run_area(MERGED)
