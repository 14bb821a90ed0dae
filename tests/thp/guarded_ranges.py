"""Guards that are installed in, and removed from, a range with one kind of memory after the other."""

import signal
from collections.abc import Callable, Iterator
from functools import partial
from itertools import permutations, product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import expect_no_shortage
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import GUARDED, WORD, Memory, runs
from hugepage_qa.cases.thp_memory import mapped_huge, pmd_size
from hugepage_qa.cases.thp_policy import advised, set_policy, some_smaller_sizes
from hugepage_qa.cases.thp_shared_memory import advised_shared_memory
from hugepage_qa.kernel.uapi import MADV_DONTNEED, MADV_GUARD_INSTALL, MADV_GUARD_REMOVE
from hugepage_qa.plugins.avocado_test import LiveTest

GUARDED_RANGES = Area("thp/guarded-ranges", sizes=Sizes.ONCE)

GUARDS = "madvise(2) MADV_GUARD_INSTALL, MADV_GUARD_REMOVE; mm/madvise.c"
#: pagemap tells of guards (bit 58), which shared memory may have
SINCE = "6.15"
_AT_ONCE = 3
_NEW_VALUE = 77


class _Parts:
    """Memory of one huge page for each of ``kinds``, filled first: what is in it, and which base pages have guards."""

    def __init__(self, live: Live, memory: Memory, kinds: tuple[str, ...], *, shared: bool) -> None:
        self.memory = memory
        self.huge = kinds.count("a huge page") * memory.size
        self._live, self._shared = live, shared
        self._each = memory.size // live.base_page
        self.every = {*range(memory.pages * self._each)}
        self.guards, self.filled = set[int](), set(self.every)
        memory.fill()
        if mapped_huge(memory) != memory.length:
            expect_no_shortage(live, memory.size, memory.pages)
        live.expect("bytes that are mapped as huge pages before", memory.length, mapped_huge(memory))
        for number, kind in enumerate(kinds):
            self._make(kind, number * self._each)

    def _make(self, kind: str, first: int) -> None:
        """Make ``kind`` of a huge page, whose first base page is number ``first``."""
        some = [first, first + self._each // 2, first + self._each - 1]
        if kind in ("nothing", "guards and nothing else"):
            self._advise(MADV_DONTNEED, first, first + self._each)
            self._lose({*range(first, first + self._each)})
        if kind == "base pages":
            # a page table is there then
            self._advise(MADV_GUARD_INSTALL, first, first + 1)
            self._advise(MADV_GUARD_REMOVE, first, first + 1)
            self.memory.part(first // self._each).fill(1 + first * self._live.base_page)
        if kind.startswith("guards"):
            for each in some:
                self.install(each, each + 1)

    def install(self, first: int, end: int) -> None:
        """Install guards in base pages ``first`` to before ``end``."""
        self._advise(MADV_GUARD_INSTALL, first, end)
        self.guards |= {*range(first, end)}
        self._lose({*range(first, end)})

    def remove(self, first: int, end: int) -> None:
        """Remove the guards of base pages ``first`` to before ``end``."""
        self._advise(MADV_GUARD_REMOVE, first, end)
        self.guards -= {*range(first, end)}

    def expect_guards(self) -> None:
        """Expect guards where they must be and nowhere else, and all beside them to hold what it held."""
        entries = enumerate(self.memory.whole_pagemap())
        found = {number for number, entry in entries if entry & GUARDED}
        self._live.expect("base pages with guards", runs(self.guards), runs(found))
        for ends in runs(self.guards & found):
            for place in (ends.start * self._live.base_page, ends.stop * self._live.base_page - WORD):
                self._live.expect_signal(signal.SIGSEGV, self.memory.actor.read, self.memory.address + place)
        # to look at one that is wrong ends in a signal
        there = self.every - self.guards - found
        wrong = self._count(self.memory.wrong, there & self.filled)
        nonzero = self._count(self.memory.nonzero, there - self.filled)
        self._live.expect("words beside guards that changed", (0, 0), (wrong, nonzero))

    def _count(self, look: Callable[[int, int], int], pages: set[int]) -> int:
        base = self._live.base_page
        return sum(look(run.start * base, len(run) * base) for run in runs(pages))

    def _advise(self, advice: int, first: int, end: int) -> None:
        base = self._live.base_page
        self.memory.actor.call("madvise", self.memory.address + first * base, (end - first) * base, advice)

    def _lose(self, pages: set[int]) -> None:
        """Forget what private base pages hold: it is given back; shared memory has it still."""
        if not self._shared:
            self.filled -= pages


_KINDS = "a huge page", "base pages", "nothing", "guards among base pages", "guards and nothing else"


@GUARDED_RANGES.case(
    "guards are removed from all of a range, and from nowhere else, whatever lies before and behind them, huge pages,"
    " base pages, nothing or other guards: huge pages in it stay whole, and all holds what it held, private and shared",
    f"{GUARDS} guard_remove_pmd_entry(), guard_remove_pte_entry()",
    since=SINCE,
)
def removed(live: Live) -> None:
    for parts, (start, end) in _rows(live):
        parts.remove(start, end)
        live.expect("bytes that are mapped as huge pages", parts.huge, mapped_huge(parts.memory))
        parts.expect_guards()
        parts.remove(0, len(parts.every))
        parts.expect_guards()


@GUARDED_RANGES.case(
    "guards are installed in all of a range, and nowhere else, in the same: what was private is zero when they are"
    " removed, what is shared holds what it held, and all can be written",
    f"{GUARDS} guard_install_pmd_entry(), guard_install_pte_entry()",
    since=SINCE,
)
def installed(live: Live) -> None:
    for parts, (start, end) in _rows(live):
        parts.install(start, end)
        parts.expect_guards()
        parts.remove(0, len(parts.every))
        parts.expect_guards()
        parts.memory.fill(_NEW_VALUE)
        parts.memory.expect_filled(_NEW_VALUE)


@GUARDED_RANGES.case(
    "who writes beside a guard fills no guard, where smaller huge pages would cover it: at their start, in their middle"
    " or at their end; what is written is there",
    f"{GUARDS} guard_install_set_pte(); mm/memory.c alloc_anon_folio(), pte_range_none()",
    since=SINCE,
)
def written_beside(live: Live) -> None:
    let_nobody_else_act(live)
    set_policy(live, "never")
    base = live.base_page
    for size, path in some_smaller_sizes(live):
        live.set_knob(f"{path}/enabled", "always")
        memory, each = advised(live, 2, None), size // base
        guards = {each, 2 * each + each // 2, 4 * each - 1}
        # each is in what one of these could cover
        written = range(each + 1, 4 * each, each)
        with live.about(f"pages of {size} bytes"):
            for page in guards:
                memory.actor.call("madvise", memory.address + page * base, base, MADV_GUARD_INSTALL)
            for page in written:
                memory.actor.write(memory.address + page * base, _NEW_VALUE)
            found = {number for number, entry in enumerate(memory.whole_pagemap()) if entry & GUARDED}
            live.expect("base pages with guards", guards, found)
            for page in guards:
                live.expect_signal(signal.SIGSEGV, memory.actor.read, memory.address + page * base)
            held = [memory.actor.read(memory.address + page * base) for page in written]
            live.expect("what was written", [_NEW_VALUE] * len(written), held)
        memory.actor.end()
        live.set_knob(f"{path}/enabled", "never")


def _rows(live: Live) -> Iterator[tuple[_Parts, tuple[int, int]]]:
    """Yield memory with each kind before and behind each other one, and a range that begins and ends within it."""
    let_nobody_else_act(live)
    set_policy(live, "madvise")
    shared_memory = partial(advised_shared_memory, live, _AT_ONCE)
    for shared, (outer, inner) in product((False, True), permutations(_KINDS, 2)):
        kinds = outer, inner, outer
        memory = shared_memory() if shared else advised(live, _AT_ONCE)
        half = pmd_size(live) // live.base_page // 2
        with live.about(f"{', '.join(kinds)}, shared {shared}"):
            yield _Parts(live, memory, kinds, shared=shared), (half, 2 * _AT_ONCE * half - half)
        memory.actor.end()


class ThpGuardedRanges(LiveTest):
    def test_guarded_ranges(self) -> None:
        self.run_area(GUARDED_RANGES)
