"""Which size of huge page a fault takes of those that are allowed: a model tells which base pages are there then."""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from random import Random

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import expect_no_node_short, with_blocks
from hugepage_qa.cases.hugetlb_files import HugeFile
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import PRESENT, SWAPPED, Memory, runs
from hugepage_qa.cases.thp_memory import has_folios_of, map_aligned, pmd_size, room_for
from hugepage_qa.cases.thp_policy import need_sizes, set_policy, smaller_sizes
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.tree import read_integer, size_directories
from hugepage_qa.kernel.uapi import MADV_DONTDUMP, MADV_HUGEPAGE, MAP_FIXED
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

FAULTS = Area("thp/fault-sizes", sizes=Sizes.ONCE)

_PAGES = 2
_TOUCHES = 32
#: of so many touches one is a read, before one of so many some base pages are given back, and one of so many is of both
#: ends of a block
_READ_OF, _GIVEN_BACK_OF, _BLOCK_OF = 6, 5, 3


@dataclass
class _Faults:
    """What faults do to ``memory``, whose base pages ``mappings`` have; ``allowed`` are sizes in base pages.

    ``there`` are the base pages that are mapped, ``written`` those that hold a word, ``taken`` counts pages by size.
    """

    memory: Memory
    allowed: list[int]
    mappings: list[range]
    there: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    taken: dict[int, int] = field(default_factory=dict)

    def touch(self, live: Live, page: int, is_read: bool) -> int:
        """Read or write a base page, and return how many of them the fault took together."""
        base = live.base_page
        address = self.memory.address + page * base
        size = 0
        if page not in self.there:
            # a read has the zero page of one base page
            size = 1 if is_read else self._size(page)
            first = page - page % size
            self.there |= set(range(first, first + size))
            self.taken[size] = self.taken.get(size, 0) + 1
        if is_read:
            expected = 1 + page * base if page in self.written else 0
            live.expect(f"what is read in base page {page}", expected, self.memory.actor.read(address))
        else:
            self.memory.actor.write(address, 1 + page * base)
            self.written.add(page)
        return size

    def _size(self, page: int) -> int:
        mapping = next(mapping for mapping in self.mappings if page in mapping)
        for size in sorted(self.allowed, reverse=True):
            block = range(page - page % size, page - page % size + size)
            if block[0] in mapping and block[-1] in mapping and self.there.isdisjoint(block):
                return size
        return 1

    def give_back(self, pages: range, base: int) -> None:
        """Give base pages of one mapping back."""
        length = len(pages) * base
        self.memory.actor.call("madvise", self.memory.address + pages[0] * base, length, mmap.MADV_DONTNEED)
        self.there -= set(pages)
        self.written -= set(pages)


@FAULTS.case(
    "who writes memory gets a page of the largest size that is allowed, lies in the mapping as a whole, at a multiple"
    " of its size, and where nothing is yet, whatever was touched and given back before; the page is counted for its"
    " size, who reads gets one base page, and no word changes",
    f"{THP_DOC} hugepages-<size>kB/enabled, anon_fault_alloc; mm/memory.c alloc_anon_folio(), pte_range_none()",
    since="6.10",
)
def largest_that_fits(live: Live) -> None:
    set_policy(live, "madvise", pmd="never")
    let_rest(live)
    sizes = dict(need_sizes(smaller_sizes(live)))
    for number, allowed in enumerate(_choices(list(sizes))):
        for size, path in sizes.items():
            live.host.write(f"{path}/enabled", "madvise" if size in allowed else "never")
        with_blocks(live, max(allowed), 2 * _PAGES)
        before = {size: _counted(live, sizes[size]) for size in allowed}
        faults = _map(live, [size // live.base_page for size in allowed], number)
        with live.about(f"sizes {[size >> 10 for size in allowed]} kB"):
            _touch_at_random(live, faults, Random(number))  # noqa: S311 no secret
            for size in allowed:
                taken = faults.taken.get(size // live.base_page, 0)
                rose = _counted(live, sizes[size]) - before[size]
                live.expect(f"anon_fault_alloc of {size >> 10} kB rose by {taken} at least", taken, min(rose, taken))
        faults.memory.actor.end()


@FAULTS.case(
    "who writes a shared mapping gets a page of the size that is allowed where all of it lies in the mapping, and a"
    " base page where it does not, at the begin and at the end, of whichever size and wherever within one the mapping"
    " begins and ends, and however long its file is: the file has no memory that nobody asked for",
    f"{THP_DOC} hugepages-<size>kB/shmem_enabled; mm/shmem.c shmem_suitable_orders(), thp_vma_suitable_orders()",
    since="6.12",
)
def ends_of_shared_mappings(live: Live) -> None:
    let_only_pmd_inherit(live, is_used=False)
    let_rest(live)
    knobs = {size: f"{path}/shmem_enabled" for size, path in size_directories(live.host, DIRECTORY).items()}
    sizes = sorted(size for size, knob in knobs.items() if live.host.read(knob) is not None)
    for size in sorted({sizes[0], sizes[len(sizes) // 2], sizes[-1]}):
        if not has_folios_of(live, size):
            continue
        for each in sizes:
            live.set_knob(knobs[each], "always" if each == size else "never")
        every = size // live.base_page
        for first, end in ((0, every + 1), (0, 2 * every - 1), (1, 2 * every), (every - 1, 3 * every - 1)):
            # as anonymous shared memory has it, and longer
            for length in (end, 4 * every):
                with live.about(f"{size >> 10} kB, base pages {first} to {end - 1} of {length}"):
                    _expect_shared_ends(live, size, (first, end), length)


def _expect_shared_ends(live: Live, size: int, mapped: tuple[int, int], length: int) -> None:
    """Write each base page of a new file's mapping that is one of its ends, and one amid it, from the last one on."""
    base, every, (first, end) = live.base_page, size // live.base_page, mapped
    actor = live.actor()
    file = HugeFile(live, actor, actor.call("memfd_create", "mapped", 0))
    actor.call("ftruncate", file.descriptor, length * base)
    address = room_for(actor, 3, size) + first * base
    actor.mmap((end - first) * base, READ_WRITE, mmap.MAP_SHARED | MAP_FIXED, file.descriptor, first * base, address)
    with_blocks(live, size, 2)
    there = set[int]()
    for page in sorted({end - 1, end - end % every, every, first}, reverse=True):
        if page >= end or page in there:
            continue
        block = range(page // every * every, (page // every + 1) * every)
        is_whole = first <= block[0] and block[-1] < end
        there |= {*block} if is_whole else {page}
        actor.write(address + (page - first) * base, 1)
        found = file.blocks // base
        if found < len(there):
            expect_no_node_short(live, size, 1)
        live.expect(f"base pages of the file when {page} was written", len(there), found)
    actor.end()


def _choices(sizes: list[int]) -> Iterator[list[int]]:
    """Yield all sizes, every second one, the smallest, the largest, both, and one between."""
    yield sizes
    yield from (sizes[::2], sizes[:1], sizes[-1:], [sizes[0], sizes[-1]], [sizes[len(sizes) // 2]])


def _map(live: Live, allowed: list[int], number: int) -> _Faults:
    """Map memory that begins and ends beside where large pages do, with a hole, and a border of two mappings."""
    memory = map_aligned(live, _PAGES, pmd_size(live), advice=MADV_HUGEPAGE)
    actor, base, of_a_page = memory.actor, live.base_page, memory.size // live.base_page
    end = _PAGES * of_a_page
    first, last, hole, border = 1 + number, end - 3 - number, of_a_page + 3 * number, of_a_page // 2 + 2 * number
    for start, length in ((0, first), (hole, 1), (last, end - last)):
        actor.call("munmap", memory.address + start * base, length * base)
    # a mapping with other flags is one of its own
    actor.call("madvise", memory.address + border * base, (hole - border) * base, MADV_DONTDUMP)
    return _Faults(memory, allowed, [range(first, border), range(border, hole), range(hole + 1, last)])


def _touch_at_random(live: Live, faults: _Faults, random: Random) -> None:
    base = live.base_page
    # the ends of all mappings come first; each touch is a base page, and whether it is read
    planned = [
        (page, random.randrange(_READ_OF) == 0) for mapping in faults.mappings for page in (mapping[0], mapping[-1])
    ]
    for number in range(_TOUCHES):
        mapping = faults.mappings[random.randrange(len(faults.mappings))]
        if number % _GIVEN_BACK_OF == _GIVEN_BACK_OF - 1:
            start = mapping[random.randrange(len(mapping))]
            faults.give_back(range(start, min(start + random.randrange(1, 40), mapping.stop)), base)
        if not planned and random.randrange(_BLOCK_OF) == 0:
            planned = _ends_of_a_block(faults, mapping, random)
        page, is_read = (
            planned.pop() if planned else (_somewhere(faults, mapping, random), random.randrange(_READ_OF) == 0)
        )
        size = faults.touch(live, page, is_read)
        found = {at for at, entry in enumerate(faults.memory.whole_pagemap()) if entry & (PRESENT | SWAPPED)}
        if found < faults.there and size > 1:
            expect_no_node_short(live, size * base, 1)
        what = f"touch {number} ({'read' if is_read else 'write'} of base page {page}, {size} of them)"
        live.expect(
            f"base pages that are there and should not be, or the other way round, {what}",
            [],
            [(pages[0], pages[-1]) for pages in runs(found ^ faults.there)],
        )
        if found != faults.there:
            return
    _expect_contents(live, faults)


def _ends_of_a_block(faults: _Faults, mapping: range, random: Random) -> list[tuple[int, bool]]:
    """Return both ends of where a page of an allowed size may lie: the one that is there already has it not lie there.

    The second one is the first that is touched, and is read.
    """
    size = faults.allowed[random.randrange(len(faults.allowed))]
    first = mapping[random.randrange(len(mapping))] // size * size
    ends = [page for page in (first, first + size - 1) if page in mapping]
    random.shuffle(ends)
    return [(page, number > 0) for number, page in enumerate(ends)]


def _somewhere(faults: _Faults, mapping: range, random: Random) -> int:
    """Return a base page of ``mapping``: any, or one near another one that is there."""
    near = sorted(faults.there & set(mapping))
    if near and random.randrange(2):
        page = near[random.randrange(len(near))] + random.randrange(-20, 20)
        return min(max(page, mapping[0]), mapping[-1])
    return mapping[random.randrange(len(mapping))]


def _expect_contents(live: Live, faults: _Faults) -> None:
    """Expect each written base page to have its one word, and nothing else to hold any."""
    base, memory = live.base_page, faults.memory
    # a processor shows what an entry of the page table had that was overwritten until it has to forget it
    for mapping, prot in product(faults.mappings, (mmap.PROT_READ, READ_WRITE)):
        memory.actor.call("mprotect", memory.address + mapping[0] * base, len(mapping) * base, prot)
    wrong = sum(
        memory.actor.check(memory.address + pages[0] * base, len(pages) * base, base, 1 + pages[0] * base)
        for pages in runs(faults.written)
    )
    live.expect("words that were written and changed", 0, wrong)
    found = sum(memory.nonzero(mapping[0] * base, len(mapping) * base) for mapping in faults.mappings)
    live.expect("words that are not zero", len(faults.written), found)


def _counted(live: Live, path: str) -> int:
    return read_integer(ObservedTree(live.host), f"{path}/stats/anon_fault_alloc") or 0


class ThpFaultSizes(LiveTest):
    def test_fault_sizes(self) -> None:
        self.run_area(FAULTS)
