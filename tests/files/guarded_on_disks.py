"""Guards in mappings of files on disks, in large folios: what others do to the file leaves them."""

import os
import signal
from collections.abc import Callable
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.file_contents import Brought, KnownFile
from hugepage_qa.cases.hugetlb_files import open_file
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.large_folios import DISKS, block_size, file_case
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import GUARDED, WORD, Memory, runs
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_shared_memory import map_file
from hugepage_qa.kernel.uapi import MADV_DONTNEED, MADV_GUARD_INSTALL, MADV_GUARD_REMOVE
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest

GUARDED_ON_DISKS = Area("files/guarded-on-disks", sizes=Sizes.ONCE, uncleared=True)

GUARDS = "madvise(2) MADV_GUARD_INSTALL; mm/memory.c zap_nonpresent_ptes()"
#: of files guards were refused before
SINCE = "6.15"

case = partial(file_case, GUARDED_ON_DISKS, since=SINCE, on=DISKS, by=(Brought.WRITTEN,))


@case(
    "what a process, or another one, writes to a file past the page cache leaves the guards of its mappings, shared or"
    " private, beside it or where it is written, in the same folio or another one; without them the file holds what was"
    " written",
    f"{GUARDS}; open(2) O_DIRECT; mm/truncate.c invalidate_inode_pages2_range()",
)
def past_the_cache(live: Live, file: KnownFile) -> None:
    let_rest(live)
    base, block = live.base_page, block_size(live)
    direct = open_file(live, file.path, file.actor, os.O_RDWR | live.host.uapi.o_direct)

    def write(_file: KnownFile, address: int, first: int, length: int) -> int:
        return file.actor.call("pwrite64", direct.descriptor, address, length, first)

    def write_in_child(_file: KnownFile, address: int, first: int, length: int) -> int:
        child = file.actor.fork()
        written = child.call("pwrite64", direct.descriptor, address, length, first)
        child.end()
        return written

    # the first ones are of different folios, whatever their size is
    places = (
        ((0, block), (block + base, 2 * base)),
        ((block, base), (block - base, base)),
        ((0, 2 * base), (0, 2 * base)),
        ((base, base), (3 * base, base)),
        ((block - 3 * base, 2 * base), (block - base, base)),
        ((0, 8 * base), (4 * base, 2 * base)),
    )
    for (guards, written), shared, by in product(places, (True, False), (write, write_in_child)):
        memory = _guarded(live, file, guards, shared=shared)
        with live.about(f"guards {guards}, {by.__name__} {written}, shared {shared}"):
            file.write_by(by, *written)
            _expect_guards(live, file, memory, guards, written)


@case(
    "so does what is written to it by write(2), made zero or a hole, cut and made longer again, written back and taken"
    " out of memory, whatever part of a folio it is, and so does MADV_DONTNEED of its mapping",
    f"{GUARDS}; mm/truncate.c truncate_inode_pages_range(); mm/huge_memory.c folio_split()",
)
def otherwise(live: Live, file: KnownFile) -> None:
    let_rest(live)
    base, block, whole = live.base_page, block_size(live), file.contents.length

    def cut_for_a_time(_memory: Memory, first: int, _length: int) -> None:
        file.truncate(first)
        file.truncate(whole)

    ways: tuple[Callable[[Memory, int, int], object], ...] = (
        lambda _memory, first, length: file.write(first, length),
        lambda _memory, first, length: file.zero(first, length),
        lambda _memory, first, length: file.punch(first, length),
        cut_for_a_time,
        lambda _memory, _first, _length: file.evict(),
        lambda memory, first, length: memory.actor.call("madvise", memory.address + first, length, MADV_DONTNEED),
    )
    places = ((base, base), (block - 2 * base, 4 * base))
    for (number, way), guards in product(enumerate(ways), places):
        changes = ((3 * base, base), True), (guards, False), ((block // 2 - base, block // 2 + 2 * base), True)
        for changed, shared in changes:
            memory = _guarded(live, file, guards, shared=shared)
            with live.about(f"guards {guards}, way {number} of {len(ways)} at {changed}, shared {shared}"):
                way(memory, *changed)
                _expect_guards(live, file, memory, guards)


def _guarded(live: Live, file: KnownFile, guards: tuple[int, int], *, shared: bool) -> Memory:
    """Map all of ``file``, in folios as large as a write makes them, and touch it around a part that has guards."""
    file.evict()
    file.write(0, file.contents.length)
    file.actor.call("fsync", file.descriptor)
    pages, (first, length) = -(-file.contents.length // pmd_size(live)), guards
    memory = map_file(live, file.actor, file.descriptor, pages, shared=shared)
    memory.actor.call("madvise", memory.address + first, length, MADV_GUARD_INSTALL)
    for start, end in ((0, first), (first + length, file.contents.length)):
        memory.actor.sum(memory.address + start, end - start)
    return memory


def _expect_guards(
    live: Live, file: KnownFile, memory: Memory, guards: tuple[int, int], written: tuple[int, int] = (0, 0)
) -> None:
    """Expect ``memory`` to have the guards that were set, and no other; and without them what ``file`` must hold.

    A known bug is of what was ``written`` past the cache: all guards end in folios of which a part was.
    """
    first, length = guards
    expected = _base_pages(live, guards)
    found = {number for number, entry in enumerate(memory.whole_pagemap()) if entry & GUARDED}
    known = {Quirk.DIRECT_WRITE_ENDS_GUARDS: runs(found)} if found in _left_by_folio(live, expected, written) else None
    live.expect("base pages with guards", runs(expected), runs(found), known)
    for place in (first, first + length - WORD):
        live.expect_signal(signal.SIGSEGV, memory.actor.read, memory.address + place)
    memory.actor.call("madvise", memory.address + first, length, MADV_GUARD_REMOVE)
    file.expect_mapped(memory)
    memory.unmap()


def _base_pages(live: Live, part: tuple[int, int]) -> set[int]:
    """Return the numbers of the base pages of a part of the file: where it begins, and how long it is."""
    first, length = part
    return {*range(first // live.base_page, (first + length) // live.base_page)}


def _left_by_folio(live: Live, guards: set[int], written: tuple[int, int]) -> list[set[int]]:
    """Return what is left of ``guards`` where the folios of what was ``written`` have none, for each size of folios."""
    orders = range(1, (pmd_size(live) // live.base_page).bit_length())
    pages = _base_pages(live, written)
    return [{page for page in guards if page >> order not in {each >> order for each in pages}} for order in orders]


class ThpGuardedOnDisks(LiveTest):
    def test_guarded_on_disks(self) -> None:
        self.run_area(GUARDED_ON_DISKS)
