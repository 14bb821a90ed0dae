"""Merged base pages that are not to be merged any more: among holes, protected by userfaultfd, closed to all.

And what is gone: whatever KSM has looked at is free then.
"""

import errno
import mmap
import signal
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from operator import eq

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.forced_writes import FORCED_VALUE, forced_write, need_forced_writes
from hugepage_qa.cases.frames import never_freed
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.lru_batches import drain_lru_batches
from hugepage_qa.cases.mapped_memory import FRAME, PRESENT, WORD, Memory, runs
from hugepage_qa.cases.merged_pages import (
    KSM_DOC,
    await_full_scans,
    base_page_count,
    expect_all_merged,
    merged_pages,
    merged_pair,
    start_merging,
)
from hugepage_qa.cases.thp_policy import base_pages, huge_pages
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault, protected_pages
from hugepage_qa.kernel.ksm import DIRECTORY
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.kernel.uapi import MADV_DONTNEED, MADV_MERGEABLE, MADV_UNMERGEABLE, PROT_NONE
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

UNMERGED = Area("ksm/unmerged", sizes=Sizes.ONCE)

_NEW_VALUE = 77
#: what no other memory is filled with
_UNEQUAL = 1 << 41
#: in so many times four scans each page is passed over once: after three scans every other one of them, and more later
_LOOKS = 4
#: for how long somebody else may have a hold of what is gone
_HELD_SECONDS = 5.0
_SMART_SCAN = f"{DIRECTORY}/smart_scan"


@UNMERGED.case(
    "merged base pages beside holes are their process's own again, hold what they held, and no hole is filled: behind"
    " single ones, at both ends, and behind a huge page of them; where memory is unmapped there MADV_UNMERGEABLE does"
    " the rest, and is ENOMEM",
    f"{KSM_DOC} MADV_UNMERGEABLE; madvise(2) ENOMEM; mm/ksm.c unmerge_ksm_pages(), break_ksm()",
)
def beside_holes(live: Live) -> None:
    for make_holes, number in ((_give_back, 0), (_unmap, errno.ENOMEM)):
        with live.about(make_holes.__name__.strip("_").replace("_", " ")):
            _expect_unmerged_beside_holes(live, make_holes, number)


def _expect_unmerged_beside_holes(live: Live, make_holes: Callable[[Memory, int, int], None], number: int) -> None:
    """Have ``make_holes`` make holes in merged memory, and expect MADV_UNMERGEABLE to act on the rest and be errno."""
    memory, equal = merged_pair(live, 3)
    base, count = live.base_page, base_page_count(live, memory)
    # of the second huge page there is nothing, of the last base page the one in front of it is the hole
    holes = {0, 3, count // 6, count // 6 + 1, *range(count // 3, 2 * count // 3), count - 2}
    left = {*range(count)} - holes
    for hole in runs(holes):
        make_holes(memory, memory.address + hole.start * base, len(hole) * base)
    _expect_merged(live, memory, equal, left)
    found = -memory.actor.result("madvise", memory.address, memory.length, MADV_UNMERGEABLE)
    live.expect("errno of MADV_UNMERGEABLE", number, found)
    _expect_none_merged(live, memory, equal)
    absent = {page for page, entry in enumerate(memory.whole_pagemap()) if not entry & PRESENT}
    live.expect("holes that are filled, and pages that are gone", [], sorted(absent ^ holes))
    live.expect("words that changed", 0, sum(memory.wrong(run.start * base, len(run) * base) for run in runs(left)))
    for run in runs(left):
        memory.fill_part(run.start * base, len(run) * base, _NEW_VALUE)
    equal.expect_filled()
    for each in (memory, equal):
        each.actor.end()


def _give_back(memory: Memory, address: int, length: int) -> None:
    memory.actor.call("madvise", address, length, MADV_DONTNEED)


def _unmap(memory: Memory, address: int, length: int) -> None:
    memory.actor.call("munmap", address, length)


@UNMERGED.case(
    "merged base pages that userfaultfd write-protects are their process's own again as all others, and they alone are"
    " protected as before: who writes them is told, also at the ends of huge pages, until they are protected no more",
    f"{KSM_DOC} MADV_UNMERGEABLE; ioctl_userfaultfd(2) UFFDIO_WRITEPROTECT; mm/ksm.c break_ksm(); mm/memory.c"
    " wp_page_copy() (6cce3314b928)",
    since="6.2",  # 6cce3314b928: before, MADV_UNMERGEABLE of what is protected never ends, nor does its process
)
def protected(live: Live) -> None:
    memory, equal = merged_pair(live)
    base, count = live.base_page, base_page_count(live, memory)
    fault = Userfault(memory, Mode.WRITE_PROTECTED, Feature.PAGEFAULT_FLAG_WP)
    there = {0, *range(count // 8, count // 4), count // 2 - 1, count // 2, count - 1}
    for run in runs(there):
        fault.write_protect(offset=run.start * base, length=len(run) * base)
    live.expect("base pages that are protected", sorted(there), protected_pages(memory))
    _expect_merged(live, memory, equal, {*range(count)})
    memory.advise(MADV_UNMERGEABLE)
    _expect_none_merged(live, memory, equal)
    live.expect("base pages that are protected then", sorted(there), protected_pages(memory))
    memory.expect_filled()
    for page in range(count):
        address = memory.address + page * base
        if page in there:
            live.expect_signal(signal.SIGBUS, memory.actor.write, address, _NEW_VALUE)
        else:
            memory.actor.write(address, _NEW_VALUE)
    fault.write_protect(on=False, length=memory.length)
    live.expect("base pages that are protected at last", [], protected_pages(memory))
    memory.fill(_NEW_VALUE)
    memory.expect_filled(_NEW_VALUE)
    equal.expect_filled()


@UNMERGED.case(
    "each merged base page of memory that nobody may access is its process's own when a debugger writes it, and no"
    " other one; all are when they are not to be merged any more, and hold what they held and what was written",
    f"{KSM_DOC} MADV_UNMERGEABLE; mm/ksm.c break_ksm(); mm/gup.c follow_page_pte() (474098edac26)",
)
def closed(live: Live) -> None:
    memory, equal = merged_pair(live)
    need_forced_writes(live)
    base, count = live.base_page, base_page_count(live, memory)
    written = [0, count // 4, count // 2 - 1, count // 2, count - 2]
    memory.protect(PROT_NONE)
    for page in written:
        live.expect("bytes that the debugger wrote", WORD, forced_write(live, memory, page * base))
    others = {*range(count)} - {*written}
    _expect_merged(live, memory, equal, others)
    memory.advise(MADV_UNMERGEABLE)
    _expect_none_merged(live, memory, equal, known={Quirk.CLOSED_MEMORY_STAYS_MERGED: others})
    memory.protect(mmap.PROT_READ)
    read = [memory.actor.read(memory.address + page * base) for page in written]
    live.expect("what was written", [FORCED_VALUE] * len(written), read)
    changed = 0
    for page in range(count):
        word = WORD if page in written else 0
        changed += memory.wrong(page * base + word, base - word)
    live.expect("other words that changed", 0, changed)
    memory.protect(READ_WRITE)
    memory.fill(_NEW_VALUE)
    memory.expect_filled(_NEW_VALUE)
    equal.expect_filled()


def _expect_merged(
    live: Live, memory: Memory, equal: Memory, merged: set[int], *, known: Mapping[Quirk, set[int]] | None = None
) -> None:
    """Expect these base pages of ``memory``, and no others, to have the frames of ``equal``. Raises KnownBug."""
    in_words = {quirk: _in_words(pages) for quirk, pages in (known or {}).items()}
    wanted = _in_words(merged)

    def look() -> str:
        return _in_words(merged_pages(memory, equal))

    # one that somebody moves between the looks at both has two frames; none seems merged for that
    found = live.host.last_attempt(look, wanted.__eq__) if merged else look()
    live.expect("base pages that are merged", wanted, found, in_words)


def _in_words(pages: set[int]) -> str:
    return ", ".join(f"{run.start}-{run.stop - 1}" for run in runs(pages)) or "none"


def _expect_none_merged(
    live: Live, memory: Memory, equal: Memory, *, known: Mapping[Quirk, set[int]] | None = None
) -> None:
    _expect_merged(live, memory, equal, set(), known=known)
    mappings = memory.all_mappings()
    live.expect("memory that is to be merged (mg)", 0, sum(each.size for each in mappings if "mg" in each.flags))
    # KSM is no line of Linux 6.1
    live.expect("KSM of smaps", 0, sum(each.fields.get("KSM", 0) for each in mappings))


@UNMERGED.case(
    "memory that KSM has looked at is free when it is unmapped or its process ends: merged pages, and such as have no"
    " equal, base pages and huge pages; with smart_scan it passes over these in further scans, which pages_skipped"
    " counts, and without it over none",
    f"{KSM_DOC} smart_scan, pages_skipped; mm/ksm.c scan_get_next_rmap_item(), should_skip_rmap_item()",
)
def free_when_gone(live: Live) -> None:
    for smart_scan, make in product(("0", "1"), (base_pages, huge_pages)):
        start_merging(live)
        with live.about(f"smart_scan is {smart_scan}, {make.__name__}"):
            memory, equal, odd = (make(live) for _memory in range(3))
            expect_all_merged(live, memory, equal)
            odd.fill(_UNEQUAL)
            live.set_knob_if_there(_SMART_SCAN, smart_scan)
            _expect_looked_at(live, odd, skips=smart_scan == "1" and live.host.read(_SMART_SCAN) is not None)
            entries = (entry for each in (memory, equal, odd) for entry in each.whole_pagemap())
            frames = {entry & FRAME for entry in entries if entry & PRESENT}
            odd.unmap()
            for each in (memory, equal):
                each.actor.end()
            left = live.host.last_look(partial(_never_freed, live, odd.actor, frames), partial(eq, 0), _HELD_SECONDS)
            live.expect("frames that nobody has and that are not free", 0, left)
        odd.actor.end()


def _expect_looked_at(live: Live, memory: Memory, *, skips: bool) -> None:
    """Have ksmd look at memory that has no equal, and expect it to pass over all of it once it ``skips`` such."""
    before, wanted = _skipped(live), base_page_count(live, memory) if skips else 0
    memory.advise(MADV_MERGEABLE)
    for _scans in range(_LOOKS):
        await_full_scans(live)
        if skips and _skipped(live) - before >= wanted:
            break
    live.expect("pages_skipped more, at most as many as there are", wanted, min(_skipped(live) - before, wanted or 1))


def _skipped(live: Live) -> int:
    return read_integer(ObservedTree(live.host), f"{DIRECTORY}/pages_skipped") or 0


def _never_freed(live: Live, actor: Actor, frames: set[int]) -> int:
    drain_lru_batches(live, actor)
    return len(never_freed(live, actor, frames))


class ThpUnmerged(LiveTest):
    def test_unmerged(self) -> None:
        self.run_area(UNMERGED)
