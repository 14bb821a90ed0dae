"""Memory that is to be taken for whole again, though it is whole or still in use: that is refused, and not counted."""

import errno
from collections.abc import Callable, Iterable
from functools import partial

from hugepage_qa.cases.broken_memory import (
    HWPOISON,
    break_in_use,
    break_page,
    hard_offline,
    is_taken_out_of_use,
    mend,
    mended_at_the_end,
    need_mending,
    out_of_use,
)
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.debugfs import write_debugfs
from hugepage_qa.cases.frames import kpageflags
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.kernel_frames import (
    need_breakable_kernel_memory,
    page_table_frame,
    reserved_frame,
    slab_frame,
    zero_frame,
)
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_policy import huge_pages, huge_zeroes, unadvised_base_pages
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, shared_base_pages, shared_huge_pages
from hugepage_qa.kernel.uapi import MADV_HWPOISON
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused

NOTHING_TO_MEND = Area("hwpoison/nothing-to-mend", sizes=Sizes.BUDDY)

_RULE = "Documentation/mm/hwpoison.rst unpoison-pfn; mm/memory-failure.c unpoison_memory()"
#: errors are those of this version and later ones
_SINCE = "6.1"
_MEMORIES: tuple[Callable[[Live], Memory], ...] = (
    unadvised_base_pages,
    shared_base_pages,
    huge_pages,
    shared_huge_pages,
)


@NOTHING_TO_MEND.case(
    "memory that never broke is not taken for whole again, EBUSY, and of the huge page of zeroes EOPNOTSUPP: base"
    " pages, any of a huge page, private and shared, free ones, those of the kernel; no less is out of use then, and"
    " all of it holds what it held",
    _RULE,
    sizes=Sizes.ONCE,
    since=_SINCE,
)
def whole_memory(live: Live) -> None:
    need_mending(live)
    let_only_pmd_inherit(live)
    for make in _MEMORIES:
        memory = make(live)
        with live.about(make.__name__):
            _expect_refused(live, (memory.frame(offset) for offset in _places(live, memory.length)))
            memory.expect_filled()
            first = memory.frame()
        memory.actor.end()
        with live.about(f"{make.__name__}, given back"):
            _expect_refused(live, [first])
    for frame_of in (reserved_frame, slab_frame, page_table_frame, zero_frame):
        with live.about(frame_of.__name__):
            frame = frame_of(live)
            # there is one page of zeroes, which breaks for good in another area
            if not _is_broken(live, frame):
                _expect_refused(live, [frame])
    zeroes = huge_zeroes(live)
    with live.about(huge_zeroes.__name__):
        before = out_of_use(live)
        live.expect_errno(errno.EOPNOTSUPP, write_debugfs, live, "hwpoison/unpoison-pfn", f"{zeroes.frame():#x}")
        live.expect("base pages out of use", 0, out_of_use(live) - before)


@NOTHING_TO_MEND.case(
    "pages of a pool that never broke, used and free, are not taken for whole again by any of their base pages: EBUSY;"
    " no less is out of use then, and the pool is as it was",
    _RULE,
    since=_SINCE,
    pages=1,
)
def whole_pages_of_a_pool(live: Live) -> None:
    need_mending(live)
    memory = live.map(1)
    memory.fill()
    (first,) = memory.frames()
    frames = [first + offset // live.base_page for offset in _places(live, live.size)]
    with live.about("in use"):
        _expect_refused(live, frames)
    live.expect_pool(nr=1, free=0)
    memory.expect_filled()
    memory.unmap()
    with live.about("free"):
        _expect_refused(live, frames)
    live.expect_pool(nr=1, free=1)


@NOTHING_TO_MEND.case(
    "a page of a file in a pool that broke, at its start or inside, is not taken for whole again as long as the file"
    " has it: EBUSY, as of what is beside that; it is when the file has gone, once, and is out of use no longer",
    _RULE,
    since=_SINCE,  # 8625147cafaa: before, a broken page was taken out of its file
    pages=1,
)
def broken_page_of_a_file(live: Live) -> None:
    need_mending(live)
    for offset in _places(live, live.size):
        with live.about(f"broken at byte {offset}"):
            file, before = new_memfd(live, pages=1), out_of_use(live)
            memory = file.map(1)
            memory.fill()
            (first,) = memory.frames()
            break_page(live, memory, offset, MADV_HWPOISON)
            with mended_at_the_end(live, first, file.actor.end):
                places = _places(live, live.size)
                _expect_refused(live, (first + place // live.base_page for place in places), broken=None)
                live.expect("base pages out of use", 1, out_of_use(live) - before)
            live.expect("base pages out of use when it is mended", 0, out_of_use(live) - before)
            _expect_refused(live, [first])
            live.expect_pool(nr=1, free=1)


@NOTHING_TO_MEND.case(
    "memory of no pool that broke, or was taken out of use before, is taken for whole again once, when nobody has it"
    " any more: EBUSY when that is asked for again, of what is beside it, and of shared memory while that is there",
    f"{_RULE}; mm/memory-failure.c me_pagecache_dirty(), me_swapcache_dirty(), page_handle_poison()",
    sizes=Sizes.ONCE,
    since=_SINCE,
)
def mended_once(live: Live) -> None:
    need_mending(live)
    let_only_pmd_inherit(live)
    base = live.base_page
    for make in _MEMORIES:
        with live.about(make.__name__):
            place = -2 * base
            memory, frame, before = break_in_use(live, partial(make, live), place, partial(out_of_use, live))
            with mended_at_the_end(live, frame, memory.actor.end):
                # where a huge page of a file was split none of it is mapped
                last = memory.length - base
                live.expect("a word of another base page", 1 + last, memory.actor.read(memory.address + last))
                _expect_refused(live, [memory.frame(last)])
                if make in (shared_base_pages, shared_huge_pages):
                    _expect_refused(live, [frame], broken=True)
                live.expect("base pages out of use", 1, out_of_use(live) - before)
            _expect_mended(live, frame, before)
    with live.about("taken out of use before it breaks"):
        memory, before = unadvised_base_pages(live), out_of_use(live)
        frame = memory.frame(base)
        if not is_taken_out_of_use(live, memory, base):
            raise CannotRun("somebody has a hold of a base page for long")
        with mended_at_the_end(live, frame, lambda: None):
            live.expect("base pages out of use", 1, out_of_use(live) - before)
        _expect_mended(live, frame, before)
        memory.expect_filled()


@NOTHING_TO_MEND.case(
    "memory of the kernel that broke is not taken for whole again as long as the kernel has it: EBUSY, and it is out of"
    " use as before",
    _RULE,
    sizes=Sizes.ONCE,
    since=_SINCE,
)
def broken_memory_of_the_kernel(live: Live) -> None:
    need_mending(live)
    need_breakable_kernel_memory(live)
    for frame_of in (reserved_frame, page_table_frame):
        with live.about(frame_of.__name__):
            frame, before = frame_of(live), out_of_use(live)
            live.expect_errno(errno.EBUSY, hard_offline, live, frame)
            _expect_refused(live, [frame], broken=True)
            live.expect("base pages out of use", 1, out_of_use(live) - before)


def _places(live: Live, length: int) -> tuple[int, ...]:
    """Return offsets of the first base page, the next one, one in the middle, and the last."""
    return 0, live.base_page, length // 2, length - live.base_page


def _expect_refused(live: Live, frames: Iterable[int], *, broken: bool | None = False) -> None:
    """Expect frames not to be taken for whole, and to be as ``broken`` as before, None for those of a pool."""
    asked, before = list(frames), out_of_use(live)
    were = [_is_broken(live, frame) for frame in asked]
    errors = [_error_of_mending(live, frame) for frame in asked]
    live.expect("errors of unpoison-pfn", ["EBUSY"] * len(asked), errors)
    live.expect("change of base pages out of use", 0, out_of_use(live) - before)
    wanted = were if broken is None else [broken] * len(asked)
    live.expect("whether kpageflags shows them as broken", wanted, [_is_broken(live, frame) for frame in asked])


def _error_of_mending(live: Live, frame: int) -> str:
    try:
        mend(live, frame)
    except Refused as refusal:
        return errno.errorcode.get(refusal.errno or 0, str(refusal.errno))
    return "none"


def _expect_mended(live: Live, frame: int, before: int) -> None:
    live.expect("base pages out of use when it is mended", before, out_of_use(live))
    _expect_refused(live, [frame])


def _is_broken(live: Live, frame: int) -> bool:
    actor = live.actor()
    (flags,) = kpageflags(live, actor, [frame])
    actor.end()
    return bool(flags & HWPOISON)


class NothingToMend(LiveTest):
    def test_nothing_to_mend(self) -> None:
        self.run_area(NOTHING_TO_MEND)
