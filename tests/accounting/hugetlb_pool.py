"""What the pools count of the pages that processes take and give back."""

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_of_a_process import expect_hugetlb, forked
from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

ACCOUNTING = Area("accounting/hugetlb-pool")


@ACCOUNTING.case(
    "mapping reserves pages, the first touch takes one of them, and unmapping gives back a page or its reservation",
    f"{HUGETLB_DOC} HugePages_Rsvd; mm/hugetlb.c hugetlb_vm_op_close()",
    pages=2,
)
def private_pages_through_their_life(live: Live) -> None:
    memory = live.map(2)
    live.expect_pool(nr=2, free=2, resv=2)
    memory.touch(0)
    live.expect_pool(nr=2, free=1, resv=1)
    memory.touch(0)
    live.expect_pool(nr=2, free=1, resv=1)
    memory.unmap(1, 1)
    live.expect_pool(nr=2, free=1)
    memory.unmap(0, 1)
    live.expect_pool(nr=2, free=2)


@ACCOUNTING.case(
    "a shared page is one page for all processes that map it, and stays in use until the last of them lets it go",
    f"{HUGETLB_DOC}; mm/hugetlb.c hugetlb_no_page(), fs/hugetlbfs/inode.c remove_inode_hugepages()",
    pages=2,
)
def shared_pages_are_counted_once(live: Live) -> None:
    ours = live.map(2, shared=True)
    theirs = ours.fork()
    live.expect_pool(nr=2, free=2, resv=2)
    ours.touch(0, value=5)
    live.expect_pool(nr=2, free=1, resv=1)
    live.expect("what the other process reads", 5, theirs.read(0))
    live.expect_pool(nr=2, free=1, resv=1)
    ours.unmap()
    live.expect_pool(nr=2, free=1, resv=1)
    theirs.actor.end()
    live.expect_pool(nr=2, free=2)


@ACCOUNTING.case(
    "pages and reservations of a file stay with the file when nobody maps it, and go with its end",
    f"{HUGETLB_DOC}; mm/hugetlb.c hugetlb_reserve_pages(), hugetlb_unreserve_pages()",
    pages=2,
)
def files_keep_their_pages(live: Live) -> None:
    actor = live.actor()
    fd = live.open(actor, f"{live.mount()}/file")
    actor.call("ftruncate", fd, 2 * live.size)
    memory = live.map(2, actor, shared=True, fd=fd)
    memory.touch(0, value=7)
    memory.unmap()
    live.expect_pool(nr=2, free=1, resv=1)
    again = live.map(2, actor, shared=True, fd=fd)
    live.expect_pool(nr=2, free=1, resv=1)
    live.expect("the page of the file", 7, again.read(0))
    actor.call("ftruncate", fd, live.size)
    live.expect_pool(nr=2, free=1)
    actor.call("ftruncate", fd, 0)
    live.expect_pool(nr=2, free=2)


@ACCOUNTING.case(
    "a page that two processes share after a fork is one page, and the first write makes it two",
    f"{HUGETLB_DOC}; mm/hugetlb.c copy_hugetlb_page_range(), hugetlb_wp()",
    pages=2,
)
def a_copy_on_write_takes_one_page(live: Live) -> None:
    ours = live.map(1)
    ours.touch(value=1)
    live.expect_pool(nr=2, free=1)
    theirs = forked(live, ours)
    expect_hugetlb(live, ours, shared=1)
    expect_hugetlb(live, theirs, shared=1)
    live.expect("what the child reads", 1, theirs.read())
    live.expect_pool(nr=2, free=1)
    theirs.touch(value=2)
    live.expect_pool(nr=2, free=0)
    expect_hugetlb(live, ours, private=1)
    expect_hugetlb(live, theirs, private=1)
    live.expect("what the parent reads", 1, ours.read())
    theirs.actor.end()
    live.expect_pool(nr=2, free=1)


@ACCOUNTING.case(
    "pages above the pool are surplus while they are in use, and persistent as soon as the pool is as large",
    f"{HUGETLB_DOC} nr_overcommit_hugepages; mm/hugetlb.c gather_surplus_pages(), set_max_huge_pages()",
    pages=1,
    sizes=Sizes.BUDDY,
)
def surplus_pages_come_and_go(live: Live) -> None:
    live.let_grow(2)
    memory = live.map(3)
    live.expect_pool(nr=3, free=3, resv=3, surplus=2)
    memory.touch(0)
    live.expect_pool(nr=3, free=2, resv=2, surplus=2)
    live.set_nr(2)
    live.expect_pool(nr=3, free=2, resv=2, surplus=1)
    memory.unmap(1)
    live.expect_pool(nr=2, free=1)
    memory.unmap(0, 1)
    live.expect_pool(nr=2, free=2)


@ACCOUNTING.case(
    "the memory of a gigantic page that leaves the pool is free memory again",
    f"{HUGETLB_DOC} nr_hugepages; mm/hugetlb.c __update_and_free_hugetlb_folio()",
    sizes=Sizes.GIGANTIC,
    pages=1,
)
def memory_of_a_gigantic_page(live: Live) -> None:
    before = _free_memory(live)
    live.set_nr(0)
    # others take and give back some of it meanwhile
    live.host.wait_until(lambda: _free_memory(live) - before > live.size // 2)
    back = _free_memory(live) - before
    live.expect(f"{back} bytes are free again, most of a page", True, back > live.size // 2)
    live.expect_pool(nr=0, free=0)


def _free_memory(live: Live) -> int:
    return read_meminfo(ObservedTree(live.host))["MemFree"]


class PoolAccounting(LiveTest):
    def test_pool(self) -> None:
        self.run_area(ACCOUNTING)
