"""Ranges of files in large folios: which pages of them are in memory, brought there, dropped, or written back."""

import errno
import mmap
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations, product
from operator import not_

from hugepage_qa.cases.block_queue import BlockQueue
from hugepage_qa.cases.cache_counts import CACHESTAT, CACHESTAT_SINCE, cached_pages
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.file_contents import Brought, KnownFile, data_of
from hugepage_qa.cases.fragmentation import expect_no_node_short, with_blocks
from hugepage_qa.cases.frames import unwritten_places
from hugepage_qa.cases.hugetlb_files import HugeFile, open_file
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.large_folios import DISKS, block_size, file_case
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, runs
from hugepage_qa.cases.pages_in_memory import base_pages_in_memory
from hugepage_qa.cases.swapped import need_swap, parts_out
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_shared_memory import expect_mapped_whole, let_only_pmd_inherit, map_start, mount_tmpfs
from hugepage_qa.kernel.uapi import FALLOC_FL_KEEP_SIZE, MADV_WILLNEED, MS_ASYNC, MS_INVALIDATE, MS_SYNC
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

CACHED = Area("files/cached-ranges", sizes=Sizes.ONCE, uncleared=True)

case = partial(file_case, CACHED, on=DISKS)
#: of sync_file_range(2): wait for what is being written, write, and wait for that
_WAIT_WRITE_WAIT = 7
#: of posix_fadvise(2); what others of them are differs between architectures
_WILLNEED, _UNKNOWN = 3, 99
#: file systems that read ahead as the queue of their device says: btrfs has a window of its own
WITH_A_QUEUE = ("ext4", "xfs")
#: base pages before what is asked for in a mapping that begins later
_BEGIN = 3
#: that are brought at once: less than what is read ahead
_MOST = 16
#: for a disk that others use, too
_READ_SECONDS = 10.0
_READ_AROUND_SECONDS = 0.1


@case(
    "msync(2) MS_SYNC and sync_file_range(2) have each page of their range written back, from wherever in a file a"
    " mapping begins, and with what is not mapped between them those of all mappings, though that is ENOMEM",
    "msync(2); sync_file_range(2); mm/msync.c; fs/sync.c sync_file_range()",
)
def written_back(live: Live, file: KnownFile) -> None:
    base, block, whole = live.base_page, block_size(live), file.contents.length
    actor, first = file.actor, 3 * base
    # what is mapped from the middle of the file on, a hole of two pages, and what is mapped behind that
    gap = whole // 2 // base * base
    memory = file.map()
    actor.call("munmap", memory.address, first)
    actor.call("munmap", memory.address + gap, 2 * base)

    def by_msync(start: int, length: int) -> int:
        return actor.result("msync", memory.address + start, length, MS_SYNC)

    def by_range(start: int, length: int) -> int:
        return actor.result("sync_file_range", file.descriptor, start, length, _WAIT_WRITE_WAIT)

    for start, length in (
        (first, base),
        (first, 5 * base),
        (gap - base, base),
        (gap - 2 * base, 6 * base),
        (block - base, 2 * base),
        (whole - base, base),
        (first, whole - first),
    ):
        over_the_gap = start < gap < start + length
        for sync, expected in ((by_msync, -errno.ENOMEM if over_the_gap else 0), (by_range, 0)):
            parts = [(start, gap - start), (gap + 2 * base, start + length - gap - 2 * base)]
            parts = parts if over_the_gap else [(start, length)]
            for at, size in parts:
                file.store(memory, at, size)
            found = sync(start, length)
            if sync is by_range and found == -errno.ENOSYS:
                continue  # powerpc has sync_file_range2() instead
            with live.about(f"{sync.__name__[3:]}, {length} bytes at {start}"):
                live.expect("what it returns", expected, found)
                pages = sorted(
                    {page for at, size in parts for page in (at, at + size // 2 // base * base, at + size - base)}
                )
                # a page that moves meanwhile leaves its frame to another one
                dirty = live.host.last_look(
                    partial(unwritten_places, live, memory, pages), lambda found: not found, 1.0
                )
                live.expect("pages that are still dirty", [], dirty)
    actor.call("munmap", memory.address, memory.length)
    file.expect("written back")


@CACHED.case(
    "msync(2) tells what is wrong: a start within a page, two ways at once or unknown ones, a range that goes round the"
    " end of all addresses, what is not mapped, and locked memory that is to be invalidated; nothing is no error",
    "msync(2) EBUSY, EINVAL, ENOMEM; mm/msync.c",
)
def wrong_ranges(live: Live) -> None:
    let_only_pmd_inherit(live)
    actor, base, size = live.actor(), live.base_page, pmd_size(live)
    file = live.open(actor, f"{mount_tmpfs(live, 'always')}/file")
    memory = map_start(live, actor, file, 3)
    with_blocks(live, size, 3)
    memory.fill()
    start = memory.address
    actor.call("munmap", start + size, base)
    actor.call("mlock", start + 2 * size + base, base)
    locked = start + 2 * size + base
    for address, length, flags, expected in (
        (start, size, MS_SYNC, 0),
        (start, size - 1, MS_ASYNC, 0),
        (start, size, 0, 0),
        (start, 0, MS_SYNC, 0),
        (start + size, 0, MS_SYNC, 0),
        (start + 8, 0, MS_SYNC, errno.EINVAL),
        (start + base // 2, base, MS_SYNC, errno.EINVAL),
        (start, base, MS_SYNC | MS_ASYNC, errno.EINVAL),
        (start, base, 8, errno.EINVAL),
        (start, -base, MS_SYNC, errno.ENOMEM),
        (start + size, base, MS_SYNC, errno.ENOMEM),
        (start + size, base, MS_ASYNC, errno.ENOMEM),
        (start + size - base, base + 1, MS_SYNC, errno.ENOMEM),
        (start + size - base, 3 * base, MS_ASYNC, errno.ENOMEM),
        (start + size + base, size, MS_SYNC | MS_INVALIDATE, 0),
        (locked, base, MS_SYNC | MS_INVALIDATE, errno.EBUSY),
        (locked - base, 2 * base, MS_INVALIDATE, errno.EBUSY),
        (locked, base, MS_SYNC, 0),
        (locked - base, base, MS_INVALIDATE, 0),
        (locked + base, base, MS_INVALIDATE, 0),
    ):
        found = -actor.result("msync", address, length, flags)
        live.expect(f"errno of {length} bytes from {address - start} on, flags {flags}", expected, found)
    live.expect("words that changed", 0, memory.wrong(0, size) + memory.wrong(size + base, 2 * size - base))


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
            (block // 2 + base, _MOST * base),
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


@partial(file_case, CACHED, on=WITH_A_QUEUE)(
    "POSIX_FADV_WILLNEED, readahead(2) and MADV_WILLNEED bring all of a range that is no longer than what the device is"
    " asked for at once, however little is read ahead of what is read",
    "readahead(2); Documentation/ABI/stable/sysfs-block max_sectors_kb, read_ahead_kb; mm/readahead.c"
    " force_page_cache_ra() (9491ae4aade6)",
)
def brought_beyond_the_window(live: Live, file: KnownFile) -> None:
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


@partial(file_case, CACHED, on=WITH_A_QUEUE, by=(Brought.WRITTEN,))(
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

    # in the middle, both ends, neighbours on both sides, and one that is there
    places = (100, 0, whole // base - 1, 101, 99, 1, 101)
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


@CACHED.case(
    "mincore(2) tells of no page that fallocate(2) gave to a file of a tmpfs, behind its end too, and that nobody has"
    " filled, read(2) or not, wherever in a huge page; and of each one that was written or touched, with which all of a"
    " huge page is; lseek(2) finds data where that is",
    "mincore(2); fallocate(2); lseek(2) SEEK_DATA; mm/mincore.c mincore_page(); mm/shmem.c shmem_fallocate(),"
    " shmem_get_folio_gfp(), shmem_write_end(); mm/filemap.c mapping_seek_hole_data()",
    since="5.15",  # 050dcb5c85bb: before, a huge page was filled as soon as two pages of it were allocated
)
def allocated_and_not_filled(live: Live) -> None:
    let_nobody_else_act(live)
    base, size = live.base_page, pmd_size(live)
    allocated = (0, size), (0, 3 * size), (5 * base, 3 * base), (size - base, 2 * base), (2 * size + base + WORD, 1)
    for huge, (start, length), behind in product(("always", "never"), allocated, (False, True)):
        with live.about(f"huge={huge}, {length} bytes from {start} on{', behind the end' if behind else ''}"):
            _expect_filled_alone(live, huge, start, length, behind=behind)


def _expect_filled_alone(live: Live, huge: str, start: int, length: int, *, behind: bool) -> None:
    """Expect mincore(2) to tell of what is filled alone of a file that ``length`` bytes from ``start`` were given."""
    base, size, actor = live.base_page, pmd_size(live), live.actor()
    with_blocks(live, size, 4 if huge == "always" else 0)
    descriptor = live.open(actor, f"{mount_tmpfs(live, huge)}/file")
    memory = map_start(live, actor, descriptor, 3)
    at_first = 0 if behind else memory.length
    actor.call("ftruncate", descriptor, at_first)
    actor.call("fallocate", descriptor, FALLOC_FL_KEEP_SIZE, start, length)
    filled = set[int]()

    def expect(what: str, of_file: int = memory.length) -> None:
        wanted = runs(filled)

        def told() -> list[range]:
            return runs(base_pages_in_memory(live, actor, memory.address, range(memory.length // base)))

        # while a page moves it is not told of
        found = live.host.last_look(told, wanted.__eq__)
        if found != wanted:
            if huge == "always":
                expect_no_node_short(live, size, 3)
            # each of the others would be waited for as long
            live.fail(f"base pages in memory, {what}", wanted, found)
        data = [range(first // base, end // base) for first, end in data_of(live, actor, descriptor, of_file)]
        live.expect(f"base pages that lseek(2) finds as data, {what}", wanted, data)

    expect("allocated", at_first)
    actor.call("ftruncate", descriptor, memory.length)
    expect("in the file")
    buffer = actor.mmap(size, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for offset in range(0, memory.length, size):
        live.expect("bytes read", size, actor.call("pread64", descriptor, buffer, size, offset))
        live.expect("words read that are not zero", 0, actor.nonzero(buffer, size))
    expect("read")
    last = start + length - 1
    acts: tuple[tuple[str, int, int, Callable[[int], int]], ...] = (
        ("written", last, 1, lambda at: actor.call("pwrite64", descriptor, b"x", 1, at)),
        ("touched", start, 0, lambda at: actor.read(memory.address + at // base * base)),
    )
    for what, at, result, act in acts:
        live.expect(f"whether any page is mapped before one is {what}", False, memory.smaps().rss > 0)
        live.expect(f"what comes of the page that is {what}", result, act(at))
        unit = size if huge == "always" else base
        filled |= set(range(at // unit * unit // base, (at // unit + 1) * unit // base))
        expect(what)
    live.expect("whether any page is mapped that was touched", True, memory.smaps().rss > 0)
    actor.end()


@CACHED.case(
    "cachestat(2) counts each page that its range has a byte of, in huge pages, base pages, and holes between them;"
    " none of a tmpfs is dirty, and no flag is known",
    CACHESTAT,
    since=CACHESTAT_SINCE,
)
def counted(live: Live) -> None:
    _expect_counted(live)


@CACHED.case(
    "cachestat(2) counts each page that its range has a byte of and that is in swap, huge before or not, as evicted",
    CACHESTAT,
    since=CACHESTAT_SINCE,
)
def counted_in_swap(live: Live) -> None:
    need_swap(live, pmd_size(live))
    _expect_counted(live, is_out=True)


def _expect_counted(live: Live, *, is_out: bool = False) -> None:
    """Expect cachestat(2) to be right about files of a tmpfs, with the last part of them in swap if it ``is_out``."""
    let_nobody_else_act(live)
    base, size = live.base_page, pmd_size(live)
    for huge in ("always", "never"):
        with_blocks(live, size, 2 if huge == "always" else 0)
        actor = live.actor()
        file = open_file(live, f"{mount_tmpfs(live, huge)}/file", actor)
        memory = map_start(live, actor, file.descriptor, 4)
        # a huge page, a hole, another one, and a hole to the end
        parts = [(0, size), (2 * size, size)]
        if huge == "never":
            parts = [(0, size - base), (size + base, size - base), (2 * size + 3 * base, 8 * base)]
        for start, length in parts:
            actor.fill(memory.address + start, length, WORD, 1 + start)
        expect_mapped_whole(live, memory, 2 if huge == "always" else 0, f"huge={huge}")
        if is_out:
            out = parts[-1]

            def gone(out: tuple[int, int] = out, actor: Actor = actor, file: HugeFile = file) -> bool:
                return cached_pages(live, actor, file.descriptor, *out).evicted == out[1] // base

            live.host.wait_until(partial(parts_out, live, memory, [out], gone))
        with live.about(f"huge={huge}"):
            _expect_ranges(live, file, parts, parts[-1:] if is_out else [])
        actor.end()


def _expect_ranges(
    live: Live, file: HugeFile, parts: Sequence[tuple[int, int]], out: Sequence[tuple[int, int]]
) -> None:
    """Expect cachestat(2) of many ranges of ``file`` to count ``parts`` alone, and these ``out`` as evicted."""
    base, size = live.base_page, pmd_size(live)
    places = 0, base - 8, 5 * base, size - base, size - 1, size, size + base, 2 * size, 2 * size + 5 * base, 3 * size
    spans = [(start, end - start) for start, end in combinations((*places, 4 * size), 2)]
    for start, length in (*spans, *((place, 1) for place in places), *((place, 0) for place in places)):
        first, end = start // base, -(-(start + (length or 4 * size - start)) // base)
        everything, gone = (
            sum(max(min(end, (at + of) // base) - max(first, at // base), 0) for at, of in each)
            for each in (parts, out)
        )
        cached, dirty, written, evicted, recently = cached_pages(live, file.actor, file.descriptor, start, length)
        with live.about(f"{length} bytes at {start}"):
            # memory that is short evicts others, too
            live.expect("pages, cached and evicted", everything, cached + evicted)
            live.expect(f"evicted pages are {gone} at least: {evicted}", True, gone <= evicted)
            live.expect("dirty pages, and pages under writeback", (0, 0), (dirty, written))
            live.expect(f"recently evicted pages are {evicted} at most: {recently}", True, recently <= evicted)
    live.expect_errno(errno.EINVAL, cached_pages, live, file.actor, file.descriptor, 0, base, flags=1)


class ThpCachedRanges(LiveTest):
    def test_cached_ranges(self) -> None:
        self.run_area(CACHED)
