"""Mappings beside each other that one mremap(2) moves: huge pages of a pool, and transparent ones."""

import errno
import mmap
import signal
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import value_or_signal
from hugepage_qa.cases.places import free_place, need_places_of_any_size, ordinary_memory
from hugepage_qa.cases.thp_memory import mapped_huge, room_for
from hugepage_qa.cases.thp_policy import huge_pages
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, shared_huge_pages
from hugepage_qa.kernel.uapi import MAP_FIXED_NOREPLACE, MREMAP_FIXED, MREMAP_MAYMOVE
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.version import KernelVersion

TOGETHER = Area("memory/moved-together")

#: before, EFAULT: all had to be one mapping
_SINCE = "6.17"
_SOURCE = "mremap(2); mm/mremap.c remap_move(), vma_multi_allowed() (d23cb648e365)"


@TOGETHER.case(
    "mappings of hugetlb pages that are moved together have their pages, their reservations and their protection at the"
    " new address, and a hole between them is one there",
    _SOURCE,
    since=_SINCE,
    pages=4,
)
def hugetlb_pages(live: Live) -> None:
    for shared in (False, True):
        with live.about("shared" if shared else "private"):
            memory = live.map(4, shared=shared)
            actor, size = memory.actor, live.size
            for page in (0, 1):
                memory.touch(page, page + 5)
            actor.call("mprotect", memory.at(1), size, mmap.PROT_READ)
            memory.unmap(2, 1)
            # the file of shared memory has its reservation for the hole, too
            reserved = 2 if shared else 1
            live.expect_pool(nr=4, free=2, resv=reserved)
            moved = memory.moved_to(free_place(live, actor, 4))
            live.expect_pool(nr=4, free=2, resv=reserved)
            for page in range(4):
                live.expect_signal(signal.SIGSEGV, memory.read, page)
            live.expect("what was written", (5, 6), (moved.read(0), moved.read(1)))
            moved.touch(0, 7)
            live.expect_signal(signal.SIGSEGV, moved.touch, 1, 7)
            live.expect_signal(signal.SIGSEGV, moved.read, 2)
            moved.touch(3, 8)
            live.expect_pool(nr=4, free=1, resv=reserved - 1)
            live.expect("what was written since", (7, 6, 8), tuple(moved.read(page) for page in (0, 1, 3)))
            moved.unmap()
            live.expect_pool(nr=4, free=4)
            actor.end()


@TOGETHER.case(
    "mappings that huge pages lie in, and one that begins within a huge page, are moved together with all that is in"
    " them: by whole pages those that lie in one mapping stay huge",
    f"{_SOURCE}, move_page_tables()",
    since=_SINCE,
    sizes=Sizes.ONCE,
)
def transparent_pages(live: Live) -> None:
    let_only_pmd_inherit(live)
    for make in (huge_pages, shared_huge_pages):
        for beside in (0, live.base_page):
            with live.about(f"{make.__name__}, moved to {beside} bytes behind a boundary"):
                memory = make(live, 4)
                memory.fill()
                actor, size = memory.actor, memory.size
                # the second mapping is a page and a half
                actor.call("mprotect", memory.at(1), size * 3 // 2, mmap.PROT_READ)
                moved = memory.moved_to(room_for(actor, 5, size) + beside)
                moved.expect_filled()
                if not beside:
                    live.expect("memory in huge pages", 3 * size, mapped_huge(moved))
                for address in (memory.address, memory.at(2), memory.at(4) - live.base_page):
                    live.expect_signal(signal.SIGSEGV, actor.read, address)
                for address in (moved.at(1), moved.at(2) + size // 2 - live.base_page):
                    live.expect_signal(signal.SIGSEGV, actor.write, address, 9)
                actor.call("mprotect", moved.address, moved.length, READ_WRITE)
                moved.fill(3)
                moved.expect_filled(3)
                actor.end()


@TOGETHER.case(
    "ordinary memory at the target stays where it lies behind the length that is moved, and so does the rest of the"
    " page, also of a hugetlb page that is moved with ordinary memory before it; or that is refused",
    f"mremap(2) new_size; {HUGETLB_DOC} lengths are not aligned to huge pages; mm/mremap.c remap_move()",
    since="5.16",
    pages=2,
)
def length_within_a_page(live: Live) -> None:
    need_places_of_any_size(live)
    base, size = live.base_page, live.size
    found, moved = list[tuple[int | str, ...]](), (3, 3, signal.SIGSEGV.name)
    for before in (0, base):
        actor = live.actor()
        start = free_place(live, actor, 6) + size
        target = start + 2 * size
        live.map(1, actor, at=start, flags=MAP_FIXED_NOREPLACE)
        if before:
            ordinary_memory(live, actor, 1, start - base)
        ordinary_memory(live, actor, 3, target - base)
        ordinary_memory(live, actor, 1, target + size - base)
        for end in (base, size - base):
            actor.write(start + end, 3)
            actor.write(target + end, 4)
        length, flags = before + base, MREMAP_MAYMOVE | MREMAP_FIXED
        with live.about(f"{before} bytes before it"):
            answer = actor.result("mremap", start - before, length, length, flags, target - before)
            # before 6.17 one mapping was moved, not two
            allowed = -errno.EINVAL, -errno.EFAULT, target - before
            live.expect("whether it is refused, or done where it may be", True, answer in allowed)
        places = target + base, target + size - base, start + size - base
        found.append(tuple(value_or_signal(partial(actor.read, place)) for place in places))
        actor.end()
    live.expect_pool(nr=2, free=2)
    stayed = (4, 4, 3)
    known = [moved, stayed if live.kernel_version < KernelVersion.parse(_SINCE) else moved]
    what = "what lies behind it at the target, at both ends, and where it was"
    live.expect(what, [stayed, stayed], found, {Quirk.MOVE_BEYOND_LENGTH: known})


class MovedTogether(LiveTest):
    def test_moved_together(self) -> None:
        self.run_area(TOGETHER)
