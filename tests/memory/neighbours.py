"""Huge pages and ordinary memory side by side: what grows, moves or shrinks leaves the other alone."""

import errno
import mmap
import os
from collections.abc import Iterator, Mapping
from itertools import combinations, product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.commit_policy import need_commit
from hugepage_qa.cases.hugetlb_files import new_memfd, open_file
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory, value_or_signal
from hugepage_qa.cases.places import (
    free_place,
    need_places_of_any_size,
    ordinary_memory,
    take_addresses,
    take_all_addresses,
)
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_shared_memory import map_file, map_start, nameless_file
from hugepage_qa.kernel.smaps import read_smaps
from hugepage_qa.kernel.uapi import MAP_FIXED, MAP_FIXED_NOREPLACE, MREMAP_FIXED, MREMAP_MAYMOVE, PROT_NONE
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor, Refused

NEIGHBOURS = Area("memory/neighbours")
HEAP = "brk(2); mm/mmap.c brk(): a base page stays free below the next mapping"
GROW = "mremap(2) ENOMEM; mm/mremap.c"
MOVE = "mremap(2) MREMAP_FIXED; mm/mremap.c mremap_to()"
MERGED = "mprotect(2); mmap(2) offset; mm/mprotect.c mprotect_fixup(); mm/vma.c vma_merge_existing_range()"
#: pages of a file whose protection changes
_PAGES = 3
#: base pages that the heap grows by at least
_GROWTH = 16
#: below it are the addresses of who names none (DEFAULT_MAP_WINDOW of powerpc)
_WINDOW = 1 << 47


@NEIGHBOURS.case("the heap grows up to huge pages and no further, and both hold what they held", HEAP, pages=1)
def heap_below_huge_pages(live: Live) -> None:
    need_places_of_any_size(live)
    actor = live.actor()
    heap = -(-actor.call("brk", 0) // live.base_page) * live.base_page
    place = -(-(heap + _GROWTH * live.base_page) // live.size) * live.size
    need_commit(live, place - heap)
    memory = live.map(1, actor, at=place, flags=MAP_FIXED_NOREPLACE)
    memory.fill(3)
    top = place - live.base_page
    for wanted in (top, place, place + live.size):
        live.expect("the end of the heap", f"{top:#x}", f"{actor.call('brk', wanted):#x}")
    first, last = (Memory(live, actor, at, 1, live.base_page) for at in (heap, top - live.base_page))
    first.fill(4)
    last.fill(5)
    memory.expect_filled(3)
    live.expect_pool(nr=1, free=0)
    memory.unmap()
    live.expect("the end of the heap", f"{place:#x}", f"{actor.call('brk', place):#x}")
    first.expect_filled(4)
    last.expect_filled(5)
    live.expect_pool(nr=1, free=1)


def huge_page_in_the_middle(live: Live) -> Memory:
    """Map one filled huge page, with room for another one on each side. Raises CannotRun where none is for others."""
    need_places_of_any_size(live)
    actor = live.actor()
    place = free_place(live, actor, 3)
    memory = live.map(1, actor, at=place + live.size, flags=MAP_FIXED_NOREPLACE)
    memory.fill(3)
    return memory


@NEIGHBOURS.case("ordinary memory grows up to huge pages, and elsewhere if it must and may", GROW, pages=1)
def ordinary_memory_grows(live: Live) -> None:
    need_commit(live, live.size)
    memory = huge_page_in_the_middle(live)
    call, page = memory.actor.call, live.base_page
    ordinary = ordinary_memory(live, memory.actor, 1, memory.address - 2 * page)
    ordinary.fill(4)
    live.expect("where it grew", ordinary.address, call("mremap", ordinary.address, page, 2 * page, 0))
    ordinary.expect_filled(4)
    live.expect_errno(errno.ENOMEM, call, "mremap", ordinary.address, 2 * page, 3 * page, 0)
    ordinary.expect_filled(4)
    place = call("mremap", ordinary.address, 2 * page, live.size, MREMAP_MAYMOVE)
    grown = Memory(live, memory.actor, place, live.size // page, page)
    grown.expect_filled(4, pages=1)
    live.expect("words of what it grew by that are not zero", 0, memory.actor.nonzero(grown.at(1), page))
    memory.expect_filled(3)
    live.expect_pool(nr=1, free=0)


@NEIGHBOURS.case("huge pages do not grow into ordinary memory", GROW, pages=2)
def huge_pages_do_not_grow(live: Live) -> None:
    memory = huge_page_in_the_middle(live)
    behind = ordinary_memory(live, memory.actor, 1, memory.at(1))
    behind.fill(4)
    for flags in (0, MREMAP_MAYMOVE):
        words = memory.address, live.size, 2 * live.size, flags
        live.expect_errno(errno.EINVAL, memory.actor.call, "mremap", *words)
        live.expect_pool(nr=2, free=1)
    behind.expect_filled(4)
    memory.expect_filled(3)


@NEIGHBOURS.case(
    "huge pages are moved beside ordinary memory, and both hold what they held", MOVE, since="5.16", pages=1
)
def huge_pages_move_beside(live: Live) -> None:
    need_places_of_any_size(live)
    memory = live.map(1)
    memory.fill(3)
    actor, page = memory.actor, live.base_page
    place = free_place(live, actor, 3) + live.size
    before, behind = (ordinary_memory(live, actor, 1, at) for at in (place - page, place + live.size))
    before.fill(4)
    behind.fill(5)
    flags = MREMAP_MAYMOVE | MREMAP_FIXED
    live.expect("the address", place, actor.call("mremap", memory.address, live.size, live.size, flags, place))
    moved = Memory(live, actor, place, 1, live.size)
    moved.expect_filled(3)
    live.expect_pool(nr=1, free=0)
    moved.unmap()
    live.expect_pool(nr=1, free=1)
    before.expect_filled(4)
    behind.expect_filled(5)


@NEIGHBOURS.case("ordinary memory is moved beside huge pages, and both hold what they held", MOVE, pages=1)
def ordinary_memory_moves_beside(live: Live) -> None:
    memory = huge_page_in_the_middle(live)
    actor, page = memory.actor, live.base_page
    for place in (memory.address - page, memory.at(1)):
        ordinary = ordinary_memory(live, actor, 1)
        ordinary.fill(4)
        flags = MREMAP_MAYMOVE | MREMAP_FIXED
        live.expect("the address", place, actor.call("mremap", ordinary.address, page, page, flags, place))
        moved = Memory(live, actor, place, 1, page)
        moved.expect_filled(4)
        memory.expect_filled(3)
        moved.unmap()
        memory.expect_filled(3)
        live.expect_pool(nr=1, free=0)


@NEIGHBOURS.case(
    "ordinary memory is not moved to a part of a huge page, which stays as it was",
    f"{MOVE}; munmap(2) Huge page mappings; mm/hugetlb.c hugetlb_vm_op_split()",
    pages=1,
)
def ordinary_memory_moves_onto_a_part(live: Live) -> None:
    memory = live.map(1)
    memory.fill(3)
    actor, page = memory.actor, live.base_page
    ordinary = ordinary_memory(live, actor, 1)
    ordinary.fill(4)
    for place in (memory.address, memory.address + page, memory.at(1) - page):
        words = ordinary.address, page, page, MREMAP_MAYMOVE | MREMAP_FIXED, place
        live.expect_errno(errno.EINVAL, actor.call, "mremap", *words)
        memory.expect_filled(3)
        ordinary.expect_filled(4)
        live.expect_pool(nr=1, free=0)


@NEIGHBOURS.case(
    "where ordinary memory has taken all addresses but for one place, huge pages are mapped there, below everything and"
    " above, and where there is none they are refused",
    "mmap(2) ENOMEM; arch/x86/mm/hugetlbpage.c hugetlb_get_unmapped_area_topdown(); mm/mmap.c vm_unmapped_area()",
    sizes=Sizes.BUDDY,
    pages=1,
)
def only_place_that_is_left(live: Live) -> None:
    need_places_of_any_size(live)
    actor = live.actor()
    taken = take_all_addresses(live, actor)
    _expect_no_place(live, actor)
    live.expect_pool(nr=1, free=1)
    for start in (min(taken), max(taken)):
        # twice as long as needed: one page in it is aligned
        place = Memory(live, actor, start, 2, live.size)
        place.unmap()
        memory = live.map(1, actor)
        live.expect(f"whether it is mapped from {start:#x} on", True, start <= memory.address < place.at(2))
        memory.fill()
        memory.expect_filled()
        _expect_no_place(live, actor)
        live.expect_pool(nr=1, free=0)
        memory.unmap()
        live.expect_pool(nr=1, free=1)
        take_addresses(live, actor, place.length, at=start)


@NEIGHBOURS.case(
    "where all addresses are taken but for a place of just their length, wherever it begins, base pages are mapped"
    " there, as many as huge pages have and fewer, private and shared ones and those of a tmpfs, that might be huge",
    "mmap(2) ENOMEM; mm/huge_memory.c __thp_get_unmapped_area(); mm/shmem.c shmem_get_unmapped_area()",
    sizes=Sizes.ONCE,
)
def only_place_for_ordinary_memory(live: Live) -> None:
    size, actor = pmd_size(live), live.actor()
    kinds = {"private": -1, "shared": -1, "tmpfs": nameless_file(live, actor, "always")}
    _expect_in_the_only_place(live, actor, size, kinds)


@NEIGHBOURS.case(
    "where all addresses are taken but for a place of just its length, wherever it begins, a file on a disk is mapped"
    " there, of a huge page and less",
    "mmap(2) ENOMEM; mm/huge_memory.c thp_get_unmapped_area()",
    sizes=Sizes.ONCE,
)
def only_place_for_a_file(live: Live) -> None:
    size, actor = pmd_size(live), live.actor()
    file = open_file(live, live.host.disk("ext4"), actor, live.host.uapi.o_tmpfile | os.O_RDWR)
    _expect_in_the_only_place(live, actor, size, {"private": file.descriptor, "shared": file.descriptor})


def _expect_in_the_only_place(live: Live, actor: Actor, size: int, kinds: Mapping[str, int]) -> None:
    """Expect up to ``size`` bytes of each kind, of a file or none, to be mapped where alone ``actor`` has room."""
    base = live.base_page
    start = max(take_all_addresses(live, actor))
    for (name, file), pages, offset in product(kinds.items(), (1, size // base - 1, size // base), (0, 1)):
        place = Memory(live, actor, start + offset * base, pages, base)
        place.unmap()
        kind = mmap.MAP_PRIVATE if name == "private" else mmap.MAP_SHARED
        flags = kind | (mmap.MAP_ANONYMOUS if file < 0 else 0)
        with live.about(f"{name}, {pages} base pages from {place.address:#x} on"):
            try:
                found = actor.mmap(place.length, READ_WRITE, flags, file)
            except Refused as refusal:
                live.fail("errno of mmap(2)", 0, refusal.errno)
            live.expect("the address", f"{place.address:#x}", f"{found:#x}")
        place.unmap()
        take_addresses(live, actor, place.length, at=place.address)


def _expect_no_place(live: Live, actor: Actor) -> None:
    """Expect that no place is left for a huge page. Raises KnownBug."""
    try:
        memory = live.map(1, actor)
    except Refused as refusal:
        live.expect("errno without a place", errno.ENOMEM, refusal.errno)
        return
    live.expect("where a page is mapped", None, memory.address, {Quirk.MAPPED_BEYOND_THE_WINDOW: _WINDOW})
    memory.unmap()


@NEIGHBOURS.case(
    "whatever pages of a mapped file mprotect(2) lets nobody write, and write again, each page of the mapping shows its"
    " own place in the file, in a pool, too",
    MERGED,
    pages=_PAGES,
)
def protected_pages_of_a_pool(live: Live) -> None:
    file = new_memfd(live, pages=_PAGES)
    whole = file.map(_PAGES)
    whole.fill()
    for changes in _changes():
        memory = file.map(_PAGES)
        _expect_own_places(live, memory, changes)
        memory.unmap()
    live.expect_pool(nr=_PAGES, free=0)
    whole.expect_filled()


@NEIGHBOURS.case(
    "whatever pages of a mapped file of a tmpfs mprotect(2) lets nobody write, and write again, huge pages or parts of"
    " them, each page of the mapping shows its own place in the file: where what changes merges with the mapping before"
    " it, behind it or both, as a whole or as its start or end",
    MERGED,
    sizes=Sizes.ONCE,
)
def protected_pages_of_a_tmpfs(live: Live) -> None:
    # a tmpfs without transparent huge pages refuses huge=always
    size, actor = pmd_size(live), live.actor()
    file = nameless_file(live, actor, "always")
    whole = map_start(live, actor, file, _PAGES)
    whole.fill()
    place = map_file(live, actor, file, _PAGES).address
    for kind, step in (
        (mmap.MAP_SHARED, size),
        (mmap.MAP_SHARED, live.base_page),
        (mmap.MAP_PRIVATE, size),
    ):
        with live.about(f"{'shared' if kind == mmap.MAP_SHARED else 'private'}, {step} bytes each"):
            for changes in _changes():
                actor.mmap(whole.length, READ_WRITE, kind | MAP_FIXED, file, address=place)
                _expect_own_places(live, Memory(live, actor, place, _PAGES, step), changes)
    whole.expect_filled()


@NEIGHBOURS.case(
    "what is mapped without an address lies on nothing that is there, whatever a hole lacks that it nearly fits in and"
    " wherever that begins; from the bottom up it lies no higher than a hole with room for it at any alignment",
    "mmap(2) addr; Documentation/admin-guide/sysctl/vm.rst legacy_va_layout; mm/mmap.c vm_unmapped_area();"
    " fs/hugetlbfs/inode.c hugetlb_get_unmapped_area()",
)
def holes(live: Live) -> None:
    need_places_of_any_size(live)
    size, base = live.size, live.base_page
    # the layout of a program is chosen when it starts
    for layout, pages in product(("1", "0"), (1, 2, 3)):
        live.set_knob("proc/sys/vm/legacy_va_layout", layout)
        actor, most = live.actor(), (pages + 1) * size - base
        lengths = most - size, most + base - size, most - base, most
        for length, offset in product(lengths, (0, base, size // 2, size - base)):
            around = actor.mmap((pages + 4) * size, PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            hole = (around // size + 1) * size + offset
            beside = [Memory(live, actor, at, 1, base) for at in (hole - base, hole + length)]
            for one in beside:
                one.protect(READ_WRITE)
                one.fill()
            actor.call("munmap", hole, length)
            there = read_smaps(ObservedTree(live.host), actor.pid) or ()
            memory = live.map(pages, actor, noreserve=True)
            end = memory.at(pages)
            with live.about(f"{pages} pages, a hole of {length} bytes at {offset}, legacy_va_layout={layout}"):
                covered = [f"{one.start:#x}" for one in there if one.start < end and memory.address < one.end]
                live.expect("mappings that it covers", [], covered)
                if layout == "1" and length == most:
                    live.expect("whether it lies above the hole", False, memory.address >= hole + length)
                memory.unmap()
                live.expect("words beside the hole", [1, 1], [value_or_signal(one.read) for one in beside])
            actor.call("munmap", around, (pages + 4) * size)
        actor.end()


def _changes() -> Iterator[list[tuple[range, int]]]:
    """Yield pages that are protected, and the same or others that are then protected or written again."""
    runs = [range(first, end) for first, end in combinations(range(_PAGES + 1), 2)]
    for first, second, prot in product(runs, runs, (mmap.PROT_READ, READ_WRITE)):
        yield [(first, mmap.PROT_READ), (second, prot)]


def _expect_own_places(live: Live, memory: Memory, changes: list[tuple[range, int]]) -> None:
    """Expect ``memory``, the start of a filled file that nobody touched here, to show it after ``changes``."""
    for pages, prot in changes:
        memory.actor.call("mprotect", memory.at(pages.start), len(pages) * memory.size, prot)
    # what is mapped already would show its place whatever the mapping says
    wrong = [page for page in range(_PAGES) if memory.wrong(page * memory.size, WORD)]
    live.expect(f"pages that show another place, after {changes}", [], wrong)


class Neighbours(LiveTest):
    def test_neighbours(self) -> None:
        self.run_area(NEIGHBOURS)
