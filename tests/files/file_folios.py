"""Large folios of files, as ext4, XFS, btrfs and tmpfs have them: what files hold through all that changes them."""

import errno
import mmap
import signal
from collections.abc import Callable, Sized
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.debugfs import write_debugfs
from hugepage_qa.cases.file_contents import TMPFS, KnownFile
from hugepage_qa.cases.file_transfers import READS
from hugepage_qa.cases.folio_layout import folios_of_all
from hugepage_qa.cases.frames import largest_folio
from hugepage_qa.cases.khugepaged_clock import PATIENT_SCANS, await_khugepaged, let_rest, quicken
from hugepage_qa.cases.khugepaged_work import put_to_work
from hugepage_qa.cases.large_folios import DISKS, block_size, file_case, parts_of_folios
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.madv_collapse import collapse_memory
from hugepage_qa.cases.mapped_memory import Memory, runs
from hugepage_qa.cases.pages_in_memory import base_pages_in_memory
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_POPULATE_READ
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused
from hugepage_qa.sizes import KIB, MIB

FILES = Area("files/file-folios", sizes=Sizes.ONCE, uncleared=True)

FALLOCATE = "fallocate(2)"
#: madvise(2) MADV_COLLAPSE: not for files of this kind, or not now
_NOT_COLLAPSED = (errno.EINVAL, errno.EAGAIN, errno.EBUSY, errno.ENOMEM)
SMALLER = "mm/khugepaged.c collapse_file(); mm/huge_memory.c file_thp_enabled()"
#: what is written at once, and is in a folio of its own then
_PIECE = 64 * KIB

#: of which whole huge pages are read, with large folios or before they had any; btrfs has folios of 256 KiB
_READ_WHOLE = ("ext4", "xfs")
#: newer kernels read no more of a larger huge page
_BROUGHT = 2 * MIB
RANDOM = (
    "madvise(2) MADV_HUGEPAGE, MADV_RANDOM; mm/filemap.c do_sync_mmap_readahead() (4687fdbb805a); mm/readahead.c"
    " page_cache_ra_order()"
)
_AT_RANDOM = (
    "a fault on memory of a file that is advised to have huge pages and to be accessed at random brings the huge page"
    " that it is in, or 2 MiB, up to the end of the file, and no base page beside it, whichever it is and whichever are"
    " there already"
)
#: what is read is in memory a moment later, and so is what should not be
_READ_SECONDS = 0.1

case = partial(file_case, FILES)


@case(
    "a hole in a file is zero, whatever part of a folio it is, and the rest holds what it held",
    f"{FALLOCATE} FALLOC_FL_PUNCH_HOLE; mm/truncate.c truncate_inode_partial_folio()",
)
def holes(live: Live, file: KnownFile) -> None:
    for first, length in parts_of_folios(live):
        file.punch(first, length)
        file.expect(f"with a hole of {length} bytes at {first}")
        file.write(first, length)
    file.expect("filled again")


@case(
    "a range of a file that is made zero is zero, whatever part of a folio it is, and the rest holds what it held",
    f"{FALLOCATE} FALLOC_FL_ZERO_RANGE; mm/truncate.c truncate_pagecache_range()",
    on=DISKS,
)
def zeroes(live: Live, file: KnownFile) -> None:
    for first, length in parts_of_folios(live):
        file.zero(first, length)
        file.expect(f"with {length} bytes of zeroes at {first}")


@case(
    "a read, whichever call makes it, gives what stands where it begins, wherever in a folio or across two, and ends"
    " with the file",
    "read(2); readv(2); splice(2); sendfile(2); copy_file_range(2); mm/filemap.c filemap_read(); mm/shmem.c"
    " shmem_file_read_iter()",
)
def read_in_parts(live: Live, file: KnownFile) -> None:
    base, whole = live.base_page, file.contents.length
    block = block_size(live)
    for first in (0, 8, base, 3 * base + 8, block // 2 - 8, block - base, block - 8, whole - base, whole - 8):
        for length, read in product((8, base, 2 * base + 16), READS):
            with live.about(f"{length} bytes from {first} on, {read.__name__}"):
                file.expect_read(read, first, length)


@case(
    "a fault on memory of a file that is advised to have huge pages brings all of the huge page that it is in, or 2 MiB"
    " of a larger one: what is in front of it and behind it",
    "madvise(2) MADV_HUGEPAGE; mm/filemap.c do_sync_mmap_readahead() (4687fdbb805a)",
    on=_READ_WHOLE,
    since="5.18",
)
def brought_around_a_fault(live: Live, file: KnownFile) -> None:
    base, brought = live.base_page, min(pmd_size(live), _BROUGHT)
    if pmd_size(live) > block_size(live):
        raise CannotRun(f"older kernels read a whole huge page, here {pmd_size(live) >> 20} MiB: too much for a case")
    wanted = runs(set(range(brought // base)))

    def in_memory_by(place: int) -> tuple[Memory, list[range]]:
        """Have one byte touched at ``place`` of what nobody has in memory; return which base pages are there then."""
        memory = file.map()
        memory.advise(MADV_HUGEPAGE)

        def there() -> list[range]:
            return runs(base_pages_in_memory(live, memory.actor, memory.address, range(brought // base)))

        _expect_evicted(live, file, there)
        memory.actor.read(memory.address + place)
        # what is being read is there a moment later
        return memory, live.host.last_look(there, wanted.__eq__)

    for place in (brought // 5 * 3 // base * base, brought - base, base, 0):
        memory, found = in_memory_by(place)
        if found != wanted:
            # each of the other places would be waited for as long
            live.fail(f"base pages in memory when that at {place} was touched", wanted, found)
        file.expect_mapped(memory)
        memory.unmap()


@FILES.case(
    f"{_AT_RANDOM}, on XFS",
    RANDOM,
    since="5.18",
)
def brought_at_random_on_xfs(live: Live) -> None:
    _expect_brought_at_random(live, "xfs")


@FILES.case(
    f"{_AT_RANDOM}, on ext4",
    RANDOM,
    since="5.18",
)
def brought_at_random_on_ext4(live: Live) -> None:
    _expect_brought_at_random(live, "ext4")


def _expect_brought_at_random(live: Live, file_system: str) -> None:
    size, base = pmd_size(live), live.base_page
    if size > block_size(live):
        raise CannotRun(f"older kernels read a whole huge page, here {size >> 20} MiB: too much for a case")
    # which of the two is read differs between kernels
    least, most = min(size, _BROUGHT), max(size, _BROUGHT)
    # the last of them not as a whole
    length = 3 * most + most // 4 + base // 2
    file = KnownFile(live, live.actor(), live.host.disk(file_system), length)
    file.write(0, length // 8 * 8)
    every = range(-(-length // base))
    for places in (
        (most, 0, 3 * most, 2 * most),
        (3 * most - base, 2 * most - base, most - base, length // base * base),
        (most // 2, 2 * most + most // 3 // base * base),
    ):
        memory = file.map()
        for advice in (mmap.MADV_RANDOM, MADV_HUGEPAGE):
            memory.advise(advice)
        there = partial(base_pages_in_memory, live, memory.actor, memory.address, every)
        _expect_evicted(live, file, there)
        wanted, allowed = set[int](), set[int]()
        for place in places:
            memory.actor.read(memory.address + place // 8 * 8)
            wanted |= _pages_about(place, least, base) & set(every)
            allowed |= _pages_about(place, most, base)
            live.host.last_look(there, wanted.issubset)
            live.host.pause(_READ_SECONDS)
            found = there()
            with live.about(f"{place} of {places}"):
                live.expect("base pages that are not in memory", [], runs(wanted - found))
                live.expect("base pages in memory beside", [], runs(found - allowed))
        file.expect_mapped(memory)
        memory.unmap()


def _pages_about(place: int, size: int, base: int) -> set[int]:
    """Return the base pages of the ``size`` bytes, one huge page, that ``place`` is in."""
    start = place // size * size
    return set(range(start // base, (start + size) // base))


def _expect_evicted(live: Live, file: KnownFile, there: Callable[[], Sized]) -> None:
    """Have no base page of ``file`` in memory. Raises CannotRun where somebody keeps one."""

    def left() -> Sized:
        file.evict()
        return there()

    # a page that somebody has a hold of stays
    if live.host.last_look(left, lambda pages: not pages):
        raise CannotRun("others keep pages of the file in memory")


@case(
    "a file that is made shorter within a folio, and longer again, is zero behind the shorter end",
    "ftruncate(2); mm/truncate.c truncate_inode_pages_range(), truncate_inode_partial_folio()",
)
def shorter_and_longer(live: Live, file: KnownFile) -> None:
    whole = file.contents.length
    for end in (whole - live.base_page // 2, block_size(live) + live.base_page, block_size(live) // 2 + 8):
        file.truncate(end)
        file.expect(f"{end} bytes long")
        file.truncate(whole)
        file.expect(f"{end} bytes long and longer again")


@case(
    "what is taken out of a file and put in moves what is behind it, and nothing else",
    f"{FALLOCATE} FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_INSERT_RANGE",
    on=("ext4", "xfs"),
)
def taken_out_and_put_in(live: Live, file: KnownFile) -> None:
    base, half = live.base_page, block_size(live) // 2
    for first, length in ((3 * base, base), (base, half)):
        file.take_out(first, length)
        file.expect(f"{length} bytes taken out at {first}")
        file.put_in(first + base, length)
        file.expect(f"{length} bytes put in at {first + base}")


@case(
    "what one process stores into a file that it maps, and another one writes, each sees of the other at once",
    "mmap(2) MAP_SHARED; write(2); mm/filemap.c generic_perform_write()",
)
def stored_and_written(live: Live, file: KnownFile) -> None:
    memory = file.map()
    other = memory.fork()
    for first, length in parts_of_folios(live):
        file.store(other, first, length)
        file.expect(f"{length} bytes stored at {first}")
        file.write(first + length // 2, length)
        file.expect(f"{length} bytes written at {first + length // 2}")


@case(
    "a file that was copied and the copy hold what they held, whichever of them is written then",
    "copy_file_range(2); fs/remap_range.c",
)
def copied(live: Live, file: KnownFile) -> None:
    copy = file.copy()
    copy.expect("of a copy")
    for first, length in parts_of_folios(live):
        file.write(first, length)
        copy.write(first + length, length)
        file.expect(f"beside a copy, {length} bytes written at {first}")
        copy.expect(f"of a copy, {length} bytes written at {first + length}")


@case(
    "split_huge_pages splits the folios of a file, which holds what it held, what was not written back, too",
    "mm/huge_memory.c split_huge_pages_in_file(), since fbe37501b252",
    since="5.13",
)
def split(live: Live, file: KnownFile) -> None:
    let_rest(live)
    memory = file.map()
    file.store(memory, live.base_page, block_size(live) // 2)
    pages = file.contents.length // live.base_page
    which = f"{file.path},0x0,{pages:#x}"

    def largest() -> int:
        write_debugfs(live, "split_huge_pages", which)
        # nothing of it is mapped then
        file.expect_mapped(memory)
        return max(map(len, folios_of_all(live, Memory(live, file.actor, memory.address, pages, live.base_page))))

    if file.is_on(TMPFS):
        # what somebody has a hold of is not split
        live.expect("base pages of the largest folio after a split", 1, live.host.last_look(largest, (1).__eq__))
    else:
        # dirty folios may be under way to the disk
        write_debugfs(live, "split_huge_pages", which)
    file.expect("after a split")


@case(
    "MADV_COLLAPSE maps a file as a whole or refuses, and leaves what it holds, and what is stored then",
    "madvise(2) MADV_COLLAPSE; mm/khugepaged.c collapse_file()",
    since="6.1",
)
def collapsed(live: Live, file: KnownFile) -> None:
    memory = file.map()
    file.punch(live.base_page, live.base_page)
    expected = _mapped_whole(memory)
    try:
        collapse_memory(live, memory.part(0))
        expected = memory.size
    except Refused as refusal:
        if refusal.errno not in _NOT_COLLAPSED:
            raise
    live.expect("bytes of the first block that are mapped as a whole", expected, _mapped_whole(memory))
    file.expect("after MADV_COLLAPSE")
    file.store(memory, live.base_page * 3, live.base_page)
    file.expect("after a store behind it")


@case(
    "an access behind the last page of a file gets SIGBUS, though a large folio reaches beyond it, and changes nothing",
    "mmap(2) SIGBUS; mm/filemap.c filemap_fault(), filemap_map_pages()",
    on=DISKS,
)
def behind_the_end(live: Live, file: KnownFile) -> None:
    end = block_size(live) // 2 + live.base_page
    memory = file.map()
    memory.actor.sum(memory.address, file.contents.length)
    file.truncate(end)
    memory.actor.sum(memory.address, end)
    for place in (end, end + live.base_page, block_size(live) - 8, block_size(live)):
        live.expect_signal(signal.SIGBUS, memory.actor.read, memory.address + place)
        live.expect_signal(signal.SIGBUS, memory.actor.write, memory.address + place, 1)
    file.expect("after accesses behind its end")


@FILES.case(
    "khugepaged and MADV_COLLAPSE make a huge page of smaller large folios of a file on XFS, which holds what it held",
    SMALLER,
    since="7.2",
)
def collapsed_smaller_folios_on_xfs(live: Live) -> None:
    _expect_smaller_folios_collapsed(live, "xfs")


@FILES.case(
    "khugepaged and MADV_COLLAPSE make a huge page of smaller large folios of a file on ext4, which holds what it held",
    SMALLER,
    since="7.2",
)
def collapsed_smaller_folios_on_ext4(live: Live) -> None:
    _expect_smaller_folios_collapsed(live, "ext4")


def _expect_smaller_folios_collapsed(live: Live, file_system: str) -> None:
    directory = live.host.disk(file_system)
    for by_advice in (False, True):
        put_to_work(live)
        let_rest(live)
        file = KnownFile(live, live.actor(), directory, pmd_size(live))
        for first in range(0, pmd_size(live), _PIECE):
            file.write(first, _PIECE)
        # what is dirty is left alone
        file.actor.call("fsync", file.descriptor)
        memory = file.map()
        memory.actor.sum(memory.address, memory.length)
        largest = largest_folio(live, file.actor, memory.present_frames(1))
        if largest == 1:
            raise CannotRun(f"this kernel has no large folios on {file_system} for writes of {_PIECE >> 10} KiB")
        live.expect(f"FilePmdMapped before, folios of up to {largest} base pages", 0, _mapped_whole(memory))
        if by_advice:
            collapse_memory(live, memory)
        else:
            quicken(live)
            memory.advise(MADV_HUGEPAGE)
            await_khugepaged(live, partial(_is_mapped_whole, memory), PATIENT_SCANS)
        live.expect(f"FilePmdMapped, by advice {by_advice}", memory.length, _mapped_whole(memory))
        file.expect(f"collapsed, by advice {by_advice}")


def _is_mapped_whole(memory: Memory) -> bool:
    return _mapped_whole(memory) == memory.length


def _mapped_whole(memory: Memory) -> int:
    memory.advise(MADV_POPULATE_READ, 0, 1)
    found = memory.smaps()
    return found.shmem_pmd_mapped + found.file_pmd_mapped


class ThpFileFolios(LiveTest):
    def test_file_folios(self) -> None:
        self.run_area(FILES)
