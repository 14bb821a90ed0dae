"""Which pages of files in large folios cachestat(2) counts as dirty: those written since they were written back."""

import errno
from collections.abc import Callable
from functools import partial
from itertools import product

from hugepage_qa.cases.cache_counts import CACHESTAT, CACHESTAT_SINCE, cached_pages
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.file_contents import KnownFile
from hugepage_qa.cases.large_folios import DISKS, block_size, file_case
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.kernel.uapi import MS_SYNC
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest

DIRTY = Area("files/dirty-ranges", sizes=Sizes.ONCE, uncleared=True)

case = partial(file_case, DIRTY, since=CACHESTAT_SINCE)
#: btrfs of Linux 7.3.4 leaves the folio of 256 KiB in which a file is cut while that is dirty, marked so for good
_WITHOUT_BTRFS = tuple(disk for disk in DISKS if disk != "btrfs")
#: of sync_file_range(2): wait for what is being written, write, and wait for that
_WAIT_WRITE_WAIT = 7
_NONE = 0, 0

#: what has ``length`` bytes at ``start`` of a file, which is mapped, written back; it returns what its call does
_Sync = Callable[[KnownFile, Memory, int, int], int]


@case(
    "cachestat(2) counts each page of a range that was written, or stored to through a mapping, as in the cache and"
    " dirty, wherever in a folio it is; and none of them as dirty or under writeback once it was written back, by"
    " whichever call, nor any of the whole file once that was",
    f"{CACHESTAT}; fsync(2); msync(2); sync_file_range(2); mm/page-writeback.c __folio_start_writeback()",
    on=DISKS,
)
def written_and_written_back(live: Live, file: KnownFile) -> None:
    base, block, whole = live.base_page, block_size(live), file.contents.length
    memory = file.map()
    places = (0, base), (5 * base, 3 * base), (block - base, 2 * base), (whole - base, base), (0, whole)
    ways: tuple[_Sync, ...] = (_by_fsync, _by_msync, _by_range_twice if file.is_on("btrfs") else _by_range)
    for number, ((start, length), sync) in enumerate(product(places, ways)):
        write = partial(file.store, memory) if number % 2 else file.write
        pages = length // base
        with live.about(f"{length} bytes at {start}, {'stored' if number % 2 else 'written'}, {sync.__name__[1:]}"):

            def is_dirty(
                write: Callable[[int, int], None] = write, start: int = start, length: int = length
            ) -> tuple[int, int]:
                """Tell of what was written, unless somebody has all of the machine written back in this moment."""
                write(start, length)
                found = cached_pages(live, file.actor, file.descriptor, start, length)
                return found.cached, found.dirty

            found = live.host.last_attempt(is_dirty, (pages, pages).__eq__)
            live.expect("pages cached, dirty", (pages, pages), found)
            result = sync(file, memory, start, length)
            if result == -errno.ENOSYS:
                continue  # powerpc has sync_file_range2() instead
            live.expect("what it returns", 0, result)
            live.expect("pages dirty, under writeback then", _NONE, _unwritten(live, file, start, length))
        _by_fsync(file, memory, 0, whole)
        live.expect("pages dirty, under writeback of a file that was written back", _NONE, _unwritten(live, file))
    memory.unmap()
    file.expect("written back")


@case(
    "cachestat(2) counts no page of what was cut off a file, dirty before or not, that begins with a folio; written"
    " back no page of the file is dirty, wherever in a folio it ends, nor of one in which a hole was left",
    f"{CACHESTAT}; ftruncate(2); fallocate(2) FALLOC_FL_PUNCH_HOLE; mm/truncate.c truncate_inode_pages_range()",
    on=_WITHOUT_BTRFS,
)
def cut_and_written_back(live: Live, file: KnownFile) -> None:
    base, block, whole = live.base_page, block_size(live), file.contents.length
    ends = whole - base, block + base + 8, block, block - base, block // 2 + 8, 5 * base, base, 8, 0
    for end, is_dirty in product(ends, (True, False)):
        with live.about(f"cut to {end} bytes, {'dirty' if is_dirty else 'written back'} before"):
            file.truncate(0)
            live.expect("pages of an empty file", 0, cached_pages(live, file.actor, file.descriptor).cached)
            file.write(0, whole)
            if not is_dirty:
                file.actor.call("fsync", file.descriptor)
            file.truncate(end)
            # folios that begin before the end may be kept whole while somebody has a hold of them
            behind = block if 0 < end <= block else -(-end // block) * block
            found = cached_pages(live, file.actor, file.descriptor, behind)
            live.expect("pages cached, dirty, under writeback behind it", (0, *_NONE), found[:3])
            file.actor.call("fsync", file.descriptor)
            live.expect("pages dirty, under writeback then", _NONE, _unwritten(live, file))
    file.truncate(0)
    file.write(0, whole)
    for start, length in ((0, base), (5 * base, 3 * base), (block - base, 2 * base), (block // 2 + 8, base)):
        with live.about(f"a hole of {length} bytes at {start}"):
            file.write(start // base * base, 2 * base)
            file.punch(start, length)
            file.actor.call("fsync", file.descriptor)
            counted = _unwritten(live, file)
            is_known = counted != _NONE and file.is_on("ext4") and _is_clean(live, file)
            known = {Quirk.HOLE_STAYS_DIRTY: counted} if is_known else None
            live.expect("pages dirty, under writeback then", _NONE, counted, known)
    file.expect("with holes")


def _is_clean(live: Live, file: KnownFile) -> bool:
    """Tell whether all of the file can be dropped: what is dirty cannot (posix_fadvise(2) POSIX_FADV_DONTNEED)."""
    file.actor.call("fadvise64", file.descriptor, 0, 0, live.host.uapi.posix_fadv_dontneed)
    return not cached_pages(live, file.actor, file.descriptor).cached


def _unwritten(live: Live, file: KnownFile, start: int = 0, length: int = 0) -> tuple[int, int]:
    found = cached_pages(live, file.actor, file.descriptor, start, length)
    return found.dirty, found.written


def _by_fsync(file: KnownFile, _memory: Memory, _start: int, _length: int) -> int:
    return file.actor.result("fsync", file.descriptor)


def _by_msync(file: KnownFile, memory: Memory, start: int, length: int) -> int:
    return file.actor.result("msync", memory.address + start, length, MS_SYNC)


def _by_range(file: KnownFile, _memory: Memory, start: int, length: int) -> int:
    return file.actor.result("sync_file_range", file.descriptor, start, length, _WAIT_WRITE_WAIT)


def _by_range_twice(file: KnownFile, memory: Memory, start: int, length: int) -> int:
    """Wait for what another thread compresses, too: it is not yet under writeback when the first call has written it.

    btrfs_fdatawrite_range() of btrfs, which sync_file_range(2) does not call.
    """
    return _by_range(file, memory, start, length) or _by_range(file, memory, start, length)


class ThpDirtyRanges(LiveTest):
    def test_dirty_ranges(self) -> None:
        self.run_area(DIRTY)
