"""Huge pages smaller than a PMD: what they hold through all that copies, moves, splits and swaps them, and counts."""

import mmap
import signal
from collections.abc import Iterator
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.debugfs import write_debugfs
from hugepage_qa.cases.fragmentation import compact_if_short, expect_no_shortage
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import PRESENT, WORD, Memory, runs
from hugepage_qa.cases.swapped import need_swap, swap_out, swapped
from hugepage_qa.cases.thp_memory import map_aligned, room_for
from hugepage_qa.cases.thp_policy import need_sizes, set_policy, smaller_sizes, some_smaller_sizes
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault, protected_pages
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MREMAP_FIXED, MREMAP_MAYMOVE
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.sizes import MIB

SMALLER = Area("thp/smaller-sizes", sizes=Sizes.ONCE)

SINCE = "6.10"
UFFD_DOC = "Documentation/admin-guide/mm/userfaultfd.rst"
#: too few for a page of the next size
_PAGES = 3
_NEW_VALUE = 77
_SPLIT_SECONDS = 10.0
_BOTH = Mode.MISSING | Mode.WRITE_PROTECTED


@SMALLER.case(
    "a part of a smaller huge page that is given back, protected or unmapped leaves the rest as it was",
    "madvise(2) MADV_DONTNEED; mprotect(2); mm/memory.c zap_present_folio_ptes(), mm/mprotect.c change_pte_range()",
    since=SINCE,
)
def parts(live: Live) -> None:
    for memory in _each_size(live):
        half, base = memory.size // 2, live.base_page
        memory.actor.call("madvise", memory.address + half, base, mmap.MADV_DONTNEED)
        live.expect("words that were given back and are not zero", 0, memory.nonzero(half, base))
        memory.actor.call("mprotect", memory.at(1) + base, base, mmap.PROT_READ)
        _expect_held(live, memory, memory.size, memory.size)
        memory.actor.call("mprotect", memory.at(1) + base, base, READ_WRITE)
        memory.actor.call("munmap", memory.at(2) + half, half)
        _expect_held(live, memory, 0, half)
        _expect_held(live, memory, half + base, 2 * memory.size - base)
        # beside pages that were written anew
        memory.fill_part(0, half, _NEW_VALUE)
        _expect_held(live, memory, 0, half, _NEW_VALUE)
        _expect_held(live, memory, half + base, 2 * memory.size - base)


@SMALLER.case(
    "after fork() each process keeps what it wrote into a smaller huge page, whichever part that is",
    "fork(2); mm/memory.c copy_present_ptes(), do_wp_page(), wp_can_reuse_anon_folio()",
    since=SINCE,
)
def forked(live: Live) -> None:
    for parent in _each_size(live):
        child = parent.fork()
        for part, (writer, other) in enumerate(((child, parent), (parent, child))):
            offset = part * parent.size + live.base_page
            writer.fill_part(offset, live.base_page, _NEW_VALUE)
            _expect_held(live, writer, offset, live.base_page, _NEW_VALUE)
            _expect_held(live, other, offset, live.base_page)
        parent.actor.exit()
        _expect_held(live, child, parent.size, 2 * parent.size)
        child.fill(_NEW_VALUE)
        child.expect_filled(_NEW_VALUE)


@SMALLER.case(
    "what was protected in smaller huge pages can be written where mremap() has moved it, from swap, too",
    f"{UFFD_DOC} UFFD_FEATURE_EVENT_REMAP; mm/mremap.c move_ptes() (0cef0bb836e3)",
    since="6.13",
)
def moved_while_protected(live: Live) -> None:
    need_swap(live, MIB)
    for in_swap in (False, True):
        for memory in _each_size(live):
            fault = Userfault(memory, Mode.WRITE_PROTECTED, Feature.PAGEFAULT_FLAG_WP)
            fault.write_protect(length=memory.length)
            live.expect_signal(signal.SIGBUS, memory.touch)
            if in_swap and memory.length <= MIB:
                swap_out(live, memory, memory.length)
            there = memory.moved_to(room_for(memory.actor, memory.pages, memory.size))
            live.expect(f"base pages of {memory.size} bytes that are protected", [], protected_pages(there))
            there.expect_filled()
            there.fill(_NEW_VALUE)
            there.expect_filled(_NEW_VALUE)


@SMALLER.case(
    "mremap() moves smaller huge pages, and parts of them, with what they hold",
    "mremap(2); mm/mremap.c move_ptes()",
    since=SINCE,
)
def moved(live: Live) -> None:
    for memory in _each_size(live):
        room = memory.actor.mmap(2 * memory.length, 0, mmap.MAP_ANONYMOUS | mmap.MAP_PRIVATE)
        # from the middle of the first one to the middle of the last one
        offset, length = memory.size // 2, memory.length - memory.size
        target = room + live.base_page
        flags = MREMAP_MAYMOVE | MREMAP_FIXED
        memory.actor.call("mremap", memory.address + offset, length, length, flags, target)
        wrong = memory.actor.check(target, length, WORD, 1 + offset)
        live.expect("words that were moved and changed", 0, wrong)
        _expect_held(live, memory, 0, offset)
        _expect_held(live, memory, offset + length, memory.length - offset - length)


@SMALLER.case(
    "split_huge_pages splits smaller huge pages, counts it for their size, and leaves what they hold",
    f"{THP_DOC} split, nr_anon; mm/huge_memory.c split_huge_pages_pid()",
    since="6.11",
)
def split(live: Live) -> None:
    for memory in _each_size(live):
        before = _counted(live, memory, "split")
        live.host.wait_until(partial(_is_split, live, memory, before), _SPLIT_SECONDS)
        rose = _counted(live, memory, "split") - before
        live.expect(f"split of {memory.size >> 10} kB rose by {_PAGES} at least", _PAGES, min(rose, _PAGES))
        live.expect("Rss", memory.length, memory.smaps().rss)
        memory.expect_filled()


@SMALLER.case(
    "smaller huge pages that are swapped out, whole or split, are counted for their size and come back as they were",
    f"{THP_DOC} swpout, swpout_fallback, zswpout; mm/vmscan.c shrink_folio_list()",
    since="6.12",
)
def swapped_out(live: Live) -> None:
    need_swap(live, _PAGES * max(size for size, _path in need_sizes(smaller_sizes(live))))
    for memory in _each_size(live):
        before = _swaps(live, memory)
        swap_out(live, memory, memory.length)
        rose = _swaps(live, memory) - before
        live.expect(f"{memory.size >> 10} kB swapped out: {_PAGES} at least", _PAGES, min(rose, _PAGES))
        memory.expect_filled()
        live.expect("memory in swap after it was read", 0, swapped(memory))


@SMALLER.case(
    "where a userfaultfd watches memory, private or shared, for missing pages, for writes or for both, each access and"
    " each UFFDIO_COPY gives the one base page that was asked for, wherever in a smaller huge page that is, and none"
    " beside it",
    f"{UFFD_DOC} UFFDIO_REGISTER_MODE_MISSING, UFFDIO_REGISTER_MODE_WP; mm/memory.c alloc_anon_folio(), finish_fault()",
    since=SINCE,
)
def watched(live: Live) -> None:
    let_only_pmd_inherit(live, is_used=False)
    let_rest(live)
    directories = dict(smaller_sizes(live))
    for filled in _each_size(live):
        # what others do not watch has got such pages now
        size, of_shared = filled.size, f"{directories[filled.size]}/shmem_enabled"
        live.set_knob_if_there(of_shared, "always")  # since Linux 6.11
        for shared, mode in product((False, True), (Mode.MISSING, Mode.WRITE_PROTECTED, _BOTH)):
            memory = map_aligned(live, _PAGES, size, shared=shared, advice=MADV_HUGEPAGE)
            fault = Userfault(memory, mode, Feature.PAGEFAULT_FLAG_WP | Feature.WP_HUGETLBFS_SHMEM)
            with live.about(f"{size >> 10} kB, shared {shared}, watched for {mode!r}"):
                _expect_each_alone(live, memory, fault, is_filled=Mode.MISSING in mode)
            memory.actor.end()
        live.set_knob_if_there(of_shared, "never")


def _expect_each_alone(live: Live, memory: Memory, fault: Userfault, *, is_filled: bool) -> None:
    """Have base pages come, at both ends of a page, in its midst and beside others, and expect none but these.

    They are written and read, or, where they are to be filled by who watches, copied after an access was refused.
    """
    base, every = live.base_page, memory.size // live.base_page
    source = map_aligned(live, 1, memory.size, actor=memory.actor)
    source.fill()
    there = set[int]()
    for number in (1, 2, every - 1, every + every // 2, every):
        address = memory.address + number * base
        is_written = number % 2 == 1
        access = partial(memory.actor.write, address, 1) if is_written else partial(memory.actor.read, address)
        if is_filled:
            live.expect_signal(signal.SIGBUS, access)
            fault.copy(source, number // every, offset=number % every * base, length=base)
        else:
            live.expect("what is read", None if is_written else 0, access())
        there.add(number)
        found = {at for at, entry in enumerate(memory.whole_pagemap()) if entry & PRESENT}
        live.expect(f"base pages that are there when {number} was asked for", runs(there), runs(found))


def _is_split(live: Live, memory: Memory, before: int) -> bool:
    # one that somebody else has a hold of is passed over
    write_debugfs(live, "split_huge_pages", f"{memory.actor.pid},{memory.address:#x},{memory.at(_PAGES):#x}")
    return _counted(live, memory, "split") - before >= _PAGES


def _each_size(live: Live) -> Iterator[Memory]:
    """Yield filled memory of some pages of the smallest size, one between, and the largest one below a PMD.

    Raises CannotRun where the kernel has none.
    """
    set_policy(live, "madvise", pmd="never")
    for size, path in need_sizes(some_smaller_sizes(live)):
        live.set_knob(f"{path}/enabled", "madvise")
        memory = _filled(live, size)
        yield memory
        memory.actor.end()
        live.set_knob(f"{path}/enabled", "never")


def _filled(live: Live, size: int) -> Memory:
    """Return memory of pages of ``size`` bytes, filled. Raises CannotRun where free memory has no such blocks."""
    memory, given = _fault_in(live, size)
    if given < _PAGES and compact_if_short(live, size, _PAGES):
        memory.actor.end()
        memory, given = _fault_in(live, size)
    if given < _PAGES:
        expect_no_shortage(live, size, _PAGES)
    live.expect(f"faults that took {size >> 10} kB: {_PAGES} at least", _PAGES, min(given, _PAGES))
    return memory


def _fault_in(live: Live, size: int) -> tuple[Memory, int]:
    memory = map_aligned(live, _PAGES, size, advice=MADV_HUGEPAGE)
    before = _counted(live, memory, "anon_fault_alloc")
    memory.fill()
    return memory, _counted(live, memory, "anon_fault_alloc") - before


def _counted(live: Live, memory: Memory, name: str) -> int:
    """Return a counter of the size of ``memory``; others have such pages, too, so that it may rise by more."""
    directory = dict(smaller_sizes(live))[memory.size]
    return read_integer(ObservedTree(live.host), f"{directory}/stats/{name}") or 0


def _swaps(live: Live, memory: Memory) -> int:
    return sum(_counted(live, memory, name) for name in ("swpout", "swpout_fallback", "zswpout"))


def _expect_held(live: Live, memory: Memory, offset: int, length: int, value: int = 1) -> None:
    wrong = memory.wrong(offset, length, value)
    live.expect(f"words of pages of {memory.size >> 10} kB that changed", 0, wrong)


class ThpSmallerSizes(LiveTest):
    def test_smaller_sizes(self) -> None:
        self.run_area(SMALLER)
