"""Ranges of files in large folios that are brought into memory before they are needed, and dropped from it."""

import errno
import mmap
from collections.abc import Callable, Sequence
from functools import partial
from operator import not_

from hugepage_qa.cases.block_queue import BlockQueue
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.file_contents import Brought, KnownFile
from hugepage_qa.cases.large_folios import DISKS, block_size, file_case
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import runs
from hugepage_qa.cases.pages_in_memory import base_pages_in_memory
from hugepage_qa.kernel.uapi import MADV_WILLNEED
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.sizes import KIB

BROUGHT = Area("files/brought-ranges", sizes=Sizes.ONCE, uncleared=True)

case = partial(file_case, BROUGHT, on=DISKS)
#: of posix_fadvise(2); what others of them are differs between architectures
_WILLNEED, _UNKNOWN = 3, 99
#: file systems that read ahead as the queue of their device says: btrfs has a window of its own
WITH_A_QUEUE = ("ext4", "xfs")
#: base pages before what is asked for in a mapping that begins later
_BEGIN = 3
#: that are brought at once, and bytes: no less is read ahead unless somebody has set that (VM_READAHEAD_PAGES)
_MOST, _MOST_BYTES = 16, 128 * KIB
#: for a disk that others use, too
_READ_SECONDS = 10.0
_READ_AROUND_SECONDS = 0.1


@case(
    "POSIX_FADV_WILLNEED, readahead(2) and MADV_WILLNEED bring each page that their range has a byte of",
    "posix_fadvise(2) POSIX_FADV_WILLNEED; readahead(2); madvise(2) MADV_WILLNEED; mm/fadvise.c generic_fadvise()",
)
def brought(live: Live, file: KnownFile) -> None:
    base, block, whole, begin = live.base_page, block_size(live), file.contents.length, _BEGIN * live.base_page
    _expect_brought(
        live,
        file,
        (
            (begin, 1),
            (5 * base + 8, base),
            (7 * base - 1, 2),
            (block - base, 2 * base),
            (block // 2 + base, min(_MOST * base, _MOST_BYTES)),
            (whole - base // 2, base // 2),
        ),
    )
    file.expect("brought")
    _expect_refused(live, file, _WILLNEED)


def _expect_brought(live: Live, file: KnownFile, ranges: Sequence[tuple[int, int]]) -> None:
    """Expect each way to ask for what will be needed to bring all of each range: start, and length in bytes."""
    base, whole, begin = live.base_page, file.contents.length, _BEGIN * live.base_page
    actor, address = file.actor, file.map().address
    # of which no byte is touched
    later = actor.mmap(whole - begin, mmap.PROT_READ, mmap.MAP_SHARED, file.descriptor, begin)

    def advise(start: int, length: int) -> None:
        page = start // base * base
        actor.call("madvise", later + page - begin, length + start - page, MADV_WILLNEED)

    def need(start: int, length: int) -> None:
        actor.call("fadvise64", file.descriptor, start, length, _WILLNEED)

    def read_ahead(start: int, length: int) -> None:
        actor.call("readahead", file.descriptor, start, length)

    def is_brought(bring: Callable[[int, int], None], start: int, length: int) -> bool:
        file.evict()
        bring(start, length)
        wanted = range(start // base, (start + length - 1) // base + 1)
        return live.host.last_look(
            lambda: base_pages_in_memory(live, actor, address, wanted).issuperset(wanted), bool, _READ_SECONDS
        )

    for start, length in ranges:
        for bring in (need, read_ahead, advise):
            found = live.host.last_attempt(partial(is_brought, bring, start, length), bool)
            if not found:
                # each row of a kernel that does not would wait as long
                live.fail(f"whether {length} bytes at {start} are in memory, {bring.__name__}", True, found)


@partial(file_case, BROUGHT, on=WITH_A_QUEUE)(
    "POSIX_FADV_WILLNEED, readahead(2) and MADV_WILLNEED bring all of a range that is no longer than what the device is"
    " asked for at once, however little is read ahead of what is read",
    "readahead(2); Documentation/ABI/stable/sysfs-block max_sectors_kb, read_ahead_kb; mm/readahead.c"
    " force_page_cache_ra() (9491ae4aade6)",
)
def brought_beyond_the_window(live: Live, file: KnownFile) -> None:
    if not live.host.is_thrown_away():
        raise CannotRun("what a disk that others use reads ahead is left alone: who is killed does not put it back")
    base, whole = live.base_page, file.contents.length
    queue = BlockQueue.of(live, file.actor, file.descriptor)
    window, longest = 4 * base, queue.largest_request // base * base
    if longest < 2 * window:
        raise CannotRun("the device takes no more at once than what is read ahead")
    queue.read_ahead(window, file.actor, file.descriptor)
    begin, room = _BEGIN * base, whole - _BEGIN * base
    lengths = sorted({min(length, room) for length in (window + base, 2 * window, longest // 2, longest)})
    ranges = [(start, length) for length in lengths for start in (begin, whole - length) if length > window]
    _expect_brought(live, file, ranges)
    file.expect("brought")


@partial(file_case, BROUGHT, on=WITH_A_QUEUE, by=(Brought.WRITTEN,))(
    "a fault on a mapping of a file with MADV_RANDOM alone brings the base page that is touched, and none beside it,"
    " wherever it is in the file, mapped shared or private, and whichever are there already",
    "madvise(2) MADV_RANDOM; mm/filemap.c do_sync_mmap_readahead(), do_async_mmap_readahead()",
)
def brought_at_random(live: Live, file: KnownFile) -> None:
    base, whole, actor = live.base_page, file.contents.length, file.actor
    # a file system with larger blocks than base pages has no smaller folios (since Linux 6.12)
    block = max(1, live.host.file_system(file.directory).block_size // base)
    seen = file.map()
    there = partial(base_pages_in_memory, live, actor, seen.address, range(whole // base))

    def left() -> set[int]:
        file.evict()
        return there()

    # both ends, neighbours on both sides, and one that is there; with base pages of 64 KiB there may be 40 of them
    middle = whole // base // 2
    places = (middle, 0, whole // base - 1, middle + 1, middle - 1, 1, middle + 1)
    for kind in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):
        # a page that somebody has a hold of stays
        if live.host.last_look(left, not_):
            raise CannotRun("others keep pages of the file in memory")
        start = actor.mmap(whole, mmap.PROT_READ, kind, file.descriptor)
        actor.call("madvise", start, whole, mmap.MADV_RANDOM)
        touched = set[int]()
        for place in places:
            actor.read(start + place * base)
            touched |= {*range(place // block * block, (place // block + 1) * block)}
            # what is read around it is there a moment later
            live.host.pause(_READ_AROUND_SECONDS)
            beside = runs(there() - touched)
            if beside:
                live.fail(f"base pages that came with page {place} of {places}", [], beside)
        # memory that is short may take them, all of them it does not
        live.expect("whether any page that was touched is in memory", True, bool(there()))
        actor.call("munmap", start, whole)
    file.expect("brought at random")


@case(
    "POSIX_FADV_DONTNEED drops no page that has a byte beside its range, and all of a file where that is the range",
    "posix_fadvise(2) POSIX_FADV_DONTNEED; mm/fadvise.c generic_fadvise(); mm/truncate.c invalidate_mapping_pages()",
)
def dropped(live: Live, file: KnownFile) -> None:
    base, block, whole = live.base_page, block_size(live), file.contents.length
    actor, address, drop = file.actor, file.map().address, live.host.uapi.posix_fadv_dontneed
    every = range(whole // base)

    def gone_beside(start: int, length: int) -> list[range]:
        file.read(whole)
        before = base_pages_in_memory(live, actor, address, every)
        actor.call("fadvise64", file.descriptor, start, length, drop)
        may_go = range(-(-start // base), (start + length) // base)
        return runs(before - base_pages_in_memory(live, actor, address, every) - set(may_go))

    for start, length in (
        (0, base),
        (8, base),
        (base - 1, base + 2),
        (5 * base + 8, 3 * base - 16),
        (block // 2, block // 2),
        (block - base, 2 * base),
        (base, whole - 2 * base),
        (1, whole - 2),
        (block + 1, 1),
    ):
        beside = live.host.last_attempt(partial(gone_beside, start, length), not_)
        if beside:
            live.fail(f"pages that went beside {length} bytes at {start}", [], beside)

    def left_of_all() -> list[range]:
        file.evict()
        return runs(base_pages_in_memory(live, actor, address, every))

    live.expect("pages that stay of a whole file", [], live.host.last_attempt(left_of_all, not_))
    file.expect("dropped")
    _expect_refused(live, file, drop)


def _expect_refused(live: Live, file: KnownFile, advice: int) -> None:
    """Expect ``advice`` for a length below 0 to be refused, and so one that nobody knows."""
    for length, given in ((-1, advice), (live.base_page, _UNKNOWN)):
        live.expect_errno(errno.EINVAL, file.actor.call, "fadvise64", file.descriptor, 0, length, given)


class ThpBroughtRanges(LiveTest):
    def test_brought_ranges(self) -> None:
        self.run_area(BROUGHT)
