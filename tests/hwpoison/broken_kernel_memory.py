"""Memory of the kernel itself that breaks: it cannot be given up, and is told of, counted and used on."""

import errno
from collections.abc import Callable

from hugepage_qa.cases.broken_memory import (
    ACTION,
    EHWPOISON,
    HWPOISON,
    THE_SAME,
    expect_break,
    expect_stats,
    failure_stats,
    hard_offline,
    out_of_use,
    soft_offline,
    told_of,
)
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.frames import kpageflags
from hugepage_qa.cases.free_ranges import BUDDY
from hugepage_qa.cases.kernel_frames import (
    PAGE_TABLE,
    RESERVED,
    SLAB,
    map_ring,
    need_breakable_kernel_memory,
    page_table_frame,
    page_tables,
    reserved_frame,
    slab_frame,
    zero_frame,
)
from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.memory_layout import read_zones
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused

KERNEL_MEMORY = Area("hwpoison/broken-kernel-memory", sizes=Sizes.ONCE)

_HARD = (
    "Documentation/mm/hwpoison.rst Limitations; Documentation/ABI/testing/sysfs-memory-page-offline,"
    " sysfs-devices-node memory_failure; mm/memory-failure.c get_any_page(), action_result()"
)
#: mm/memory-failure.c action_page_types[]: by version, memory that cannot be handled has other names
_IGNORED = frozenset(
    f"{ACTION}{kind}: Ignored"
    for kind in ("reserved kernel page", "get hwpoison page", "unknown page", "high-order kernel page")
)
#: errors and words are those of this version and later ones
_SINCE = "6.1"
#: what is shown of such memory as long as the kernel has it
_KINDS = SLAB | PAGE_TABLE | RESERVED
#: the kernel cannot take hold of it (get_any_page()); such of known kinds since 7.x: ENOTRECOVERABLE
_NOT_HANDLED = errno.EIO, errno.EBUSY, errno.ENOTRECOVERABLE
#: since it is looked whether a device has such memory (memory_failure_pfn()) it is ignored as that of a device
_NOT_THERE = errno.ENXIO, errno.EBUSY
#: so many frames behind all memory
_FAR = 1 << 22
_WORD = 7
_ATTEMPTS = 5
_FRAMES: dict[str, Callable[[Live], int]] = {
    "reserved": reserved_frame,
    "slab": slab_frame,
    "page table": page_table_frame,
    "page of zeroes": zero_frame,
}


@KERNEL_MEMORY.case(
    "memory of the kernel that breaks is EBUSY, told of in the log as ignored, and counted once as out of use and as"
    " ignored by the nodes; the kernel has it as before; that it breaks again is EHWPOISON, told and not counted",
    _HARD,
    since=_SINCE,
)
def memory_of_the_kernel(live: Live) -> None:
    need_breakable_kernel_memory(live)
    for name, frame_of in _FRAMES.items():
        with live.about(name):
            _expect_ignored(live, frame_of)


@KERNEL_MEMORY.case(
    "the same of memory of the kernel that a process has mapped, which can use it on",
    _HARD,
    since=_SINCE,
)
def memory_that_is_mapped(live: Live) -> None:
    need_breakable_kernel_memory(live)
    memory = map_ring(live)
    memory.touch(0, _WORD)
    _expect_ignored(live, lambda _live: memory.frame())
    live.expect("what was stored in it before it broke", _WORD, memory.read())


@KERNEL_MEMORY.case(
    "a page table that breaks while a process has it is given to nobody when that has ended: it is out of use",
    f"{_HARD}; mm/page_alloc.c free_pages_prepare()",
    since=_SINCE,
)
def given_back_by_the_kernel(live: Live) -> None:
    need_breakable_kernel_memory(live)
    before = out_of_use(live)
    actor, frames = page_tables(live)
    broken = frames[len(frames) // 2]
    live.expect_errno(errno.EBUSY, hard_offline, live, broken)
    actor.end()
    live.host.wait_until(lambda: not _flags(live, broken) & PAGE_TABLE)
    if _flags(live, broken) & PAGE_TABLE:
        raise CannotRun("the page table that broke is that of somebody else")
    # what was given back last is handed out first
    actor, again = page_tables(live)
    live.expect("whether a process has the broken one", False, broken in again)
    live.expect("flags of the broken one", HWPOISON, _flags(live, broken) & (HWPOISON | BUDDY | _KINDS))
    live.expect("base pages out of use", 1, out_of_use(live) - before)


@KERNEL_MEMORY.case(
    "memory of the kernel cannot be taken out of use before it breaks, and memory that is not there cannot break:"
    " nothing is counted, and the kernel has its memory as before",
    f"{_HARD}, memory_failure(), soft_offline_page()",
    since=_SINCE,
)
def nothing_is_done(live: Live) -> None:
    need_breakable_kernel_memory(live)
    before, stats = out_of_use(live), failure_stats(live)
    for name, frame_of in _FRAMES.items():
        with live.about(f"soft_offline_page, {name}"):
            flags, error, after = _soft_offlined(live, frame_of)
            # what broke before is out of use
            wanted = (0,) if flags & HWPOISON else _NOT_HANDLED
            live.expect("error", error if error in wanted else wanted, error)
            live.expect("flags of the frame", flags, after)
    with live.about("a frame behind all memory"):
        behind = max((zone.start_pfn or 0) + zone.spanned for zone in read_zones(live.host)) + _FAR
        error = _error_of(hard_offline, live, behind)
        live.expect("error", error if error in _NOT_THERE else _NOT_THERE, error)
    live.expect("base pages out of use", 0, out_of_use(live) - before)
    expect_stats(live, stats, None)


def _soft_offlined(live: Live, frame_of: Callable[[Live], int]) -> tuple[int, int, int]:
    """Return the flags of a frame before it was to be taken out of use, the error, and the flags afterwards."""

    def attempt() -> tuple[int, int, int]:
        frame = frame_of(live)
        return _flags(live, frame), _error_of(soft_offline, live, frame), _flags(live, frame)

    # what the kernel gives back in that moment is free, and can be taken
    return live.host.last_attempt(attempt, lambda seen: seen[0] == seen[2])


def _expect_ignored(live: Live, frame_of: Callable[[Live], int]) -> None:
    for _attempt in range(_ATTEMPTS):
        frame = frame_of(live)
        kind, before, stats = _flags(live, frame) & _KINDS, out_of_use(live), failure_stats(live)
        if _flags(live, frame) & HWPOISON:
            # there is one page of zeroes, which broke when the case was run before
            _expect_known(live, frame)
            return
        live.host.skip_kernel_log()
        error, told = _error_of(hard_offline, live, frame), told_of(live, frame)
        now = _flags(live, frame)
        if now & _KINDS == kind:
            # what the kernel has given back in that moment was free
            break
    live.expect("errno", errno.EBUSY, error)
    live.expect("what the log tells", told if len(told) == 1 and told[0] in _IGNORED else sorted(_IGNORED), told)
    live.expect("flags of the frame", kind | HWPOISON, now & (_KINDS | HWPOISON))
    live.expect("base pages out of use", 1, out_of_use(live) - before)
    expect_stats(live, stats, "ignored")
    with live.about("again"):
        _expect_known(live, frame)


def _expect_known(live: Live, frame: int) -> None:
    """Expect a frame that broke before to break again: that is told, and not counted."""
    before, stats = out_of_use(live), failure_stats(live)
    expect_break(live, frame, THE_SAME, EHWPOISON)
    live.expect("base pages out of use", 0, out_of_use(live) - before)
    expect_stats(live, stats, None)


def _error_of(act: Callable[[Live, int], None], live: Live, frame: int) -> int:
    """Return the number of the error that ``act`` ends in; 0 without one."""
    try:
        act(live, frame)
    except Refused as refusal:
        return refusal.errno or 0
    return 0


def _flags(live: Live, frame: int) -> int:
    actor = live.actor()
    (found,) = kpageflags(live, actor, [frame])
    actor.end()
    return found & (_KINDS | HWPOISON | BUDDY)


class BrokenKernelMemory(LiveTest):
    def test_broken_kernel_memory(self) -> None:
        self.run_area(KERNEL_MEMORY)
