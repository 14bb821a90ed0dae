"""Threads that use one huge page at the same moment, while its mapping or its file changes under them."""

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.race import RACERS, clash
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Came, Deed

#: a gigantic page takes so long to clear that there would be next to no rounds
RACING = Area("memory/racing", sizes=Sizes.BUDDY)
FAULT = "mm/hugetlb.c hugetlb_fault(), hugetlb_no_page(), hugetlb_fault_mutex_table"
DISCARD = "madvise(2) MADV_DONTNEED; mm/hugetlb.c __hugetlb_zap_begin() (2820b0f09be9)"
LEFT_OR_GONE = Came.DONE | Came.GONE


@RACING.case("threads that touch a private page at the same moment get one page, and all of them", FAULT, pages=1)
def touch_of_a_private_page(live: Live) -> None:
    clash(live)
    live.expect_pool(nr=1, free=1)


@RACING.case("threads that touch a shared page at the same moment get one page, and all of them", FAULT, pages=1)
def touch_of_a_shared_page(live: Live) -> None:
    clash(live, shared=True)
    live.expect_pool(nr=1, free=1)
    clash(live, file=new_memfd(live))
    live.expect_pool(nr=1, free=1)


@RACING.case(
    "threads that write while their mapping is replaced find what they wrote, or a fresh page, and never none",
    f"mmap(2) MAP_FIXED; {FAULT}",
    pages=1,
)
def replaced_mapping(live: Live) -> None:
    clash(live, Deed.REPLACE, may_come=LEFT_OR_GONE)
    live.expect_pool(nr=1, free=1)
    # the page of a shared mapping goes with its file, which mmap(2) closes last
    live.reserve(2)
    clash(live, Deed.REPLACE, may_come=LEFT_OR_GONE, shared=True)
    live.expect_pool(nr=2, free=2)


@RACING.case(
    "threads that write to a page that is given back find what they wrote, or a fresh page, and never none",
    DISCARD,
    since="6.7",
    pages=1,
)
def discarded_page(live: Live) -> None:
    clash(live, Deed.DISCARD, may_come=LEFT_OR_GONE)
    live.expect_pool(nr=1, free=1)


@RACING.case(
    "a shared page that is given back while threads write to it stays in its file with all that they wrote",
    "madvise(2) MADV_DONTNEED; mm/hugetlb.c __unmap_hugepage_range()",
    since="5.18",
    pages=1,
)
def discarded_shared_page(live: Live) -> None:
    clash(live, Deed.DISCARD, shared=True)
    live.expect_pool(nr=1, free=1)


@RACING.case(
    "threads that write while the page is punched out of the file find what they wrote, or a fresh page",
    "fallocate(2) FALLOC_FL_PUNCH_HOLE; fs/hugetlbfs/inode.c hugetlbfs_punch_hole(), remove_inode_hugepages()",
    # the old page is free only after a new one may have been taken
    pages=2,
)
def punched_page(live: Live) -> None:
    clash(live, Deed.PUNCH, may_come=LEFT_OR_GONE, file=new_memfd(live))
    live.expect_pool(nr=2, free=2)


@RACING.case(
    "threads that write while the page moves away and back find what they wrote, or no mapping for a moment",
    "mremap(2); mm/hugetlb.c move_hugetlb_page_tables()",
    since="5.16",
    pages=1,
)
def moved_page(live: Live) -> None:
    for shared in (False, True):
        clash(live, Deed.MOVE, may_come=Came.DONE | Came.SIGSEGV, shared=shared)
        live.expect_pool(nr=1, free=1)


@RACING.case(
    "threads that write while writes are forbidden for a moment find what they wrote, or SIGSEGV",
    "mprotect(2); mm/hugetlb.c hugetlb_change_protection()",
    pages=1,
)
def protected_page(live: Live) -> None:
    for shared in (False, True):
        clash(live, Deed.PROTECT, may_come=Came.DONE | Came.SIGSEGV, shared=shared)
        live.expect_pool(nr=1, free=1)


@RACING.case(
    "threads that write while one of them forks find all that they wrote, with a page for a copy and without",
    "fork(2); mm/hugetlb.c copy_hugetlb_page_range(), hugetlb_wp()",
    pages=1,
)
def forked_page(live: Live) -> None:
    for pages in (1, 2):
        live.reserve(pages)
        clash(live, Deed.FORK)
        live.expect_pool(nr=pages, free=pages)


@RACING.case(
    "nobody else maps a page that is given back while threads write to it: it stays reserved for them",
    f"{DISCARD}; mm/hugetlb.c __unmap_hugepage_range() (df7a6d1f6405)",
    since="6.10",
    pages=1,
)
def mapping_of_a_discarded_page(live: Live) -> None:
    clash(live, Deed.DISCARD, Deed.MAP_MORE, may_come=LEFT_OR_GONE)
    live.expect_pool(nr=1, free=1)


@RACING.case(
    "threads that write private copies of a file at the same moment have a page each, and the file stays as it was",
    "mmap(2) MAP_PRIVATE; mm/hugetlb.c hugetlb_wp()",
    pages=RACERS + 1,
)
def copies_of_a_file(live: Live) -> None:
    clash(live, by=Deed.COPY, file=new_memfd(live))
    live.expect_pool(nr=RACERS + 1, free=RACERS + 1)


class Racing(LiveTest):
    """Cases on threads that use one page, for every page size that the buddy allocator has.

    :avocado: enable
    """

    def test_racing(self) -> None:
        """Every case for every page size."""
        self.run_area(RACING)
