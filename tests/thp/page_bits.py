"""What goes with the mapping of a huge page, bit by bit, through all that maps it otherwise: used, written, dirty.

A model for each way: which bits it keeps, sets or takes away, of a huge page that was written since clear_refs was, of
one that was not, and of one that nobody needs any more.
"""

import mmap
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.clear_refs import (
    CLEAR_REFS_ALL,
    CLEAR_REFS_SOFT_DIRTY,
    clear_refs,
    need_soft_dirty,
    uses_what_is_protected,
)
from hugepage_qa.cases.debugfs import expect_split
from hugepage_qa.cases.frames import DIRTY, kpageflags
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act, let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.madv_collapse import collapse_memory
from hugepage_qa.cases.mapped_memory import SOFT_DIRTY, WORD, Memory
from hugepage_qa.cases.swapped import need_swap, page_all_out, swap_out
from hugepage_qa.cases.thp_memory import free_lazily, map_aligned, pmd_size, room_for
from hugepage_qa.cases.thp_policy import base_pages, huge_pages
from hugepage_qa.cases.thp_shared_memory import map_start_of_file, mount_tmpfs
from hugepage_qa.kernel.uapi import MADV_COLD, MADV_NOHUGEPAGE, MLOCK_ONFAULT, PROT_NONE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.version import KernelVersion

BITS = Area("thp/page-bits", sizes=Sizes.ONCE)

SMAPS = "Documentation/filesystems/proc.rst Referenced, Private_Dirty, LazyFree"
SOFT = "Documentation/admin-guide/mm/soft-dirty.rst"
#: MADV_COLD; a process can be named to split_huge_pages
_SINCE, _SPLIT_SINCE = KernelVersion(5, 4), KernelVersion(5, 13)
#: of the three pages: what may be taken, what is kept, and what was written since clear_refs was
_FREE, _IDLE, _BUSY = range(3)
_PAGES = 3


@dataclass(frozen=True)
class Bits:
    """What is told of memory, in bytes; ``referenced`` is None where the processor decides."""

    rss: int
    huge: int
    referenced: int | None
    dirty: int
    lazy: int
    #: for each page: how many of its base pages are soft-dirty; None where that is left to the kernel
    soft_dirty: tuple[int | None, ...]


@dataclass(frozen=True)
class Way:
    """Something that is done to each huge page: what it is called, how, and what ``Bits`` are after it.

    ``act`` returns the memory to look at, which may be elsewhere.
    """

    name: str
    act: Callable[[Live, Memory], Memory]
    expected: Callable[[Live, Bits], Bits]
    #: the first kernel on which it can be done
    since: KernelVersion = _SINCE


def _part(call: str, *arguments: int) -> Callable[[Live, Memory], Memory]:
    """Return what makes ``call`` for the last base page of each huge page."""

    def act(live: Live, memory: Memory) -> Memory:
        for page in range(memory.pages):
            memory.actor.call(call, memory.at(page + 1) - live.base_page, live.base_page, *arguments)
        return memory

    return act


def _there_and_back(prot: int) -> Callable[[Live, Memory], Memory]:
    def act(_live: Live, memory: Memory) -> Memory:
        memory.protect(prot)
        memory.protect(READ_WRITE)
        return memory

    return act


def _moved(live: Live, memory: Memory, *, shift: int) -> Memory:
    return memory.moved_to(room_for(memory.actor, memory.pages + 1, memory.size) + shift * live.base_page)


def _advised(advice: int) -> Callable[[Live, Memory], Memory]:
    def act(_live: Live, memory: Memory) -> Memory:
        memory.advise(advice)
        return memory

    return act


def _split(live: Live, memory: Memory) -> Memory:
    expect_split(live, f"{memory.actor.pid},{memory.address:#x},{memory.at(memory.pages):#x}", memory.pages)
    return memory


def _same(_live: Live, bits: Bits) -> Bits:
    return bits


def _protected(live: Live, bits: Bits) -> Bits:
    return replace(bits, referenced=None) if uses_what_is_protected(live) else bits


def _in_parts(_live: Live, bits: Bits) -> Bits:
    # what is marked as dirty becomes soft-dirty with it on some architectures (pte_mkdirty() of x86), and later than
    # Linux 6.1 base pages are marked so when their huge page is
    free, _idle, busy = bits.soft_dirty
    return replace(bits, huge=0, soft_dirty=(free, None, busy))


def _protected_in_parts(live: Live, bits: Bits) -> Bits:
    return _protected(live, _in_parts(live, bits))


def _without_the_last(live: Live, bits: Bits) -> Bits:
    base, rest = live.base_page, _in_parts(live, bits)
    return Bits(
        rest.rss - _PAGES * base,
        rest.huge,
        None if rest.referenced is None else rest.referenced - base,
        rest.dirty - 2 * base,
        rest.lazy - base,
        tuple(count - 1 if count else count for count in rest.soft_dirty),
    )


def _all_soft_dirty(live: Live, bits: Bits) -> Bits:
    return replace(bits, soft_dirty=_PAGES * (pmd_size(live) // live.base_page,))


def _all_soft_dirty_in_parts(live: Live, bits: Bits) -> Bits:
    return replace(_all_soft_dirty(live, bits), huge=0)


def _unused(_live: Live, bits: Bits) -> Bits:
    return replace(bits, referenced=0)


def _all_free(_live: Live, bits: Bits) -> Bits:
    return replace(bits, referenced=0, dirty=0, lazy=bits.rss)


def _by_migration(live: Live, bits: Bits) -> Bits:
    # whether entries of migration have a bit for it depends on the processor (migration_entry_supports_ad())
    return replace(_in_parts(live, bits), referenced=None)


#: ways by which a huge page stays mapped by this process, or is mapped in parts
WAYS = (
    Way("MADV_WILLNEED", _advised(mmap.MADV_WILLNEED), _same),
    Way("mprotect(PROT_READ) and back", _there_and_back(mmap.PROT_READ), _protected),
    Way("mprotect(PROT_NONE) and back", _there_and_back(PROT_NONE), _protected),
    Way("mprotect(PROT_READ) of a base page", _part("mprotect", mmap.PROT_READ), _protected_in_parts),
    # which make it a mapping of its own
    Way("mlock2(MLOCK_ONFAULT) of a base page", _part("mlock2", MLOCK_ONFAULT), _in_parts),
    Way("MADV_NOHUGEPAGE of a base page", _part("madvise", MADV_NOHUGEPAGE), _in_parts),
    Way("munmap() of a base page", _part("munmap"), _without_the_last),
    Way("MADV_DONTNEED of a base page", _part("madvise", mmap.MADV_DONTNEED), _without_the_last),
    Way("a split of the page itself", _split, _by_migration, _SPLIT_SINCE),
    Way("mremap()", partial(_moved, shift=0), _all_soft_dirty),
    Way("mremap() of its base pages", partial(_moved, shift=1), _all_soft_dirty_in_parts),
    Way("MADV_COLD", _advised(MADV_COLD), _unused),
    Way("MADV_FREE", _advised(mmap.MADV_FREE), _all_free),
)


@BITS.case(
    "a huge page stays used, dirty and soft-dirty, or not, whatever maps it otherwise: smaps and pagemap tell so of it"
    " whole or in parts, where it was moved, and of what MADV_COLD and MADV_FREE have made unused",
    f"{SMAPS}; {SOFT}; mm/huge_memory.c __split_huge_pmd_locked(), change_huge_pmd(), move_huge_pmd(),"
    " madvise_free_huge_pmd(); mm/madvise.c madvise_cold_or_pageout_pte_range()",
    since="5.4",  # MADV_COLD
)
def kept(live: Live) -> None:
    let_rest(live)
    for way in (way for way in WAYS if live.kernel_version >= way.since):
        memory, before = _prepared(live)
        with live.about(way.name):
            there = way.act(live, memory)
            _expect_bits(live, there, way.expected(live, before))
        memory.actor.end()


@BITS.case(
    "a child has its huge pages as dirty and soft-dirty as its parent, and as unused; nothing changes for the parent",
    f"{SMAPS}; {SOFT}; mm/huge_memory.c copy_huge_pmd()",
)
def forked(live: Live) -> None:
    let_rest(live)
    parent, before = _prepared(live)
    child = parent.fork()
    for memory, expected in ((parent, before), (child, replace(before, referenced=0))):
        with live.about("child" if memory is child else "parent"):
            _expect_bits(live, memory, expected)
    child.touch(_IDLE, 1 + child.size)
    with live.about("parent, when its child has written"):
        _expect_bits(live, parent, before)
    written = _bits(child)
    live.expect("Referenced of the child, when it has written", True, bool(written.referenced))
    soft_dirty = [bool(count) for count in written.soft_dirty]
    live.expect("which pages of the child are soft-dirty then", [False, True, True], soft_dirty)


@BITS.case(
    "what was written since clear_refs was written stays soft-dirty in swap and when it comes back, and is used then",
    f"{SMAPS}; {SOFT}; mm/rmap.c try_to_unmap_one(), mm/memory.c do_swap_page()",
    since="5.4",  # MADV_PAGEOUT
)
def swapped(live: Live) -> None:
    let_rest(live)
    need_swap(live, _PAGES * pmd_size(live))
    memory, before = _prepared(live, may_be_taken=False)
    swap_out(live, memory, memory.length)
    with live.about("in swap"):
        _expect_bits(live, memory, Bits(0, 0, 0, 0, 0, (None, None, before.soft_dirty[_BUSY])))
    memory.expect_filled()
    found = _bits(memory)
    live.expect("Rss, Referenced of what came back", (memory.length, memory.length), (found.rss, found.referenced))
    live.expect("soft-dirty base pages that came back", before.soft_dirty[_BUSY], found.soft_dirty[_BUSY])


@BITS.case(
    "what was written before its base pages are made a huge page is dirty and soft-dirty afterwards, and what was used"
    " is used",
    f"{SMAPS}; {SOFT}; mm/khugepaged.c collapse_huge_page()",
    since="6.1",  # MADV_COLLAPSE
)
def collapsed(live: Live) -> None:
    let_rest(live)
    need_swap(live, _PAGES * pmd_size(live))
    for was_in_swap in (False, True):
        memory = base_pages(live, _PAGES)
        if was_in_swap:
            # what was read is clean: the swap has it
            swap_out(live, memory, memory.length)
            memory.expect_filled()
        _track(live, memory)
        for page in (_FREE, _IDLE):
            # before Linux 6.18 none is made of base pages of which none may be written
            memory.touch(page, 1 + page * memory.size)
        collapse_memory(live, memory)
        found = _bits(memory)
        with live.about("from swap" if was_in_swap else "as it was written"):
            told = found.rss, found.huge, found.dirty, found.lazy
            live.expect("Rss, AnonHugePages, dirty, LazyFree", (*[memory.length] * 3, 0), told)
            # a huge page has one bit for all of it
            live.expect("soft-dirty base pages", _PAGES * (memory.size // live.base_page,), found.soft_dirty)
            live.expect("whether what was used is so", True, bool(found.referenced))
        swap_out(live, memory, memory.length)
        memory.expect_filled()
        memory.actor.end()


@BITS.case(
    "shared memory that is made a huge page is dirty, whichever of it was written, by a mapping, write(2) or before it"
    " was in swap, and holds that when it was swapped out with nobody writing in between; what is beside it is zero",
    "Documentation/filesystems/proc.rst Private_Dirty; Documentation/admin-guide/mm/pagemap.rst DIRTY; mm/khugepaged.c"
    " collapse_file()",
    since="6.1",  # MADV_COLLAPSE
)
def collapsed_shared(live: Live) -> None:
    let_nobody_else_act(live)
    size, base = pmd_size(live), live.base_page
    need_swap(live, size)
    point = mount_tmpfs(live, "never")
    parts = (0, base), (size // 2, base), (size - base, base), (0, size)
    for (name, write), (offset, length) in product(_WRITES, parts):
        with live.about(f"{length} bytes at {offset}, {name}"):
            memory = map_start_of_file(live, f"{point}/{name}-{offset}-{length}")
            write(live, memory, offset, length)
            collapse_memory(live, memory)
            found = _bits(memory)
            live.expect("ShmemPmdMapped, dirty", (size, size), (memory.smaps().shmem_pmd_mapped, found.dirty))
            head = memory.frames().pop()
            live.expect("DIRTY in kpageflags", DIRTY, kpageflags(live, memory.actor, [head])[0] & DIRTY)
            page_all_out(live, memory)
            live.expect("words that changed", 0, memory.wrong(offset, length))
            live.expect("words that are not zero", length // WORD, memory.nonzero(0, size))
        memory.actor.end()


def _by_mapping(_live: Live, memory: Memory, offset: int, length: int) -> None:
    memory.fill_part(offset, length)


def _by_write(live: Live, memory: Memory, offset: int, length: int) -> None:
    content = map_aligned(live, 1, memory.size, actor=memory.actor)
    content.fill()
    file = live.open(memory.actor, memory.smaps().path)
    memory.actor.call("pwrite64", file, content.address + offset, length, offset)
    content.unmap()
    # Linux 6.1 collapses it where there is no page table, too, and says EINVAL then
    live.expect("words that were written otherwise", 0, memory.wrong(offset, length))


def _before_swap(live: Live, memory: Memory, offset: int, length: int) -> None:
    _by_mapping(live, memory, offset, length)
    live.make_room()
    page_all_out(live, memory, length=length)
    # what was read is clean: the swap has it
    live.expect("words that came back otherwise", 0, memory.wrong(offset, length))


#: how the base pages of a file are written
_WRITES = ("by a mapping", _by_mapping), ("by write(2)", _by_write), ("before it was in swap", _before_swap)


def _prepared(live: Live, *, may_be_taken: bool = True) -> tuple[Memory, Bits]:
    """Return huge pages of which one was used and written of late, and what is told of them.

    Of the others the first one is no longer needed (MADV_FREE), if it ``may_be_taken``.
    """
    memory = huge_pages(live, _PAGES)
    size, count = memory.size, memory.size // live.base_page
    if may_be_taken:
        live.host.wait_until(partial(free_lazily, live, memory, _FREE + 1))
    _track(live, memory)
    lazy = size if may_be_taken else 0
    bits = Bits(memory.length, memory.length, size, memory.length - lazy, lazy, (0, 0, count))
    with live.about("before"):
        _expect_bits(live, memory, bits)
    return memory, bits


def _track(live: Live, memory: Memory) -> None:
    """Have no page be used or soft-dirty but the last one, of which a word is written. Raises CannotRun."""
    need_soft_dirty(live, memory)
    # in this order: the second one has the processor forget what it knows, and marks used what is used from then on
    for what in (CLEAR_REFS_ALL, CLEAR_REFS_SOFT_DIRTY):
        clear_refs(live, memory, what)
    memory.touch(_BUSY, 1 + _BUSY * memory.size)


def _bits(memory: Memory) -> Bits:
    mappings = memory.all_mappings()
    entries = memory.whole_pagemap()
    count = len(entries) // memory.pages
    pages = (entries[at : at + count] for at in range(0, len(entries), count))
    return Bits(
        sum(mapping.rss for mapping in mappings),
        sum(mapping.anon_huge_pages for mapping in mappings),
        sum(mapping.fields["Referenced"] for mapping in mappings),
        sum(mapping.dirty for mapping in mappings),
        sum(mapping.fields["LazyFree"] for mapping in mappings),
        tuple(sum(bool(entry & SOFT_DIRTY) for entry in page) for page in pages),
    )


def _expect_bits(live: Live, memory: Memory, expected: Bits) -> None:
    found = _bits(memory)
    told = zip(found.soft_dirty, expected.soft_dirty, strict=True)
    found = replace(found, soft_dirty=tuple(None if wanted is None else count for count, wanted in told))
    live.expect("what is told", expected, replace(found, referenced=None) if expected.referenced is None else found)


class ThpPageBits(LiveTest):
    def test_page_bits(self) -> None:
        self.run_area(BITS)
