"""Memory that stays where it is, whatever may be done with it: mincore(2) tells of it as before."""

import mmap
from collections.abc import Callable
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.clear_refs import CLEAR_REFS_ALL, clear_refs
from hugepage_qa.cases.closed_memory import DOC as CLOSED_DOC
from hugepage_qa.cases.closed_memory import KINDS, SINCE, close
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.hugetlb_of_a_process import forked
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory, runs
from hugepage_qa.cases.pages_in_memory import base_pages_in_memory, in_memory
from hugepage_qa.cases.thp_policy import (
    advised,
    base_pages,
    huge_pages,
    huge_zeroes,
    mapped_in_parts,
    smaller_pages,
)
from hugepage_qa.cases.thp_shared_memory import shared_base_pages, shared_huge_pages
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault
from hugepage_qa.kernel.uapi import MADV_DONTDUMP, MADV_NOHUGEPAGE, PROT_NONE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest

TOLD_IN_MEMORY = Area("memory/told-in-memory", sizes=Sizes.ONCE)

DOC = "mincore(2); mm/mincore.c mincore_pte_range(), mincore_hugetlb()"
_PAGES = 3
_PROTECTIONS = {PROT_NONE: "nothing", mmap.PROT_READ: "reads", mmap.PROT_WRITE: "writes"}


def _zeroes_in_base_pages(live: Live, pages: int) -> Memory:
    """Return memory that was read alone, with one base page of zeroes everywhere."""
    memory = advised(live, pages, MADV_NOHUGEPAGE)
    live.expect("words that are not zero", 0, memory.nonzero(0, memory.length, live.base_page))
    return memory


_SHARED = shared_huge_pages, shared_base_pages
_ZEROES = huge_zeroes, _zeroes_in_base_pages
_MAKERS: tuple[Callable[[Live, int], Memory], ...] = (
    huge_pages,
    mapped_in_parts,
    base_pages,
    smaller_pages,
    *_ZEROES,
    *_SHARED,
)


@TOLD_IN_MEMORY.case(
    "mincore(2) tells that what is there is in memory, and no more, when mprotect(2) has allowed nothing of it, reads"
    " or writes alone, of all of it or of any part, and when it has allowed all again: huge pages, mapped whole or in"
    " parts, smaller ones, base pages, zeroes, and shared memory; a child that has it is told the same",
    f"{DOC}; mprotect(2)",
)
def protected(live: Live) -> None:
    let_nobody_else_act(live)
    for make in _MAKERS:
        memory, there = _second_there(live, make)
        for (first, end), (prot, name) in product(_parts(memory.size // live.base_page), _PROTECTIONS.items()):
            part = memory.address + first * live.base_page, (end - first) * live.base_page
            with live.about(f"{make.__name__.strip('_')}, {name} alone allowed from base page {first} to {end}"):
                memory.actor.call("mprotect", *part, prot)
                _expect_told(live, memory, there)
                # a child need not have zeroes that were read alone: vma_needs_copy() in mm/memory.c
                if (first, prot) == (0, PROT_NONE) and make not in _ZEROES:
                    child = memory.fork()
                    _expect_told(live, child, there)
                    child.actor.end()
                memory.actor.call("mprotect", *part, READ_WRITE)
        _expect_told(live, memory, there)
        memory.actor.end()


@TOLD_IN_MEMORY.case(
    "mincore(2) tells that what is there is in memory, and no more, when it is locked, kept out of core files, unused"
    " since clear_refs was written, and when a child has it, too: huge pages and others, zeroes, and shared memory",
    f"{DOC}; mlock(2); madvise(2)",
)
def used_otherwise(live: Live) -> None:
    let_nobody_else_act(live)
    ways: dict[str, Callable[[Memory], object]] = {
        "locked": Memory.lock_on_fault,
        "kept out of core files": partial(Memory.advise, advice=MADV_DONTDUMP),
        "unused": partial(clear_refs, live, what=CLEAR_REFS_ALL),
        "shared with a child": Memory.fork,
    }
    for make, (name, act) in product(_MAKERS, ways.items()):
        memory, there = _second_there(live, make)
        with live.about(f"{make.__name__.strip('_')}, {name}"):
            act(memory)
            _expect_told(live, memory, there)
        memory.actor.end()


@TOLD_IN_MEMORY.case(
    "mincore(2) tells that what is there is in memory, and no more, when a program has protected it against writes, all"
    " or any part, and when it may be written again",
    f"{DOC}; Documentation/admin-guide/mm/userfaultfd.rst Write Protect Notifications",
    since="5.19",  # of shared memory
)
def protected_by_a_program(live: Live) -> None:
    let_nobody_else_act(live)
    feature = Feature.PAGEFAULT_FLAG_WP | Feature.WP_HUGETLBFS_SHMEM
    for make in KINDS:
        memory, there = _second_there(live, make)
        fault = Userfault(memory, Mode.WRITE_PROTECTED, feature)
        _expect_told_each_time(live, memory, there, fault.write_protect)
        memory.actor.end()


@TOLD_IN_MEMORY.case(
    "mincore(2) tells that what is there is in memory, and no more, when a program has closed it, all or any part, and"
    " when it is open again",
    f"{DOC}; {CLOSED_DOC}: pages stay resident",
    since=SINCE,
)
def closed_by_a_program(live: Live) -> None:
    let_nobody_else_act(live)
    for make in KINDS:
        memory, there = _second_there(live, make)
        fault = close(memory)
        _expect_told(live, memory, there)
        fault.read_write_protect(length=memory.length, on=False)
        _expect_told_each_time(live, memory, there, fault.read_write_protect)
        memory.actor.end()


@TOLD_IN_MEMORY.case(
    "mincore(2) tells that hugetlb pages that are mapped are in memory, and no others, when mprotect(2) has allowed"
    " nothing of them, reads or writes alone, of all or of one, and when it has allowed all again; a child of private"
    " ones is told the same",
    f"{DOC}; mprotect(2)",
    sizes=Sizes.EACH,
    pages=_PAGES,
)
def protected_hugetlb_pages(live: Live) -> None:
    for is_file, shared in product((False, True), repeat=2):
        memory = new_memfd(live).map(_PAGES, shared=shared) if is_file else live.map(_PAGES, shared=shared)
        memory.touch(1)
        for (prot, name), (first, pages) in product(_PROTECTIONS.items(), ((0, _PAGES), (1, 1), (0, 1))):
            with live.about(f"file {is_file}, shared {shared}, {name} alone allowed of {pages} from page {first} on"):
                memory.protect(prot, first, pages)
                live.expect("pages in memory", (1,), in_memory(live, memory))
                if not shared:
                    child = forked(live, memory)
                    live.expect("pages in memory of a child", (1,), in_memory(live, child))
                    child.actor.end()
                memory.protect(READ_WRITE)
        live.expect("pages in memory in the end", (1,), in_memory(live, memory))
        memory.actor.end()
        live.expect_pool(nr=_PAGES, free=_PAGES)


def _second_there(live: Live, make: Callable[[Live, int], Memory]) -> tuple[Memory, set[int]]:
    """Return what ``make`` makes, of which the second page alone is there, and the numbers of its base pages."""
    memory = make(live, _PAGES)
    for page in (0, 2):
        memory.advise(mmap.MADV_REMOVE if make in _SHARED else mmap.MADV_DONTNEED, page, 1)
    count = memory.size // live.base_page
    there = {*range(count, 2 * count)}
    _expect_told(live, memory, there)
    return memory, there


def _parts(count: int) -> tuple[tuple[int, int], ...]:
    """Return where parts begin and end in base pages, of which a page has ``count``: first such of whole pages."""
    second, third = count, 2 * count
    whole = (0, _PAGES * count), (second, third)
    ends = (second, second + 1), (third - 1, third), (second - 1, second + 1), (third - 1, third + 1)
    return *whole, *ends, (second + count // 2, third)


def _expect_told(live: Live, memory: Memory, there: set[int]) -> None:
    """Expect mincore(2) to tell of these base pages of ``memory`` alone. Raises CannotRun where some are in swap."""
    told = base_pages_in_memory(live, memory.actor, memory.address, range(memory.length // live.base_page))
    if told != there and any(mapping.fields.get("Swap", 0) for mapping in memory.all_mappings()):
        raise CannotRun("others need memory: some of what was there is in swap")
    live.expect("base pages that mincore(2) tells are in memory", runs(there), runs(told))


def _expect_told_each_time(live: Live, memory: Memory, there: set[int], protect: Callable[..., None]) -> None:
    """Expect a part of ``memory`` to be told as before while a program has it, and when it has it no more."""
    base = live.base_page
    for first, end in _parts(memory.size // base):
        with live.about(f"base pages {first} to {end}"):
            protect(offset=first * base, length=(end - first) * base)
            _expect_told(live, memory, there)
            protect(offset=first * base, length=(end - first) * base, on=False)
            _expect_told(live, memory, there)


class ToldInMemory(LiveTest):
    def test_told_in_memory(self) -> None:
        self.run_area(TOLD_IN_MEMORY)
