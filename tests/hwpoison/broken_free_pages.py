"""Pages of a pool that break while nobody has them, or have been given back since: nobody may get them any more."""

import errno
import signal

from hugepage_qa.cases.broken_memory import (
    EHWPOISON,
    break_page,
    expect_flag,
    hard_offline,
    mended_at_the_end,
    need_mending,
    out_of_use,
)
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import Version, new_group
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.hugetlb_group import V2_DOC, HugetlbGroup
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.pinned_pages import pipe_with
from hugepage_qa.kernel.uapi import MADV_HWPOISON
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor, Fault

FREE_PAGES = Area("hwpoison/broken-free-pages", sizes=Sizes.BUDDY)
RULE = "Documentation/ABI/testing/sysfs-memory-page-offline; mm/memory-failure.c try_memory_failure_hugetlb()"


@FREE_PAGES.case(
    "a free page that breaks, at its start or inside, leaves the pool, and nobody gets it: the pool is used, emptied"
    " and filled without it; that it breaks again is EHWPOISON, and one base page is out of use",
    f"{RULE}, MF_HUGETLB_FREED",
    pages=2,
)
def free_page(live: Live) -> None:
    before = out_of_use(live)
    for broken, offset in enumerate((0, live.size // 2 + live.base_page), start=1):
        live.reserve(2)
        actor = live.actor()
        frame, broken_frame = _frame_of_a_free_page(live, actor, offset)
        hard_offline(live, broken_frame)
        live.expect_pool(nr=1, free=1)
        live.expect_sysctl(1)
        live.expect("base pages out of use", broken, out_of_use(live) - before)
        live.expect_errno(EHWPOISON, hard_offline, live, broken_frame)
        live.expect("base pages out of use after the second time", broken, out_of_use(live) - before)
        live.expect_pool(nr=1, free=1)
        _expect_not_used(live, frame, 1)
        live.set_nr(0)
        live.reserve(2)
        _expect_not_used(live, frame, 2)
        live.expect_pool(nr=2, free=2)
        live.expect("base pages out of use at the end", broken, out_of_use(live) - before)


def _frame_of_a_free_page(live: Live, actor: Actor, offset: int) -> tuple[int, int]:
    """Return the first frame of a page that is free, and the one ``offset`` bytes behind it."""
    memory = live.map(1, actor)
    memory.touch()
    (frame,) = memory.frames()
    memory.unmap()
    return frame, frame + offset // live.base_page


def _expect_not_used(live: Live, frame: int, pages: int) -> None:
    """Expect the pool to have ``pages`` pages that are used, none of which begins with ``frame``."""
    memory = live.map(pages)
    memory.fill()
    memory.expect_filled()
    live.expect("pages that begin with the broken page's frame", set(), memory.frames() & {frame})
    live.expect_pool(nr=pages, free=0)
    memory.actor.end()
    live.expect_pool(nr=pages, free=pages)


@FREE_PAGES.case(
    "a reserved page that breaks stays in the pool, EBUSY, and is handed out to nobody: who reserved it gets SIGBUS,"
    " with one page more that one; when nobody reserves it it can be taken away",
    f"{RULE}; mm/hugetlb.c dequeue_huge_page_node_exact(), dissolve_free_hugetlb_folio()",
    pages=1,
)
def reserved_page(live: Live) -> None:
    need_mending(live)
    before = out_of_use(live)
    actor = live.actor()
    frame, broken_frame = _frame_of_a_free_page(live, actor, live.size // 2)
    memory = live.map(1, actor)
    live.expect_errno(errno.EBUSY, hard_offline, live, broken_frame)

    def give_back() -> None:
        actor.end()
        live.set_nr(0)

    # the block that the page becomes is free with what broke of it (mm/page_alloc.c free_pages_prepare() looks at pages
    # of order 0 alone), and where the next case breaks that memory it would be broken already
    with mended_at_the_end(live, broken_frame, give_back, may_be_refused=True):
        live.expect_pool(nr=1, free=1, resv=1)
        for _time in range(2):
            live.expect_signal(signal.SIGBUS, memory.touch)
            live.expect_pool(nr=1, free=1, resv=1)
        live.reserve(2)
        memory.fill()
        memory.expect_filled()
        live.expect("whether the page is the broken one", False, frame in memory.frames())
        live.expect_pool(nr=2, free=1)
        memory.unmap()
        live.expect_pool(nr=2, free=2)
        live.set_nr(0)
        live.expect_pool(nr=0, free=0)
        live.expect("base pages out of use", 1, out_of_use(live) - before)


@FREE_PAGES.case(
    "a private page that breaks while a pipe holds it is promised to nobody when it is let go: of as many pages as are"
    " free then all are had by who maps them",
    f"{RULE}, me_huge_page(); {HUGETLB_DOC} HugePages_Rsvd",
    pages=2,
)
def held_page(live: Live) -> None:
    need_mending(live)
    memory = live.map(1)
    memory.fill()
    (frame,) = memory.frames()
    pipe_with(live, memory)
    live.expect_errno(errno.EBUSY, hard_offline, live, frame)
    with mended_at_the_end(live, frame, memory.actor.end):
        memory.actor.end()
        free = live.pool().free
        memory = live.map(free)
        had = sum(_is_had(memory, page) for page in range(free))
    # what is mended is free again, and a page that was promised and could not be had is so still
    live.expect_pool(nr=2, free=1, known={Quirk.HELD_BROKEN_PAGE_PROMISED: {"resv": 1}})
    live.expect("free pages that were had", free, had)


def _is_had(memory: Memory, page: int) -> bool:
    try:
        memory.touch(page)
    except Fault:
        return False
    return True


@FREE_PAGES.case(
    "each base page of a page of a file that breaks is counted once as out of use, and mended with the page",
    f"{RULE}, hugetlb_update_hwpoison(); Documentation/mm/hwpoison.rst unpoison-pfn",
    since="6.1",  # 8625147cafaa: before, a broken page was taken out of its file
    pages=1,
)
def several_base_pages(live: Live) -> None:
    need_mending(live)
    file = new_memfd(live)
    file.truncate(1)
    memory, before = file.map(1), out_of_use(live)
    memory.fill()
    (frame,) = memory.frames()
    last = live.size // live.base_page - 1
    break_page(live, memory, 0, MADV_HWPOISON)
    with mended_at_the_end(live, frame, file.actor.end):
        for count, number in ((1, 0), (2, last), (2, last), (2, 0), (3, 1)):
            if (count, number) != (1, 0):
                live.expect_errno(EHWPOISON, hard_offline, live, frame + number)
            live.expect("base pages out of use", count, out_of_use(live) - before)
            expect_flag(live, memory, frame)
        live.expect_pool(nr=1, free=0)
        file.truncate(0)
    live.expect("base pages out of use after mending", 0, out_of_use(live) - before)
    live.expect_pool(nr=1, free=1)


@FREE_PAGES.case(
    "a page of a file that breaks is charged to the group of who touched it for as long as the file has it",
    f"{V2_DOC} hugetlb.<hugepagesize>.current; {RULE}, me_huge_page()",
    since="6.1",  # 8625147cafaa
    pages=1,
)
def page_of_an_emptied_file(live: Live) -> None:
    need_mending(live)
    group = HugetlbGroup(live, new_group(live, "hugetlb", Version.TWO))
    file = new_memfd(live, group.actor())
    memory = file.map(1)
    memory.fill()
    (frame,) = memory.frames()
    break_page(live, memory, 0, MADV_HWPOISON)
    with mended_at_the_end(live, frame, file.actor.end):
        group.expect_usage(1)
        file.truncate(0)
        group.expect_usage(0, {Quirk.DELETED_BROKEN_PAGE_CHARGED: 1})
    live.expect_pool(nr=1, free=1)


class BrokenFreePages(LiveTest):
    def test_free_pages(self) -> None:
        self.run_area(FREE_PAGES)
