"""Files in large folios that are written through their mappings: what reaches the disk."""

import os
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.file_contents import Brought, KnownFile, bring
from hugepage_qa.cases.large_folios import DISKS, SMALL_BLOCKS, block_size, file_case, parts_of_folios
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MS_SYNC
from hugepage_qa.plugins.avocado_test import LiveTest

STORED = Area("files/stored-folios", sizes=Sizes.ONCE, uncleared=True)

case = partial(file_case, STORED, on=DISKS)


@case(
    "what is stored into a file that is mapped, all of it and then parts of folios, is read past the page cache when it"
    " was synced, each time",
    "msync(2) MS_SYNC; fsync(2); open(2) O_DIRECT; mm/rmap.c page_vma_mkclean_one()",
)
def synced_again(live: Live, file: KnownFile) -> None:
    # the read has written back what is dirty (kiocb_write_and_wait()): it misses what nobody marked as such any more
    memory, length = file.map(), file.contents.length
    for call, *arguments in (("msync", memory.address, length, MS_SYNC), ("fsync", file.descriptor)):
        for first, stored in ((0, length), *parts_of_folios(live), (0, length)):
            file.store(memory, first, stored)
            file.actor.call(call, *arguments)
            with live.about(f"{call}, {stored} bytes stored at {first}"):
                file.expect_read(partial(_read_from_the_disk, live), 0, length)


def _read_from_the_disk(live: Live, file: KnownFile, address: int, first: int, length: int) -> int:
    descriptor = live.open(file.actor, file.path, os.O_RDONLY | live.host.uapi.o_direct)
    found = file.actor.call("pread64", descriptor, address, length, first)
    file.actor.call("close", descriptor)
    return found


@case(
    "what is stored where a file has a hole, or zeroes that are allocated, once it was read there, is kept, whichever"
    " parts of a folio it is",
    "mmap(2) MAP_SHARED; fs/iomap/buffered-io.c iomap_page_mkwrite(); fallocate(2) FALLOC_FL_ZERO_RANGE",
)
def stored_over_nothing(live: Live, file: KnownFile) -> None:
    length, half = file.contents.length, block_size(live) // 2
    for leave in (file.punch, file.zero):
        for first, stored in ((0, length), (live.base_page, half), *parts_of_folios(live)):
            leave(0, length)
            file.evict()
            memory = file.map()
            memory.advise(MADV_HUGEPAGE)
            live.expect("words that are not zero before", 0, file.actor.nonzero(memory.address, length))
            file.store(memory, first, stored)
            memory.unmap()
            file.expect(f"with {stored} bytes stored at {first}")


@case(
    "what is stored behind the end of a file, in the rest of its last base page, is not of the file: when that is"
    " longer, by ftruncate(2), by a write behind it or by fallocate(2), it is zero there, wherever in a folio that is,"
    " also where it was mapped before",
    "mmap(2); ftruncate(2); mm/truncate.c pagecache_isize_extended()",
    on=(*DISKS, SMALL_BLOCKS),
    by=(Brought.ADVISED,),
    since="7.3",  # ext4 clears the rest of a block since, too (ext4_block_zero_eof())
)
def stored_behind_the_end(live: Live, file: KnownFile) -> None:
    base, block, whole = live.base_page, block_size(live), file.contents.length
    for end, grow in product((block - base // 4 * 3 + WORD, block // 2 + WORD, base // 2), _WAYS_TO_GROW):
        with live.about(f"{end} bytes long, then longer by {grow.__name__[1:]}"):
            file.write(0, whole)
            file.truncate(end)
            file.evict()
            bring(file, Brought.ADVISED)
            memory = file.map()
            rest = -end % base
            memory.actor.fill(memory.address + end, rest, WORD, 1)
            grow(file, whole)
            found = memory.actor.nonzero(memory.address + end, rest)
            live.expect("words that are not zero where it was mapped before", 0, found)
            memory.unmap()
            file.expect("longer")


def _ftruncate(file: KnownFile, length: int) -> None:
    file.truncate(length)


def _write(file: KnownFile, length: int) -> None:
    file.contents.resize(length - WORD)
    file.write(length - WORD, WORD)


def _fallocate(file: KnownFile, length: int) -> None:
    file.actor.call("fallocate", file.descriptor, 0, 0, length)
    file.contents.resize(length)


_WAYS_TO_GROW = _ftruncate, _write, _fallocate


class ThpStoredFolios(LiveTest):
    def test_stored_folios(self) -> None:
        self.run_area(STORED)
