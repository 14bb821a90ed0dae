"""Ranges of pages that are said to be broken, or to break: each page in them is, whatever huge page it is of."""

import errno
from collections.abc import Callable
from functools import partial

from hugepage_qa.cases.broken_memory import break_in_use, expect_broken, need_memory_failure, survive_broken_memory
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import FRAME, Memory
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import huge_pages, mapped_in_parts, unadvised_base_pages
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.kernel.uapi import MADV_HWPOISON, MADV_SOFT_OFFLINE
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest

RANGES = Area("hwpoison/broken-ranges")

SOFT = "madvise(2) MADV_SOFT_OFFLINE: the pages in the range specified by addr and length; mm/madvise.c"
#: base pages of a range
_LENGTH = 16
_ATTEMPTS = 5


def _two_huge_pages(live: Live) -> Memory:
    return huge_pages(live, 2)


def _two_in_parts(live: Live) -> Memory:
    return mapped_in_parts(live, 2)


@RANGES.case(
    "each base page of a range that will break is replaced, of base pages and of huge pages, also of those that are"
    " mapped as base pages, among them the last one of a huge page with those of the next one behind it; nobody loses a"
    " word",
    f"{SOFT} madvise_inject_error()",
    sizes=Sizes.ONCE,
)
def base_pages_that_will_break(live: Live) -> None:
    last = pmd_size(live) // live.base_page - 1
    for make, first in (
        (unadvised_base_pages, 1),
        (_two_huge_pages, 0),
        (_two_huge_pages, last // 2),
        (_two_huge_pages, last),
        (_two_in_parts, last),
    ):
        with live.about(f"{make.__name__.strip('_').replace('_', ' ')}, from base page {first} on"):
            memory, frames, taken = _will_break(live, make, first * live.base_page, _LENGTH)
            known = None if make is unadvised_base_pages else {Quirk.BROKEN_RANGE_PASSED_OVER: live.base_page}
            live.expect("bytes out of use", _LENGTH * live.base_page, taken, known)
            now = _frames(live, memory, first * live.base_page, _LENGTH)
            kept = sum(new == old for new, old in zip(now, frames, strict=True))
            live.expect("base pages that have the frame that will break", 0, kept)
            memory.expect_filled()
            memory.actor.end()


@RANGES.case(
    "each base page of a range that is broken ends who touches it, of base pages and of huge pages, and no other does",
    "madvise(2) MADV_HWPOISON: the pages in the range specified by addr and length; Documentation/mm/hwpoison.rst"
    " madvise(MADV_HWPOISON); mm/madvise.c madvise_inject_error()",
    sizes=Sizes.ONCE,
)
def base_pages_that_broke(live: Live) -> None:
    need_memory_failure(live)
    survive_broken_memory(live)
    for make in (unadvised_base_pages, _two_huge_pages):
        with live.about(make.__name__.strip("_").replace("_", " ")):
            start, length = pmd_size(live) // 2, _LENGTH * live.base_page
            look, say = partial(_out_of_use, live), partial(_say_it_broke, start, length)
            memory, _frame, before = break_in_use(live, partial(make, live), start, look, say)
            known = None if make is unadvised_base_pages else {Quirk.BROKEN_RANGE_PASSED_OVER: live.base_page}
            live.expect("bytes out of use", length, _out_of_use(live) - before, known)
            for offset in range(start, start + length, live.base_page):
                expect_broken(live, memory, offset, live.base_page)
            behind = start + length
            wrong = memory.wrong(0, start) + memory.wrong(behind, memory.length - behind)
            live.expect("words beside the range that changed", 0, wrong)
            memory.actor.end()


@RANGES.case(
    "of a range that ends in the second one of two pages of a pool both are replaced, wherever in the first one it"
    " begins; nobody loses a word",
    f"{SOFT} madvise_inject_error(); mm/memory-failure.c soft_offline_in_use_page()",
    sizes=Sizes.BUDDY,
    pages=4,
)
def pages_of_a_pool_that_will_break(live: Live) -> None:
    def make(live: Live) -> Memory:
        # an attempt that somebody ended amid the range may have taken the first page out of the pool
        live.reserve(4)
        memory = live.map(2)
        memory.fill()
        return memory

    base_pages = live.size // live.base_page
    for first in (0, base_pages - 1):
        with live.about(f"from base page {first} on"):
            memory, _frames_before, taken = _will_break(live, make, first * live.base_page, base_pages - first + 1)
            known = {Quirk.BROKEN_RANGE_PASSED_OVER: live.base_page} if first else None
            live.expect("bytes out of use", 2 * live.base_page, taken, known)
            live.expect_pool(nr=2, free=0)
            memory.expect_filled()
            memory.actor.end()
            live.expect_pool(nr=2, free=2)


def _say_it_broke(start: int, length: int, memory: Memory) -> None:
    memory.actor.call("madvise", memory.address + start, length, MADV_HWPOISON)


def _will_break(
    live: Live, make: Callable[[Live], Memory], offset: int, base_pages: int
) -> tuple[Memory, list[int], int]:
    """Tell the kernel that so many base pages at ``offset`` of what ``make`` gives will break.

    Returned are the memory, the frames that they had, and how many bytes more are out of use. Somebody may have a
    hold of one of them for a moment: others are taken then. Raises CannotRun, OSError.
    """
    need_memory_failure(live)
    live.set_knob_if_there("proc/sys/vm/enable_soft_offline", "1")
    for _attempt in range(_ATTEMPTS):
        memory = make(live)
        before, frames = _out_of_use(live), _frames(live, memory, offset, base_pages)
        address, length = memory.address + offset, base_pages * live.base_page
        try:
            memory.actor.call("madvise", address, length, MADV_SOFT_OFFLINE)
        except OSError as error:
            # one that was taken off its list to be moved is EIO
            if error.errno not in (errno.EBUSY, errno.EIO):
                raise
            memory.actor.end()
        else:
            return memory, frames, _out_of_use(live) - before
    raise CannotRun(f"somebody had a hold of a page in the range each of {_ATTEMPTS} times")


def _out_of_use(live: Live) -> int:
    """Return how many bytes are out of use."""
    return read_meminfo(ObservedTree(live.host)).get("HardwareCorrupted", 0)


def _frames(live: Live, memory: Memory, offset: int, base_pages: int) -> list[int]:
    start, size = memory.address + offset, live.base_page
    return [word & FRAME for word in memory.pagemap(range(start, start + base_pages * size, size))]


class BrokenRanges(LiveTest):
    def test_ranges(self) -> None:
        self.run_area(RANGES)
