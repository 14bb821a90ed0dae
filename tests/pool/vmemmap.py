"""Huge pages that give most of their struct pages back: vm.hugetlb_optimize_vmemmap."""

import re
from collections import Counter
from collections.abc import Collection
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.frames import COMPOUND_HEAD, COMPOUND_TAIL, HUGE, flags_from
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_of_others import expect_no_drift, expect_not_others, free_bytes, used_memory
from hugepage_qa.cases.places import ordinary_memory
from hugepage_qa.cases.struct_pages import (
    need_struct_pages,
    need_struct_pages_elsewhere,
    optimize_struct_pages,
    read_counted_struct_pages,
    struct_pages,
)
from hugepage_qa.cases.thp_memory import MIN_FREE
from hugepage_qa.kernel.log import tells_of_trouble
from hugepage_qa.kernel.uapi import PR_SET_THP_DISABLE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.sizes import KIB, MIB

VMEMMAP = Area("pool/vmemmap")
#: with pages cleared as they are allocated, they are checked, too: then Linux 6.12.y can judge none of it
COUNTED = Area("pool/vmemmap-counted", uncleared=True)
RULE = "Documentation/admin-guide/sysctl/vm.rst hugetlb_optimize_vmemmap; mm/hugetlb_vmemmap.c"
_OF_A_FOLIO = HUGE | COMPOUND_HEAD | COMPOUND_TAIL
_POOL, _USED = 512 * MIB, 64 * MIB
#: bytes that a quiet machine takes and gives meanwhile, and more
_QUIET = 256 * KIB
_ATTEMPTS = 10
#: of a machine whose pool takes all: what the kernel has for itself, and what the process has that is killed first
_LEFT, _HELD = 192 * MIB, 64 * MIB
_ROUNDS = 3
#: what nr_hugepages can hold, an unsigned long
_LARGEST = 2**64 - 1
#: what the CPUs have lists of is no more than that: 1 of so many parts of a zone (since Linux 5.14)
_LISTS, _SHORTEST = "proc/sys/vm/percpu_pagelist_high_fraction", 2**20
#: mm/oom_kill.c, and who wanted memory in the back trace, where a question mark says that it may be of an older one
_KILLED = "Out of memory"
_NOBODY, _WHO_OPTIMISES, _WHO_FILLS = "nobody", "who gives struct pages back", "who fills the pool"
_SOMEBODY = "somebody else"
_OPTIMISES = re.compile(r"(?<!\? )\b_*hugetlb_vmemmap_optimize_folios?\+")
_FILLS = re.compile(r"(?<!\? )\b\w*(?:hugetlb|nr_hugepages)\w*\+")
_STARTS_A_THREAD = re.compile(r"(?<!\? )\bcopy_process\+")


@VMEMMAP.case(
    "a pool takes less memory by the struct pages of its pages, of which each keeps one base page",
    f"{RULE}; {HUGETLB_DOC} hugetlb_free_vmemmap",
)
def struct_pages_are_given_back(live: Live) -> None:
    need_struct_pages(live, live.size)
    need_struct_pages_elsewhere(live)
    pages = max(1, _POOL // live.size)
    expected = pages * (struct_pages(live, live.size) - live.base_page)
    # so little that each page may not keep one base page more; of few pages what a quiet machine takes and gives
    close = min(max(pages * live.base_page // 2, _QUIET), expected // 2)
    samples: list[tuple[int, int]] = []
    for _attempt in range(_ATTEMPTS):
        whole, optimised, again, once_more = (_taken_by(live, pages, on=on) for on in (False, True, False, True))
        spread = max(abs(whole - again), abs(optimised - once_more))
        saved = (whole + again - optimised - once_more) // 2
        samples.append((spread, saved))
        if spread <= close // 2 and abs(saved - expected) < close:
            break
    spread, saved = min(samples)
    if spread > expected // 4:
        raise CannotRun(f"others take and give more memory than the {expected} bytes in question")
    if abs(saved - expected) >= close:
        # they can do so as much each time; what the kernel counts of struct pages is judged whatever they do
        expect_no_drift(live, close // 2)
    # where others do so a little, what most of a page's struct pages are is judged
    limit = close if spread <= close // 2 else expected // 2
    live.expect(f"{saved} bytes saved, within {limit} of {expected}", True, abs(saved - expected) < limit)


@COUNTED.case(
    "nr_memmap_pages and nr_memmap_boot_pages lack together what pages gave back, those that come into a pool alone and"
    " those that come with others, until these are gone: some of a pool, all of it, also when new pages keep theirs by"
    " then, when some have theirs and some have not, and surplus ones",
    "mm/hugetlb_vmemmap.c free_vmemmap_page(), alloc_vmemmap_page_list(), since 15995a352474;"
    " hugetlb_vmemmap_optimize_folios()",
    since="6.11",
)
def counted_struct_pages(live: Live) -> None:
    need_struct_pages(live, live.size)
    need_struct_pages_elsewhere(live)
    pages = max(1, _USED // live.size)
    for on, on_later in product((True, False), repeat=2):
        optimize_struct_pages(live, on=on)
        given, given_later = (
            struct_pages(live, live.size) // live.base_page - 1 if gives else 0 for gives in (on, on_later)
        )
        before = read_counted_struct_pages(live)
        if before is None:
            live.fail("nr_memmap_pages of /proc/vmstat", "a number", None)
        with live.about(f"optimised {on}, switched to {on_later} meanwhile"):
            for number in sorted({1, min(2, pages), pages // 2 or 1, pages}):
                live.reserve(number)
                live.expect(
                    f"struct pages with {number} in a pool", before - number * given, read_counted_struct_pages(live)
                )
            optimize_struct_pages(live, on=on_later)
            kept = pages // 2
            for left in sorted({pages - 1, kept}, reverse=True):
                live.set_nr(left)
                live.expect(f"struct pages with {left} left", before - left * given, read_counted_struct_pages(live))
            live.set_nr(pages)
            both = kept * given + (pages - kept) * given_later
            live.expect(
                f"struct pages with {kept} left and {pages - kept} new ones",
                before - both,
                read_counted_struct_pages(live),
            )
            live.set_nr(0)
            live.expect("struct pages with none left", before, read_counted_struct_pages(live))
        # what is lost is not waited for
        if not (live.is_gigantic or live.differences):
            optimize_struct_pages(live, on=on)
            with live.about(f"surplus pages, optimised {on}"):
                _expect_surplus_counted(live, pages, before, given)


def _expect_surplus_counted(live: Live, pages: int, before: int, given: int) -> None:
    live.let_grow(pages)
    memory = live.map(pages, noreserve=True)
    for page in range(pages):
        memory.touch(page)
    live.expect_pool(nr=pages, free=0, surplus=pages)
    live.expect("struct pages with a pool", before - pages * given, read_counted_struct_pages(live))
    memory.unmap()
    # a worker of the kernel gives such pages back (free_hpage_workfn())
    counted = live.host.last_look(lambda: read_counted_struct_pages(live), lambda now: now == before)
    live.expect("struct pages when the pool is empty", before, counted)


@VMEMMAP.case("optimised pages hold what is written, and their memory can be used when they have gone", RULE)
def optimised_pages_are_used(live: Live) -> None:
    need_struct_pages(live, live.size)
    _use_optimised(live, switched_off=False)


@VMEMMAP.case("pages stay optimised when that is switched off, and their memory can be used when they have gone", RULE)
def optimised_pages_outlive_the_switch(live: Live) -> None:
    need_struct_pages(live, live.size)
    _use_optimised(live, switched_off=True)


@VMEMMAP.case(
    "kpageflags shows of an optimised page one head, and each other base page as its tail",
    f"{RULE}; Documentation/mm/vmemmap_dedup.rst; fs/proc/page.c stable_page_flags()",
)
def flags_of_an_optimised_page(live: Live) -> None:
    need_struct_pages(live, live.size)
    optimize_struct_pages(live)
    live.reserve(1)
    memory = live.map(1)
    memory.touch()
    live.expect_pool(nr=1, free=0)
    count = live.size // live.base_page
    (first,) = memory.frames()
    head, *tails = (flags & _OF_A_FOLIO for flags in flags_from(live, memory.actor, first, count))
    live.expect("flags of the first base page", hex(HUGE | COMPOUND_HEAD), hex(head))
    shared = struct_pages(live, live.size) // live.base_page - 1
    seen_as_heads = {hex(HUGE | COMPOUND_TAIL): count - 1 - shared, hex(HUGE | COMPOUND_HEAD): shared}
    live.expect(
        "flags of the others",
        {hex(HUGE | COMPOUND_TAIL): count - 1},
        Counter(map(hex, tails)),
        {Quirk.SHARED_TAILS_SHOWN_AS_HEADS: seen_as_heads},
    )


@VMEMMAP.case(
    "a surplus page that gave its struct pages back is out of the pool when it is freed, and its memory free soon"
    " after; while it is on its way the pool grows and shrinks",
    f"{RULE}; {HUGETLB_DOC} nr_overcommit_hugepages; mm/hugetlb.c update_and_free_page(), free_hpage_workfn()",
    sizes=Sizes.BUDDY,
)
def optimised_surplus(live: Live) -> None:
    need_struct_pages(live, live.size)
    pages = max(1, _USED // live.size)
    optimize_struct_pages(live)
    live.let_grow(pages)
    free, used = free_bytes(live), used_memory(live)
    for turn in range(1, 4):
        memory = live.map(pages, noreserve=True)
        memory.fill(turn)
        live.expect_pool(nr=pages, free=0, surplus=pages)
        memory.expect_filled(turn)
        memory.unmap()
        live.expect_pool(nr=0, free=0)
        # no write to it goes on before what is on its way has come
        live.set_nr(0)
        live.expect_pool(nr=0, free=0)

    def is_back() -> bool:
        return free_bytes(live) > free - pages * live.size // 2

    live.host.wait_until(is_back)
    if not is_back():
        expect_not_others(live, free - free_bytes(live), used)
    live.expect(f"{free_bytes(live)} of {free} bytes are free again", True, is_back())
    live.reserve(1)
    live.expect_pool(nr=1, free=1)
    live.set_nr(0)
    live.expect_pool(nr=0, free=0)


@VMEMMAP.case(
    "a pool that takes all memory has nobody killed for want of memory by giving struct pages back: a page for which"
    " there is none to do so keeps them",
    f"{RULE} hugetlb_vmemmap_optimize_folios()",
    sizes=Sizes.BUDDY,
)
def nobody_is_killed(live: Live) -> None:
    need_struct_pages(live, live.size)
    if live.host.has_others:
        raise CannotRun("others have memory of this machine, and could be killed")
    optimize_struct_pages(live)
    # what is killed gives its memory back to these lists, where nobody is to have it from who waits for memory
    live.set_knob_if_there(_LISTS, str(_SHORTEST))
    watermark = int(live.host.read(MIN_FREE) or 0)
    first = _base_pages(live, _HELD)
    live.host.write(f"proc/{first.actor.pid}/oom_score_adj", "1000")
    for number in range(_ROUNDS):
        live.make_room()
        # how much of a huge page is free beyond it differs: who finds enough there needs no more
        live.set_knob(MIN_FREE, str((_LEFT + number * live.size // _ROUNDS) // KIB + watermark))
        live.host.new_kernel_log()
        live.host.write(live.pool_file("nr_hugepages"), str(_LARGEST))
        live.host.write(MIN_FREE, str(watermark))
        found = live.pool().nr
        live.expect_pool(nr=found, free=found)
        if not found:
            raise CannotRun("the pool took nothing: no memory is free in one piece")
        # whether somebody was killed is judged here
        lines = live.host.new_kernel_log(judged=True)
        live.set_nr(0)
        live.expect("lines of the kernel log that tell of trouble", [], [*filter(tells_of_trouble, lines)])
        live.expect(
            "who has a process killed", _NOBODY, _who_kills(lines), {Quirk.OPTIMISED_POOL_KILLS: _WHO_OPTIMISES}
        )
    live.expect_pool(nr=0, free=0)
    first.expect_filled()


def _who_kills(lines: Collection[str]) -> str:
    """Tell who wanted memory that another was killed for. Raises CannotRun where that was a new thread."""
    if not any(_KILLED in line for line in lines):
        return _NOBODY
    if any(map(_OPTIMISES.search, lines)):
        return _WHO_OPTIMISES
    if any(map(_FILLS.search, lines)):
        return _WHO_FILLS
    if any(map(_STARTS_A_THREAD.search, lines)):
        # for the kernel itself: on 6.12.107 kthreadd wanted a stack for a new thread then
        raise CannotRun("a new thread of the kernel wanted a stack while the pool had all memory")
    return _SOMEBODY


def _base_pages(live: Live, length: int) -> Memory:
    """Return ``length`` bytes of memory of a process, filled, that has no huge page."""
    actor = live.actor()
    actor.call("prctl", PR_SET_THP_DISABLE, 1, 0, 0, 0)
    memory = ordinary_memory(live, actor, length // live.base_page)
    memory.fill()
    return memory


def _use_optimised(live: Live, *, switched_off: bool) -> None:
    pages = max(1, _USED // live.size)
    optimize_struct_pages(live)
    live.reserve(pages)
    memory = live.map(pages)
    memory.fill()
    live.expect_pool(nr=pages, free=0)
    if switched_off:
        optimize_struct_pages(live, on=False)
    memory.expect_filled()
    memory.unmap()
    live.expect_pool(nr=pages, free=pages)
    live.set_nr(0)
    live.expect_pool(nr=0, free=0)
    # each of them has a struct page of its own again
    _base_pages(live, _USED).expect_filled()


def _taken_by(live: Live, pages: int, *, on: bool) -> int:
    """Return how many bytes of free memory a pool of ``pages`` takes."""
    optimize_struct_pages(live, on=on)
    before = free_bytes(live)
    live.reserve(pages)
    live.expect_pool(nr=pages, free=pages)
    taken = before - free_bytes(live)
    live.set_nr(0)
    live.expect_pool(nr=0, free=0)
    return taken


class Vmemmap(LiveTest):
    def test_vmemmap(self) -> None:
        self.run_area(VMEMMAP)

    def test_counted(self) -> None:
        self.run_area(COUNTED)
