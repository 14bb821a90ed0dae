"""What those see of huge pages who track a process: what is new or written, what was used, and what kind of page it is.

Each case is a table of all kinds of memory: huge pages, base pages, pages of zeroes, and what nobody has touched.
"""

import errno
import mmap
from collections.abc import Callable
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.clear_refs import (
    CLEAR_REFS_ALL,
    CLEAR_REFS_ANON,
    CLEAR_REFS_MAPPED,
    CLEAR_REFS_PEAK,
    CLEAR_REFS_SOFT_DIRTY,
    clear_refs,
    need_soft_dirty,
    soft_dirty_pages,
    while_nothing_moves,
)
from hugepage_qa.cases.frames import (
    ANONYMOUS,
    COMPOUND_HEAD,
    COMPOUND_TAIL,
    DIRTY,
    HUGE,
    LRU,
    MAPPED,
    MLOCKED,
    SWAP_BACKED,
    TRANSPARENT,
    UNEVICTABLE,
    UPTODATE,
    ZERO,
    kpageflags,
)
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act, let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import (
    EXCLUSIVE,
    FRAME,
    OF_A_FILE,
    PRESENT,
    SOFT_DIRTY,
    WORD,
    WRITE_PROTECTED,
    Memory,
    runs,
)
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.cases.swapped import only_swap, swap_out, swapped
from hugepage_qa.cases.thp_memory import map_aligned, mapped_huge, need_blocks, pmd_size, room_for
from hugepage_qa.cases.thp_nodes import expect_moved_between
from hugepage_qa.cases.thp_policy import advised, base_pages, huge_pages, huge_zeroes, mapped_in_parts
from hugepage_qa.cases.thp_shared_memory import filled_file, mount_tmpfs, shared_base_pages, shared_huge_pages
from hugepage_qa.kernel.proc_tables import read_swaps
from hugepage_qa.kernel.uapi import MADV_NOHUGEPAGE
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest

TRACKERS = Area("thp/trackers", sizes=Sizes.ONCE)

SOFT = "Documentation/admin-guide/mm/soft-dirty.rst"
PAGEMAP = "Documentation/admin-guide/mm/pagemap.rst"
CLEAR_REFS = "Documentation/filesystems/proc.rst clear_refs"
#: more than may be written to clear_refs
_TOO_MUCH = "6"

#: huge pages of swap: more than two that are swapped out, and what CPUs keep of it
_SWAP = 16

Make = Callable[[Live], Memory]
#: memory that is back from swap, and which of its base pages are soft-dirty then
Back = tuple[Memory, set[int]]


def _untouched(live: Live) -> Memory:
    return advised(live)


def _untouched_shared(live: Live) -> Memory:
    return map_aligned(live, 1, pmd_size(live), shared=True)


def _base_zeroes(live: Live) -> Memory:
    memory = advised(live, advice=MADV_NOHUGEPAGE)
    memory.expect_zero()
    return memory


def _zeroes_in_parts(live: Live) -> Memory:
    memory = huge_zeroes(live)
    memory.actor.call("munmap", memory.at(1) - live.base_page, live.base_page)
    return memory


def _moved(live: Live) -> Memory:
    memory = huge_pages(live)
    return memory.moved_to(room_for(memory.actor, 1, memory.size))


def _of_a_file(live: Live) -> Memory:
    return filled_file(live, f"{mount_tmpfs(live, 'always')}/file", 1)


def _locked(live: Live) -> Memory:
    memory = huge_pages(live)
    memory.lock()
    return memory


#: what pagemap says of each base page
_OWN, _SHARED = PRESENT | EXCLUSIVE, PRESENT | EXCLUSIVE | OF_A_FILE
_KINDS: tuple[tuple[Make, int], ...] = (
    (_untouched, 0),
    (_untouched_shared, 0),
    (huge_pages, _OWN),
    (mapped_in_parts, _OWN),
    (base_pages, _OWN),
    (_moved, _OWN),
    # which nobody owns
    (huge_zeroes, PRESENT),
    (_base_zeroes, PRESENT),
    (shared_huge_pages, _SHARED),
    (shared_base_pages, _SHARED),
    (_of_a_file, _SHARED),
)
#: what is told as mapped by huge pages
_HUGE = (huge_pages, _moved, shared_huge_pages, _of_a_file)


@TRACKERS.case(
    "all of a new mapping is soft-dirty, whatever it has and whether it was touched or not, until clear_refs is"
    " written; nothing is then, until it is written, and nothing else of what pagemap tells of it changes",
    f"{SOFT}; {PAGEMAP}; fs/proc/task_mmu.c pagemap_pmd_range(), pte_to_pagemap_entry(), pagemap_pte_hole(),"
    " clear_refs_write()",
)
def new_mapping(live: Live) -> None:
    let_nobody_else_act(live)
    for make, flags in _KINDS:
        with live.about(make.__name__.strip("_")):
            memory, before, after = while_nothing_moves(live, partial(_looked_at, live, make, flags))
            _expect_told(live, before, flags | SOFT_DIRTY, huge=make in _HUGE)
            _expect_told(live, after, flags, huge=make in _HUGE)
            live.expect("huge pages", memory.length if make in _HUGE else 0, mapped_huge(memory))
            last = memory.length // live.base_page - 1
            memory.actor.write(memory.at(1) - live.base_page, 1)
            entry = memory.whole_pagemap()[last]
            live.expect("whether what was written is soft-dirty", True, bool(entry & SOFT_DIRTY))
        memory.actor.end()


@TRACKERS.case(
    "what was written since clear_refs was written stays soft-dirty, and all of it dirty, when it moves to another node"
    " and back, huge pages and others",
    f"{SOFT}; migrate_pages(2); mm/huge_memory.c set_pmd_migration_entry(), remove_migration_pmd();"
    " mm/migrate.c remove_migration_pte()",
    nodes=2,
)
def on_another_node(live: Live) -> None:
    let_rest(live)
    nodes = live.nodes[:2]
    need_memory(live, nodes, 2 * pmd_size(live))
    for make in (huge_pages, base_pages):
        memory = make(live, 2)
        need_soft_dirty(live, memory)
        clear_refs(live, memory)
        written = [*range(memory.size // live.base_page, memory.length // live.base_page)]
        memory.actor.fill(memory.at(1), memory.size, WORD, 1 + memory.size)
        # the first time it may be there already
        for old, new in (nodes[::-1], nodes):
            with live.about(f"{make.__name__} from node {old} to {new}"):
                expect_moved_between(live, memory, old, new)
                if make in _HUGE:
                    # what finds no free block is split, and moved as base pages
                    need_blocks(live, memory, new)
                soft_dirty = soft_dirty_pages(memory)
                # others may become so: they are dirty (pte_mkdirty() of x86)
                live.expect("what was written and is soft-dirty", written, soft_dirty[-len(written) :])
                live.expect("dirty", memory.length, memory.smaps().dirty)
                live.expect("huge pages", memory.length if make in _HUGE else 0, mapped_huge(memory))
                memory.expect_filled()
        memory.actor.end()


@TRACKERS.case(
    "what was written since clear_refs was written, and nothing else, is soft-dirty while it is in swap and when it is"
    " back: to who reads, writes, advises, protects or inherits it, or turns swap off; what clear_refs finds in swap is"
    " not, and what is moved while it is there is, all of it",
    f"{SOFT}; {PAGEMAP}; mm/memory.c do_swap_page(), copy_nonpresent_pte(); mm/swapfile.c unuse_pte();"
    " fs/proc/task_mmu.c clear_soft_dirty(); mm/mremap.c move_soft_dirty_pte()",
    since="5.4",  # MADV_PAGEOUT
)
def in_swap(live: Live) -> None:
    let_rest(live)
    swap_off = only_swap(live, _SWAP * pmd_size(live))

    def turn_off(_live: Live, memory: Memory, written: set[int]) -> Back:
        swap_off()
        return memory, written

    for come_back, make in product((*_WAYS_BACK, turn_off), (huge_pages, base_pages)):
        if not read_swaps(live.host):
            swap_off = only_swap(live, _SWAP * pmd_size(live))
        with live.about(f"{make.__name__}, {come_back.__name__.strip('_')}"):
            memory, written, found = _written_in_swap(live, make)
            live.expect("memory in huge pages when it is in swap", 0, mapped_huge(memory))
            # others may become so when a huge page is split: they are dirty (pte_mkdirty() of x86)
            live.expect("soft-dirty in swap", runs(written), runs(found & written if make is huge_pages else found))
            there, wanted = come_back(live, memory, found)
            there.expect_filled()
            left = swapped(there), mapped_huge(there)
            live.expect("memory in swap and in huge pages after it was read", (0, 0), left)
            found = set(soft_dirty_pages(there))
            known: dict[Quirk, list[range]] = {Quirk.SOFT_DIRTY_LOST_AT_SWAPOFF: []} if come_back is turn_off else {}
            live.expect("base pages that are soft-dirty when they are back", runs(wanted), runs(found), known)
        memory.actor.end()


def _written_in_swap(live: Live, make: Callable[[Live, int], Memory]) -> tuple[Memory, set[int], set[int]]:
    """Return memory in swap, and which of its base pages were written, and are soft-dirty. Raises CannotRun."""

    def attempt() -> tuple[tuple[Memory, set[int], set[int]], bool]:
        memory = make(live, 2)
        need_soft_dirty(live, memory)
        clear_refs(live, memory)
        written = _write_some(memory, live.base_page, whole=make is huge_pages)
        swap_out(live, memory, memory.length)
        found = set(soft_dirty_pages(memory))
        return (memory, written, found), make is huge_pages or found == written

    return while_nothing_moves(live, attempt)


def _write_some(memory: Memory, base: int, *, whole: bool) -> set[int]:
    """Write a word, as it is, in some base pages, and return which are soft-dirty then: all of a page that is huge."""
    every = memory.size // base
    numbers = {2 * every - 2} if whole else {0, every // 2, every // 2 + 1, every, 2 * every - 1}
    for number in numbers:
        memory.actor.write(memory.address + number * base, 1 + number * base)
    return {*range(every, 2 * every)} if whole else numbers


def _read(_live: Live, memory: Memory, written: set[int]) -> Back:
    return memory, written


def _prefetch(_live: Live, memory: Memory, written: set[int]) -> Back:
    memory.advise(mmap.MADV_WILLNEED)
    return memory, written


def _write(_live: Live, memory: Memory, written: set[int]) -> Back:
    memory.actor.write(memory.address, 1)
    return memory, {0} | written


def _protect(_live: Live, memory: Memory, written: set[int]) -> Back:
    for prot in (mmap.PROT_READ, READ_WRITE):
        memory.protect(prot)
    return memory, written


def _inherit(_live: Live, memory: Memory, written: set[int]) -> Back:
    return memory.fork(), written


def _clear(live: Live, memory: Memory, _written: set[int]) -> Back:
    clear_refs(live, memory)
    return memory, set()


def _move(live: Live, memory: Memory, _written: set[int]) -> Back:
    # page by page: where both places begin with a page table this moves as it is (move_normal_pmd())
    there = memory.moved_to(room_for(memory.actor, memory.pages + 1, memory.size) + live.base_page)
    return there, {*range(len(there.whole_pagemap()))}


_WAYS_BACK = (_read, _prefetch, _write, _protect, _inherit, _clear, _move)


@TRACKERS.case(
    "clear_refs has all memory be unused, or that of files alone, or all but that, huge pages and others, and keeps"
    " what is dirty; the numbers for what is soft-dirty and for the peak leave what is used, and others are refused",
    f"{CLEAR_REFS}; fs/proc/task_mmu.c clear_refs_test_walk(), clear_refs_pte_range()",
)
def unused(live: Live) -> None:
    let_nobody_else_act(live)
    private, of_files = (huge_pages, mapped_in_parts, base_pages), (shared_huge_pages, shared_base_pages, _of_a_file)
    used = CLEAR_REFS_SOFT_DIRTY, CLEAR_REFS_PEAK
    for number, make in product((CLEAR_REFS_ALL, CLEAR_REFS_ANON, CLEAR_REFS_MAPPED, *used), private + of_files):
        memory = make(live)
        with live.about(f"{number}, {make.__name__.strip('_')}"):
            _expect_used(live, memory, memory.length)
            clear_refs(live, memory, number)
            of_kind = CLEAR_REFS_MAPPED if make in of_files else CLEAR_REFS_ANON
            cleared = number in (CLEAR_REFS_ALL, of_kind)
            _expect_used(live, memory, 0 if cleared else memory.length)
            for refused in ("0", _TOO_MUCH):
                live.expect_errno(errno.EINVAL, clear_refs, live, memory, refused)
            live.expect("huge pages", memory.length if make in _HUGE else 0, mapped_huge(memory))
            memory.expect_filled()
        memory.actor.end()


@TRACKERS.case(
    "kpageflags tells of each base page what kind of page it is part of, huge, of zeroes or both, and of the first one"
    " what becomes of it",
    f"{PAGEMAP} kpageflags; fs/proc/page.c stable_page_flags()",
)
def kinds_in_kpageflags(live: Live) -> None:
    let_nobody_else_act(live)
    anonymous, shared = MAPPED | ANONYMOUS, MAPPED
    huge_zero, zero = TRANSPARENT | ZERO, ZERO
    kept = UPTODATE | SWAP_BACKED
    kinds: tuple[tuple[Make, int, int, int], ...] = (
        # of each base page, of the first one, and what that is not
        (huge_pages, anonymous | TRANSPARENT, kept, MLOCKED | UNEVICTABLE),
        (mapped_in_parts, anonymous | TRANSPARENT, kept, MLOCKED | UNEVICTABLE),
        (_moved, anonymous | TRANSPARENT, kept, MLOCKED | UNEVICTABLE),
        (_locked, anonymous | TRANSPARENT, kept | MLOCKED | UNEVICTABLE, 0),
        (shared_huge_pages, shared | TRANSPARENT, kept | DIRTY, MLOCKED | UNEVICTABLE),
        (_of_a_file, shared | TRANSPARENT, kept | DIRTY, MLOCKED | UNEVICTABLE),
        (base_pages, anonymous, kept, MLOCKED | UNEVICTABLE),
        (shared_base_pages, shared, kept | DIRTY, MLOCKED | UNEVICTABLE),
        (huge_zeroes, huge_zero, 0, LRU | MLOCKED | UNEVICTABLE),
        (_zeroes_in_parts, zero, 0, LRU | MLOCKED | UNEVICTABLE),
        (_base_zeroes, zero, 0, LRU | MLOCKED | UNEVICTABLE),
    )
    told = MAPPED | ANONYMOUS | TRANSPARENT | ZERO | HUGE
    for make, of_each, of_the_first, not_so in kinds:
        memory, found = while_nothing_moves(live, partial(_with_kinds, live, make))
        with live.about(make.__name__.strip("_")):
            live.expect("kinds of its base pages", {hex(of_each)}, {hex(flags & told) for flags in found})
            first = found[0] & (of_the_first | not_so)
            live.expect("flags of the first one", hex(of_the_first), hex(first))
            is_compound = bool(of_each & TRANSPARENT)
            parts = [COMPOUND_HEAD, *[COMPOUND_TAIL] * (len(found) - 1)] if is_compound else [0] * len(found)
            ends = [flags & (COMPOUND_HEAD | COMPOUND_TAIL) for flags in found]
            live.expect("base pages that are told as head or tail and are not", 0, _different(parts, ends))
        memory.actor.end()


def _looked_at(live: Live, make: Make, flags: int) -> tuple[tuple[Memory, set[str], set[str]], bool]:
    """Return memory, what pagemap tells of it before and after clear_refs is written, and whether that is ``flags``."""
    memory = make(live)
    need_soft_dirty(live, memory)
    before = _told(memory, flags)
    clear_refs(live, memory)
    after = _told(memory, flags)
    return (memory, before, after), after == {hex(flags)}


def _with_kinds(live: Live, make: Make) -> tuple[tuple[Memory, list[int]], bool]:
    """Return memory, what kpageflags tells of its base pages, and whether they are the same before and after that."""
    memory = make(live)
    frames = [entry & FRAME for entry in memory.whole_pagemap() if entry & PRESENT]
    found = kpageflags(live, memory.actor, frames)
    return (memory, found), frames == [entry & FRAME for entry in memory.whole_pagemap() if entry & PRESENT]


def _different(some: list[int], others: list[int]) -> int:
    return sum(one != other for one, other in zip(some, others, strict=True))


def _told(memory: Memory, flags: int) -> set[str]:
    """Return what pagemap tells of base pages of which it should tell ``flags``."""
    told = PRESENT | EXCLUSIVE | SOFT_DIRTY | WRITE_PROTECTED
    if flags & EXCLUSIVE:
        # zeroes are nobody's: Linux 6.1 tells the huge page of them as of a file, and base pages of them not
        told |= OF_A_FILE
    return {hex(entry & told) for entry in memory.whole_pagemap()}


def _expect_told(live: Live, found: set[str], flags: int, *, huge: bool) -> None:
    """Expect pagemap to have told the same ``flags`` of each base page."""
    known = {Quirk.HUGE_PAGE_OF_NO_FILE: {hex(flags & ~OF_A_FILE)}} if huge and flags & OF_A_FILE else None
    live.expect("flags in pagemap", {hex(flags)}, found, known)


def _expect_used(live: Live, memory: Memory, length: int) -> None:
    found = memory.mappings()
    referenced = sum(mapping.fields["Referenced"] for mapping in found)
    live.expect("Referenced, dirty", (length, memory.length), (referenced, sum(mapping.dirty for mapping in found)))


class ThpTrackers(LiveTest):
    def test_trackers(self) -> None:
        self.run_area(TRACKERS)
