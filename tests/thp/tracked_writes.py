"""What is written since clear_refs was is soft-dirty, whatever became of the memory between: no write goes untold."""

import mmap
from collections.abc import Callable
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.clear_refs import clear_refs, need_soft_dirty, soft_dirty_pages, while_nothing_moves
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory, runs
from hugepage_qa.cases.thp_memory import mapped_huge, pmd_size, room_for
from hugepage_qa.cases.thp_policy import base_pages, huge_pages, huge_zeroes, mapped_in_parts
from hugepage_qa.cases.thp_shared_memory import (
    expect_shared,
    filled_file,
    map_start,
    mount_tmpfs,
    nameless_file,
    shared_base_pages,
    shared_huge_pages,
)
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault
from hugepage_qa.kernel.uapi import MAP_FIXED, PROT_NONE
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest

TRACKED_WRITES = Area("thp/tracked-writes", sizes=Sizes.ONCE)

SOFT = "Documentation/admin-guide/mm/soft-dirty.rst"
_NEW_VALUE = 77

#: is done to memory after clear_refs was written
Way = Callable[[Live, Memory], None]


def _nothing(_live: Live, _memory: Memory) -> None:
    """Leave it as it is."""


def _read_alone_and_back(_live: Live, memory: Memory) -> None:
    for prot in (mmap.PROT_READ, READ_WRITE):
        memory.protect(prot)


def _closed_and_back(_live: Live, memory: Memory) -> None:
    for prot in (PROT_NONE, READ_WRITE):
        memory.protect(prot)


def _given_back_and_read(live: Live, memory: Memory) -> None:
    memory.advise(mmap.MADV_DONTNEED)
    memory.nonzero(0, memory.length, live.base_page)


def _given_back(_live: Live, memory: Memory) -> None:
    memory.advise(mmap.MADV_DONTNEED)


def _with_a_child_for_a_time(_live: Live, memory: Memory) -> None:
    memory.fork().actor.end()


def _write_protected_and_no_more(_live: Live, memory: Memory) -> None:
    fault = Userfault(memory, Mode.WRITE_PROTECTED, Feature.PAGEFAULT_FLAG_WP | Feature.WP_HUGETLBFS_SHMEM)
    for on in (True, False):
        fault.write_protect(on=on, length=memory.length)


def _cleared_again(live: Live, memory: Memory) -> None:
    clear_refs(live, memory)


_WAYS: tuple[Way, ...] = (
    _nothing,
    _read_alone_and_back,
    _closed_and_back,
    _given_back,
    _given_back_and_read,
    _with_a_child_for_a_time,
    _cleared_again,
)


def _of_a_file(live: Live, pages: int) -> Memory:
    return filled_file(live, f"{mount_tmpfs(live, 'always')}/file", pages)


#: base pages of shared memory are the last, for the bug of theirs that ends a case (931298e103c2 mends it)
_KINDS = huge_pages, mapped_in_parts, base_pages, huge_zeroes, shared_huge_pages, _of_a_file, shared_base_pages


@TRACKED_WRITES.case(
    "a base page that is written is soft-dirty, whatever was done to its memory since clear_refs was written: it was"
    " protected or closed and allowed again, given back, read or not, or inherited; huge pages, whole and in parts,"
    " base pages, zeroes and shared memory",
    f"{SOFT}; mm/huge_memory.c can_change_pmd_writable(); mm/mprotect.c can_change_pte_writable(); mm/vma.c"
    " vma_wants_writenotify()",
)
def written_after_all(live: Live) -> None:
    let_nobody_else_act(live)
    for make, way in product(_KINDS, _WAYS):
        with live.about(f"{make.__name__.strip('_')}, {way.__name__.strip('_').replace('_', ' ')}"):
            _written, untold = _written_and_untold(live, make, way)
            live.expect("base pages that were written and are not soft-dirty", [], untold)


@TRACKED_WRITES.case(
    "a base page that is written is soft-dirty where a program protected its memory since clear_refs was written, and"
    " protects it no more",
    f"{SOFT}; mm/userfaultfd.c uffd_wp_range(); mm/mprotect.c can_change_pte_writable()",
)
def written_when_no_longer_protected(live: Live) -> None:
    let_nobody_else_act(live)
    for make in _KINDS:
        with live.about(make.__name__.strip("_")):
            written, untold = _written_and_untold(live, make, _write_protected_and_no_more)
            known = {Quirk.SOFT_DIRTY_LOST_AT_UNPROTECT: written} if make is shared_base_pages else None
            live.expect("base pages that were written and are not soft-dirty", [], untold, known)


@TRACKED_WRITES.case(
    "of memory that is mapped as base pages those alone are soft-dirty that were written since clear_refs was, and none"
    " that was read beside them, in the same huge page of a file or not, when all was protected or closed since and"
    " allowed again, or inherited",
    f"{SOFT}; mm/mprotect.c change_pte_range(), mprotect_folio_pte_batch(); mm/memory.c copy_present_ptes()",
)
def only_what_was_written(live: Live) -> None:
    let_nobody_else_act(live)
    ways = _nothing, _read_alone_and_back, _closed_and_back, _with_a_child_for_a_time
    # anonymous huge pages in parts are dirty as a whole, and what the kernel marks so is soft-dirty then, on some
    # architectures (modify_prot_start_ptes(), pte_mkdirty() of x86)
    for make, way in product((_file_in_parts, base_pages, shared_base_pages), ways):
        with live.about(f"{make.__name__.strip('_')}, {way.__name__.strip('_').replace('_', ' ')}"):
            written, found = while_nothing_moves(live, partial(_written_before, live, make, way))
            live.expect("soft-dirty base pages", runs(written), runs(found))


def _file_in_parts(live: Live, pages: int) -> Memory:
    """Return huge pages of a file where none fits: what is only read of them is mapped as base pages, and is clean."""
    actor, size = live.actor(), pmd_size(live)
    descriptor = nameless_file(live, actor, "always")
    expect_shared(live, map_start(live, actor, descriptor, pages), True, "huge=always")
    address = room_for(actor, pages + 1, size) + live.base_page
    actor.mmap(pages * size, READ_WRITE, mmap.MAP_SHARED | MAP_FIXED, descriptor, address=address)
    return Memory(live, actor, address, pages, size)


def _written_before(
    live: Live, make: Callable[[Live, int], Memory], way: Way
) -> tuple[tuple[set[int], set[int]], bool]:
    """Read memory, write some of it and go the ``way``; return what was written and is soft-dirty, and if it is one."""
    memory = make(live, 2)
    need_soft_dirty(live, memory)
    clear_refs(live, memory)
    memory.nonzero(0, memory.length, live.base_page)
    live.expect("bytes that are mapped as huge pages", 0, mapped_huge(memory))
    every = memory.length // live.base_page
    written = {1, 2, every // 2 - 1, every // 2 + 5, every - 1}
    for number in sorted(written):
        memory.actor.write(memory.address + number * live.base_page, _NEW_VALUE)
    way(live, memory)
    found = {*soft_dirty_pages(memory)}
    memory.actor.end()
    return (written, found), found == written


def _written_and_untold(live: Live, make: Callable[[Live, int], Memory], way: Way) -> tuple[list[int], list[int]]:
    """Write base pages of memory for which ``way`` was gone; return which, and those that are not soft-dirty then."""
    memory = while_nothing_moves(live, partial(_cleared, live, make, way))
    if way is _nothing:
        # more may be told than was written: a mapping that becomes one with others is soft-dirty as a whole
        live.expect("base pages that are soft-dirty before", [], runs({*soft_dirty_pages(memory)}))
    count = memory.size // live.base_page
    written = [0, count // 2 + 5, 2 * count - 1]
    for number in written:
        memory.actor.write(memory.address + number * live.base_page, _NEW_VALUE)
    untold = {*written} - {*soft_dirty_pages(memory)}
    memory.actor.end()
    return written, sorted(untold)


def _cleared(live: Live, make: Callable[[Live, int], Memory], way: Way) -> tuple[Memory, bool]:
    """Return memory that nobody has written since clear_refs was, and whether none of it is soft-dirty."""
    memory = make(live, 2)
    need_soft_dirty(live, memory)
    clear_refs(live, memory)
    way(live, memory)
    return memory, not soft_dirty_pages(memory)


class ThpTrackedWrites(LiveTest):
    def test_tracked_writes(self) -> None:
        self.run_area(TRACKED_WRITES)
