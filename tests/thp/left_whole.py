"""Advice that has nothing to do on huge pages, or on a part of them: they stay mapped as a whole."""

import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import FRAME, Memory
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import huge_pages, huge_zeroes
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, shared_huge_pages
from hugepage_qa.kernel.ksm import has_ksm
from hugepage_qa.kernel.uapi import (
    MADV_COLD,
    MADV_COLLAPSE,
    MADV_DODUMP,
    MADV_DONTDUMP,
    MADV_GUARD_REMOVE,
    MADV_HUGEPAGE,
    MADV_KEEPONFORK,
    MADV_NORMAL,
    MADV_POPULATE_READ,
    MADV_SEQUENTIAL,
    MADV_UNMERGEABLE,
    MADV_WILLNEED,
)
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.version import KernelVersion

LEFT_WHOLE = Area("thp/left-whole", sizes=Sizes.ONCE)

SOURCE = "madvise(2); mm/madvise.c madvise_vma_behavior()"
_PAGES = 3
#: what memory is already, or what was never done to it
_HAS_IT_ALREADY = {
    "MADV_NORMAL": MADV_NORMAL,
    "MADV_HUGEPAGE": MADV_HUGEPAGE,
    "MADV_DOFORK": mmap.MADV_DOFORK,
    "MADV_KEEPONFORK": MADV_KEEPONFORK,
    "MADV_DODUMP": MADV_DODUMP,
}
#: what another advice makes another mapping of, by whole huge pages, or what is done to a huge page as to one
_OF_WHOLE_PAGES = {
    "MADV_RANDOM": mmap.MADV_RANDOM,
    "MADV_SEQUENTIAL": MADV_SEQUENTIAL,
    "MADV_DONTFORK": mmap.MADV_DONTFORK,
    "MADV_DONTDUMP": MADV_DONTDUMP,
}
_COLD_SINCE, _READ_SINCE, _COLLAPSE_SINCE = KernelVersion(5, 4), KernelVersion(5, 14), KernelVersion(6, 1)
#: guards, and those in memory that is not anonymous
_GUARDS_SINCE, _SHARED_GUARDS_SINCE = KernelVersion(6, 13), KernelVersion(6, 15)


@dataclass(frozen=True)
class _Kind:
    """Memory of ``_PAGES`` huge pages: how it is made, how many bytes of it are mapped whole, and what it holds.

    What is made is the memory as each process has it, first of all the one whose advice it is.
    """

    make: Callable[[Live], Sequence[Memory]]
    whole: Callable[[Live, Memory], int]
    expect_intact: Callable[[Memory], None]
    is_shared: bool = False


@LEFT_WHOLE.case(
    "advice that memory has already, or that has nothing to do there, for a part of a huge page, all of it, or parts of"
    " several, leaves them mapped whole, and what they hold: anonymous ones, of one process or in each of two, shared"
    " ones and those of zeroes",
    f"{SOURCE}, guard_remove_pmd_entry(), swapin_walk_pmd_entry()",
)
def advised_in_part(live: Live) -> None:
    let_rest(live)
    size, base = pmd_size(live), live.base_page
    ranges = (
        (0, base),
        (size // 2, base),
        (size - base, base),
        (base, size - 2 * base),
        (size - base, 2 * base),
        (size // 2, 2 * size),
        *_whole_ranges(size),
    )
    for name, kind in _KINDS.items():
        for advice, number in {**_HAS_IT_ALREADY, **dict(_has_nothing_to_do(live, kind))}.items():
            with live.about(f"{name}, {advice}"):
                _expect_left_whole(live, kind, number, ranges)


@LEFT_WHOLE.case(
    "advice for whole huge pages leaves each mapped whole, and what it holds, where another mapping begins at it, too:"
    " anonymous ones, of one process or in each of two, shared ones and those of zeroes",
    f"{SOURCE}, madvise_cold_or_pageout_pte_range(); mm/khugepaged.c madvise_collapse()",
)
def advised_as_a_whole(live: Live) -> None:
    let_rest(live)
    since = {"MADV_COLD": (MADV_COLD, _COLD_SINCE), "MADV_COLLAPSE": (MADV_COLLAPSE, _COLLAPSE_SINCE)}
    newer = {name: number for name, (number, version) in since.items() if live.kernel_version >= version}
    for name, kind in _KINDS.items():
        for advice, number in {**_OF_WHOLE_PAGES, **newer}.items():
            with live.about(f"{name}, {advice}"):
                _expect_left_whole(live, kind, number, _whole_ranges(pmd_size(live)))


def _whole_ranges(size: int) -> tuple[tuple[int, int], ...]:
    """Return where one of the huge pages, and all of them, begin, and how long they are, in bytes."""
    return (size, size), (0, size), (0, _PAGES * size)


def _has_nothing_to_do(live: Live, kind: _Kind) -> Iterator[tuple[str, int]]:
    """Yield advice that this kernel has, and that acts on what is not there: swap, guards, merged pages, holes."""
    if live.host.read("proc/swaps") is not None:  # without CONFIG_SWAP this is no advice for anonymous memory
        yield "MADV_WILLNEED", MADV_WILLNEED
    if has_ksm(live.host):
        yield "MADV_UNMERGEABLE", MADV_UNMERGEABLE
    if live.kernel_version >= _READ_SINCE:
        yield "MADV_POPULATE_READ", MADV_POPULATE_READ
    if live.kernel_version >= (_SHARED_GUARDS_SINCE if kind.is_shared else _GUARDS_SINCE):
        yield "MADV_GUARD_REMOVE", MADV_GUARD_REMOVE


def _expect_left_whole(live: Live, kind: _Kind, advice: int, ranges: Iterable[tuple[int, int]]) -> None:
    of_each = kind.make(live)
    memory = of_each[0]
    expected = [memory.length] * len(of_each)
    for offset, length in ranges:
        with live.about(f"{length} bytes at {offset}"):
            live.expect_success(memory.actor.call, "madvise", memory.address + offset, length, advice)
            found = [kind.whole(live, each) for each in of_each]
            live.expect("bytes that are mapped as huge pages, by process", expected, found)
        if found != expected:
            # nothing maps them whole again
            break
    for each in of_each:
        kind.expect_intact(each)
    memory.actor.end()


# --- kinds of memory -------------------------------------------------------------------------------------------------


def _of_one_process(live: Live) -> Sequence[Memory]:
    return (huge_pages(live, _PAGES),)


def _of_two_processes(live: Live) -> Sequence[Memory]:
    memory = huge_pages(live, _PAGES)
    return memory, memory.fork()


def _shared(live: Live) -> Sequence[Memory]:
    let_only_pmd_inherit(live)
    memory = shared_huge_pages(live, _PAGES)
    memory.advise(MADV_HUGEPAGE)
    return (memory,)


def _zeroes(live: Live) -> Sequence[Memory]:
    return (huge_zeroes(live, _PAGES),)


def _shown_whole(_live: Live, memory: Memory) -> int:
    return sum(found.anon_huge_pages + found.shmem_pmd_mapped for found in memory.all_mappings())


def _zeroes_in_a_row(live: Live, memory: Memory) -> int:
    """Return how much has the frames of a huge page of zeroes, which smaps does not show: base pages have one frame."""
    whole = 0
    for page in range(memory.pages):
        first, last = (
            entry & FRAME for entry in memory.pagemap((memory.at(page), memory.at(page + 1) - live.base_page))
        )
        whole += memory.size * (last - first == memory.size // live.base_page - 1)
    return whole


def _expect_zeroes(memory: Memory) -> None:
    memory.expect_zero(pages=memory.pages)


_KINDS = {
    "anonymous memory": _Kind(_of_one_process, _shown_whole, Memory.expect_filled),
    "memory of two processes": _Kind(_of_two_processes, _shown_whole, Memory.expect_filled),
    "shared memory": _Kind(_shared, _shown_whole, Memory.expect_filled, is_shared=True),
    "zeroes": _Kind(_zeroes, _zeroes_in_a_row, _expect_zeroes),
}


class ThpLeftWhole(LiveTest):
    def test_left_whole(self) -> None:
        self.run_area(LEFT_WHOLE)
