"""Mappings beside each other that one mremap(2) moves: huge pages of a pool, and transparent ones."""

import mmap
import signal

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.places import free_place
from hugepage_qa.cases.thp_memory import let_only_pmd_inherit, mapped_huge, room_for, shared_huge_pages
from hugepage_qa.cases.thp_policy import huge_pages
from hugepage_qa.plugins.avocado_test import LiveTest

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


class MovedTogether(LiveTest):
    def test_moved_together(self) -> None:
        self.run_area(TOGETHER)
