"""Ranges of files in huge pages: which base pages of them the kernel tells to be in memory."""

import errno
import mmap
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations, product

from hugepage_qa.cases.cache_counts import CACHESTAT, CACHESTAT_SINCE, cached_pages
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.file_contents import data_of
from hugepage_qa.cases.fragmentation import expect_no_node_short, with_blocks
from hugepage_qa.cases.hugetlb_files import HugeFile, open_file
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, runs
from hugepage_qa.cases.pages_in_memory import base_pages_in_memory
from hugepage_qa.cases.swapped import need_swap, parts_out
from hugepage_qa.cases.thp_memory import need_folios_of, pmd_size
from hugepage_qa.cases.thp_shared_memory import expect_mapped_whole, map_start, mount_tmpfs
from hugepage_qa.kernel.uapi import FALLOC_FL_KEEP_SIZE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

CACHED = Area("files/cached-ranges", sizes=Sizes.ONCE, uncleared=True)


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
                need_folios_of(live, size)
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
