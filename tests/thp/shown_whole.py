"""What mincore(2), pagemap and smaps tell of huge pages that stay mapped as a whole, and of each part of them."""

import errno
import mmap
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.clear_refs import CLEAR_REFS_ALL, clear_refs, huge_pages_not_dirty, soft_dirty_pages
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import EXCLUSIVE, FRAME, OF_A_FILE, PRESENT, Memory, runs
from hugepage_qa.cases.pages_in_memory import expect_second_in_memory
from hugepage_qa.cases.swapped import swapped
from hugepage_qa.cases.thp_memory import mapped_huge, pmd_size, room_for
from hugepage_qa.cases.thp_policy import base_pages, huge_pages, huge_zeroes, mapped_in_parts, need_counted_parts
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, shared_base_pages, shared_huge_pages
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest

SHOWN = Area("thp/shown-whole", sizes=Sizes.ONCE)

PROC_DOC = "Documentation/filesystems/proc.rst"
PAGEMAP_DOC = "Documentation/admin-guide/mm/pagemap.rst"
_NEW_VALUE = 77


@SHOWN.case(
    "mincore(2) tells of every base page of a huge page that it is there, whichever part is asked for, mapped whole or"
    " in parts, of zeroes too, and of none in front of it or behind it; a length is rounded up to base pages",
    "mincore(2); mm/mincore.c mincore_pte_range(), __mincore_unmapped_range()",
)
def pages_that_are_there(live: Live) -> None:
    let_rest(live)
    for make in (huge_pages, mapped_in_parts, base_pages, huge_zeroes):
        memory = make(live, 3)
        for page in (0, 2):
            memory.advise(mmap.MADV_DONTNEED, page, 1)
        with live.about(make.__name__):
            expect_second_in_memory(live, memory)
            live.expect("huge pages", memory.size * (make is huge_pages), mapped_huge(memory))
        memory.actor.end()


@SHOWN.case(
    "mincore(2) of what is mapped in part alone is ENOMEM, from inside a base page EINVAL, and to where nothing may be"
    " written EFAULT",
    "mincore(2) ERRORS; mm/mincore.c do_mincore()",
)
def pages_that_cannot_be_asked_for(live: Live) -> None:
    memory, base = huge_pages(live, 3), live.base_page
    memory.unmap(2, 1)
    end = memory.at(2)
    for error, address, length in (
        (errno.ENOMEM, end - base, 2 * base),
        (errno.ENOMEM, end - base, base + 1),
        (errno.ENOMEM, end, base),
        (errno.EINVAL, memory.address + 1, base),
        (errno.EINVAL, end - 1, 1),
    ):
        with live.about(f"{length} bytes, {end - address} before the end"):
            live.expect_errno(error, memory.actor.call_with_buffers, "mincore", address, length, bytes(2))
    nowhere = room_for(memory.actor, 1, memory.size)
    live.expect_errno(errno.EFAULT, memory.actor.call, "mincore", memory.address, base, nowhere)
    memory.expect_huge(2)


@SHOWN.case(
    "mincore(2) tells of every base page of shared memory whether it is there, touched by who asks or not, and that all"
    " of a huge page are, whichever part is asked for",
    "mincore(2); mm/mincore.c __mincore_unmapped_range(), mincore_page()",
)
def shared_pages_that_are_there(live: Live) -> None:
    let_only_pmd_inherit(live)
    count = pmd_size(live) // live.base_page
    # neighbours, the ends of a page table, and what begins one
    parts = *((page, 1) for page in (1, 2, count // 2, count - 1, count)), (count + 3, count // 2)
    for make, gone in ((shared_base_pages, parts), (shared_huge_pages, ((0, count),))):
        memory = make(live, 2)
        there = [1] * 2 * count
        for first, pages in gone:
            address = memory.address + first * live.base_page
            memory.actor.call("madvise", address, pages * live.base_page, mmap.MADV_REMOVE)
            there[first : first + pages] = [0] * pages
        # which has no page tables of it yet
        child = memory.fork()
        for each, first in product((child, memory), (0, 1)):
            address, pages = each.address + first * live.base_page, 2 * count - first
            states = each.actor.call_with_buffers("mincore", address, pages * live.base_page, bytes(pages))[1][0]
            told = enumerate(zip(states, there[first:], strict=True), first)
            wrong = [page for page, (state, is_there) in told if state & 1 != is_there]
            if wrong and swapped(memory):
                raise CannotRun("this machine has swapped out what was there")
            with live.about(f"{make.__name__} from page {first} on, {'child' if each is child else 'parent'}"):
                live.expect("base pages that are told to be there and are not, or to be away", [], wrong)
    memory = shared_huge_pages(live, 3)
    for page in (0, 2):
        memory.advise(mmap.MADV_REMOVE, page, 1)
    expect_second_in_memory(live, memory)


@SHOWN.case(
    "pagemap tells of each base page of a huge page whether this process alone has it mapped, where another one has"
    " unmapped a part of it",
    f"{PAGEMAP_DOC} bit 56; fs/proc/task_mmu.c pagemap_pmd_range() (2c1f057e5be6)",
    since="6.11",
)
def exclusive_in_part(live: Live) -> None:
    need_counted_parts(live)
    base = live.base_page
    count = pmd_size(live) // base
    rows = (0, 1), (0, count - 1), (1, count // 2), (count // 2, count // 2), (count - 1, 1)
    told = []
    for first, pages in rows:
        memory = huge_pages(live)
        child = memory.actor.fork()
        child.call("munmap", memory.address + first * base, pages * base)
        told.append(runs({page for page, entry in enumerate(memory.whole_pagemap()) if entry & EXCLUSIVE}))
        memory.expect_huge()
        child.end()
        memory.actor.end()
    expected = [[range(first, first + pages)] for first, pages in rows]
    known = {Quirk.EXCLUSIVE_BY_FIRST_PAGE: [[] if first else [range(count)] for first, _pages in rows]}
    live.expect("base pages that are told to be exclusive, of five huge pages", expected, told, known)


@SHOWN.case(
    "pagemap shows the frames of a huge page one after the other, and whether this process alone has it mapped: also"
    " when a child that had it is gone",
    f"{PAGEMAP_DOC} bits 0-54, 56, 61; fs/proc/task_mmu.c pagemap_pmd_range()",
    since="4.2",
)
def frames_in_pagemap(live: Live) -> None:
    memory = huge_pages(live)
    count = memory.size // live.base_page
    entries = memory.whole_pagemap()
    first = entries[0] & FRAME
    live.expect("the first frame is that of a block", 0, first % count)
    live.expect("frames", list(range(first, first + count)), [entry & FRAME for entry in entries])
    _expect_flags(live, entries, {PRESENT, EXCLUSIVE})
    child = memory.fork()
    for each in (memory, child):
        _expect_flags(live, each.whole_pagemap(), {PRESENT})
    child.actor.end()
    with live.about("when a child that had it is gone"):
        _expect_flags(live, memory.whole_pagemap(), {PRESENT, EXCLUSIVE})


@SHOWN.case(
    "Pss shares a huge page among those who have it mapped, to whom it is shared, and private to one alone",
    f"{PROC_DOC} Pss, Shared_Dirty, Private_Dirty; fs/proc/task_mmu.c smaps_account()",
)
def shares_in_smaps(live: Live) -> None:
    memory = huge_pages(live, 2)
    _expect_shares(memory, live, memory.length, 1)
    child = memory.fork()
    for each in (memory, child):
        _expect_shares(each, live, memory.length, 2)
    child.actor.end()
    _expect_shares(memory, live, memory.length, 1)


@SHOWN.case(
    "Referenced is the huge pages that were used since clear_refs was written",
    f"{PROC_DOC} Referenced, clear_refs; fs/proc/task_mmu.c clear_refs_pte_range()",
)
def referenced(live: Live) -> None:
    memory = huge_pages(live, 2)
    live.expect("Referenced", memory.length, memory.smaps().fields["Referenced"])
    clear_refs(live, memory, CLEAR_REFS_ALL)
    # a CPU that has the address in its TLB does not mark it again, and clear_refs leaves it there but with soft-dirty;
    # mprotect() does not, and marks it on powerpc (pmd_modify() in arch/powerpc/include/asm/book3s/64/pgtable.h)
    clear_refs(live, memory)
    live.expect("Referenced after it was cleared", 0, memory.smaps().fields["Referenced"])
    live.expect("what is read", 1 + memory.size, memory.read(1))
    live.expect("Referenced after a read of one", memory.size, memory.smaps().fields["Referenced"])
    memory.expect_huge()
    memory.expect_filled()


@SHOWN.case(
    "pagemap says of what was written since clear_refs was written that it is soft-dirty, and of no other huge page",
    "Documentation/admin-guide/mm/soft-dirty.rst; fs/proc/task_mmu.c clear_soft_dirty_pmd(), pagemap_pmd_range()",
)
def soft_dirty(live: Live) -> None:
    memory = huge_pages_not_dirty(live)
    live.expect("what is read", 1, memory.read(0))
    live.expect("soft-dirty pages after a read", [], soft_dirty_pages(memory))
    memory.expect_huge()
    written = memory.size + memory.size // 2
    memory.actor.write(memory.address + written, _NEW_VALUE)
    dirty = soft_dirty_pages(memory)
    live.expect("the page that was written is soft-dirty", True, written // live.base_page in dirty)
    others = [one for one in dirty if one < memory.size // live.base_page]
    live.expect("soft-dirty pages of the huge page that was not written", [], others)
    memory.actor.write(memory.address + written, 1 + written)
    memory.expect_filled()


@SHOWN.case(
    "what mremap(2) has moved is soft-dirty at its new place, whole huge pages and others, written or not",
    "Documentation/admin-guide/mm/soft-dirty.rst; mm/huge_memory.c move_soft_dirty_pmd(), mm/mremap.c"
    " move_soft_dirty_pte()",
)
def moved_is_soft_dirty(live: Live) -> None:
    let_rest(live)
    for shift in (0, live.base_page):
        memory = huge_pages_not_dirty(live)
        there = memory.moved_to(room_for(memory.actor, memory.pages + 1, memory.size) + shift)
        there.expect_filled()
        every = memory.length // live.base_page
        live.expect(f"soft-dirty pages, moved to {shift} bytes behind a boundary", every, len(soft_dirty_pages(there)))
        live.expect("AnonHugePages", 0 if shift else there.length, there.smaps().anon_huge_pages)


@SHOWN.case(
    "what was written since clear_refs was written stays soft-dirty when its huge page is mapped as base pages, for"
    " whatever a part of it is, and nothing beside it becomes so",
    "Documentation/admin-guide/mm/soft-dirty.rst; mm/huge_memory.c __split_huge_pmd_locked()",
)
def soft_dirty_in_parts(live: Live) -> None:
    let_rest(live)
    count = pmd_size(live) // live.base_page
    ways = ("madvise", mmap.MADV_DONTNEED), ("mprotect", mmap.PROT_READ), ("munmap",), ("mlock",)
    for call, *arguments in ways:
        memory = huge_pages_not_dirty(live)
        memory.actor.write(memory.at(1) + live.base_page, _NEW_VALUE)
        memory.actor.call(call, memory.at(2) - live.base_page, live.base_page, *arguments)
        with live.about(f"{call}() of the last base page"):
            memory.expect_huge(1)
            dirty = soft_dirty_pages(memory)
            live.expect("the base page that was written is soft-dirty", True, count + 1 in dirty)
            live.expect("soft-dirty pages of the huge page beside it", [], [one for one in dirty if one < count])
        memory.actor.end()


def _expect_flags(live: Live, entries: list[int], flags: set[int]) -> None:
    for flag, name in ((PRESENT, "present"), (EXCLUSIVE, "exclusive"), (OF_A_FILE, "of a file")):
        expected = len(entries) if flag in flags else 0
        live.expect(f"base pages that are {name}", expected, sum(bool(entry & flag) for entry in entries))


def _expect_shares(memory: Memory, live: Live, length: int, processes: int) -> None:
    fields = memory.smaps().fields
    shared = processes > 1
    expected = {
        "Rss": length,
        "Pss": length // processes,
        "Shared_Dirty": length if shared else 0,
        "Private_Dirty": 0 if shared else length,
        "Anonymous": length,
        "AnonHugePages": length,
    }
    live.expect("smaps", expected, {name: fields[name] for name in expected})


class ThpShownWhole(LiveTest):
    def test_shown_whole(self) -> None:
        self.run_area(SHOWN)
