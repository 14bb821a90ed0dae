"""Overcommit: the pool grows by surplus pages when it must, to its limit, and shrinks again."""

import errno
import signal

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_of_a_process import forked
from hugepage_qa.cases.hugetlb_segments import get_segment
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.memory_policy import Mode, set_policy
from hugepage_qa.cases.pages_of_a_node import require_no_free_page
from hugepage_qa.cases.race import RACERS, race
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.version import KernelVersion

OVERCOMMIT = Area("pool/overcommit")
SYSCTL = "proc/sys/vm/nr_overcommit_hugepages"
SURPLUS = f"{HUGETLB_DOC} nr_overcommit_hugepages; mm/hugetlb.c gather_surplus_pages(), free_huge_folio()"
#: eb02f14c4a2b
GIGANTIC_SINCE = "6.19"


def let_grow(live: Live, pages: int) -> None:
    """Allow surplus pages, after a check that the machine has the memory for them."""
    if live.is_gigantic and live.kernel_version < KernelVersion.parse(GIGANTIC_SINCE):
        raise CannotRun(f"Linux {live.kernel_version}: gigantic pages have no surplus before {GIGANTIC_SINCE}")
    live.let_grow(pages)


def _need_no_other_page(live: Live) -> None:
    """Raise CannotRun where a page from before may be taken in place of a surplus page, and lie on another node.

    dequeue_hugetlb_folio_vma() takes whichever is free, and free_huge_folio() gives back what lies where surplus is.
    """
    if live.has_several_nodes and live.before.pools[live.size].free:
        raise CannotRun("the pool has free pages that are not ours: they would be taken for the surplus pages")


@OVERCOMMIT.case("a mapping beyond the pool reserves surplus pages, which go when it does", SURPLUS)
def surplus_for_a_mapping(live: Live) -> None:
    _need_no_other_page(live)
    let_grow(live, 2)
    memory = live.map(2)
    live.expect_pool(nr=2, free=2, resv=2, surplus=2)
    memory.touch(0)
    live.expect_pool(nr=2, free=1, resv=1, surplus=2)
    memory.touch(1)
    live.expect_pool(nr=2, free=0, surplus=2)
    memory.unmap(0, 1)
    live.expect_pool(nr=1, free=0, surplus=1)
    memory.unmap(1)
    live.expect_pool(nr=0, free=0)
    # where the pool has a page of its own, which of the two is freed first as surplus depends on their nodes
    live.reserve(1)
    memory = live.map(2)
    live.expect_pool(nr=2, free=2, resv=2, surplus=1)
    memory.fill()
    live.expect_pool(nr=2, free=0, surplus=1)
    memory.unmap()
    live.expect_pool(nr=1, free=1)


@OVERCOMMIT.case("a segment beyond the pool reserves surplus pages, which go when it is removed", SURPLUS)
def surplus_for_a_segment(live: Live) -> None:
    _need_no_other_page(live)
    let_grow(live, 2)
    # of its own pages the pool has none, and one
    for own, surplus in ((0, 2), (1, 1)):
        live.reserve(own)
        segment = get_segment(live, 2 * live.size)
        live.expect_pool(nr=2, free=2, resv=2, surplus=surplus)
        memory = segment.attach()
        memory.touch(0)
        live.expect_pool(nr=2, free=1, resv=1, surplus=surplus)
        memory.touch(1)
        live.expect_pool(nr=2, free=0, surplus=surplus)
        memory.fill()
        memory.expect_filled()
        segment.detach(memory)
        live.expect_pool(nr=2, free=0, surplus=surplus)
        segment.remove()
        live.expect_pool(nr=own, free=own)


@OVERCOMMIT.case(
    "a surplus page comes from a node that the policy prefers, MPOL_PREFERRED_MANY, too, and is counted there",
    f"{SURPLUS}, alloc_buddy_hugetlb_folio_with_mpol(); set_mempolicy(2), since cfcaa66f8032",
    since="5.15",
    sizes=Sizes.BUDDY,
    nodes=2,
)
def surplus_of_preferred_nodes(live: Live) -> None:
    for node in live.nodes[:2]:
        require_no_free_page(live, node)
        live.let_grow(1, node)
    for shared in (False, True):
        for node, other in (live.nodes[:2], live.nodes[1::-1]):
            memory = live.map(1, shared=shared, noreserve=True)
            set_policy(memory.actor, Mode.PREFERRED_MANY, [node])
            memory.touch()
            live.expect("node in numa_maps", {node: 1}, memory.numa_maps().nodes)
            live.expect_pool(node=node, nr=1, free=0, surplus=1)
            live.expect_pool(node=other, nr=0, free=0)
            live.expect_pool(nr=1, free=0, surplus=1)
            memory.actor.end()
            live.expect_pool(node=node, nr=0, free=0)


@OVERCOMMIT.case("surplus pages go when nobody touched them", SURPLUS)
def surplus_without_use(live: Live) -> None:
    let_grow(live, 2)
    for shared in (False, True):
        memory = live.map(2, shared=shared)
        live.expect_pool(nr=2, free=2, resv=2, surplus=2)
        memory.unmap()
        live.expect_pool(nr=0, free=0)


@OVERCOMMIT.case("surplus pages go when their process is killed", SURPLUS)
def surplus_of_a_killed_process(live: Live) -> None:
    _need_no_other_page(live)
    let_grow(live, 2)
    memory = live.map(2)
    memory.touch()
    live.expect_pool(nr=2, free=1, resv=1, surplus=2)
    memory.actor.end()
    live.expect_pool(nr=0, free=0)


@OVERCOMMIT.case("no mapping gets more than pool and limit together, and a refused one keeps nothing", SURPLUS)
def no_more_than_the_limit(live: Live) -> None:
    let_grow(live, 1)
    live.expect_errno(errno.ENOMEM, live.map, 2)
    live.expect_pool(nr=0, free=0)
    live.expect_errno(errno.ENOMEM, live.map, 2, shared=True)
    live.expect_pool(nr=0, free=0)
    live.map(1)
    live.expect_pool(nr=1, free=1, resv=1, surplus=1)
    live.expect_errno(errno.ENOMEM, live.map, 1)
    live.expect_pool(nr=1, free=1, resv=1, surplus=1)


@OVERCOMMIT.case("the pages of the pool are used before surplus pages", SURPLUS, pages=1)
def pool_comes_first(live: Live) -> None:
    let_grow(live, 1)
    first = live.map(1)
    live.expect_pool(nr=1, free=1, resv=1)
    live.map(1)
    live.expect_pool(nr=2, free=2, resv=2, surplus=1)
    first.unmap()
    live.expect_pool(nr=1, free=1, resv=1)


@OVERCOMMIT.case("a mapping without reservation gets surplus at the fault, and SIGBUS beyond the limit", SURPLUS)
def surplus_at_a_fault(live: Live) -> None:
    let_grow(live, 1)
    memory = live.map(2, noreserve=True)
    live.expect_pool(nr=0, free=0)
    memory.touch(0)
    live.expect_pool(nr=1, free=0, surplus=1)
    live.expect_signal(signal.SIGBUS, memory.touch, 1)
    live.expect_pool(nr=1, free=0, surplus=1)
    memory.unmap()
    live.expect_pool(nr=0, free=0)


@OVERCOMMIT.case(
    "of processes that want a surplus page at the same moment no more get one than the limit allows",
    f"{HUGETLB_DOC} nr_overcommit_hugepages; mm/hugetlb.c alloc_surplus_hugetlb_folio()",
    sizes=Sizes.BUDDY,
)
def race_for_a_surplus_page(live: Live) -> None:
    let_grow(live, RACERS)
    live.overcommit(1)
    for noreserve in (True, False):
        got = race(live, noreserve=noreserve)
        # in some round none may get one: memory without free blocks for a moment
        live.expect(f"most processes that got a page, {'at a fault' if noreserve else 'by a mapping'}", 1, max(got))
        live.expect_pool(nr=0, free=0)


@OVERCOMMIT.case(
    "a larger nr_hugepages makes surplus pages persistent, and vm.nr_hugepages counts persistent ones alone",
    f"{HUGETLB_DOC} nr_hugepages; mm/hugetlb.c set_max_huge_pages()",
)
def surplus_becomes_persistent(live: Live) -> None:
    let_grow(live, 2)
    memory = live.map(2)
    memory.touch(0)
    memory.touch(1, 2)
    live.expect_sysctl(0)
    live.set_nr(1)
    live.expect_pool(nr=2, free=0, surplus=1)
    live.expect_sysctl(1)
    live.set_nr(2)
    live.expect_pool(nr=2, free=0)
    live.expect_sysctl(2)
    live.expect("what the pages hold", (1, 2), (memory.read(0), memory.read(1)))
    memory.unmap()
    live.expect_pool(nr=2, free=2)


@OVERCOMMIT.case("a lower limit takes no page away, and gives none any more", SURPLUS)
def lower_limit(live: Live) -> None:
    _need_no_other_page(live)
    let_grow(live, 2)
    memory = live.map(2)
    memory.touch(0)
    live.overcommit(0)
    live.expect_pool(nr=2, free=1, resv=1, surplus=2)
    memory.touch(1)
    live.expect_pool(nr=2, free=0, surplus=2)
    memory.unmap(1)
    live.expect_pool(nr=1, free=0, surplus=1)
    live.expect_errno(errno.ENOMEM, live.map, 1)
    memory.unmap(0, 1)
    live.expect_pool(nr=0, free=0)


@OVERCOMMIT.case(
    "a copy on write may take a surplus page",
    "mm/hugetlb.c hugetlb_wp(), alloc_hugetlb_folio()",
    pages=1,
)
def surplus_for_a_copy(live: Live) -> None:
    let_grow(live, 1)
    memory = live.map(1)
    memory.touch(value=1)
    child = forked(live, memory)
    child.touch(value=2)
    live.expect_pool(nr=2, free=0, surplus=1)
    live.expect("what both see", (1, 2), (memory.read(), child.read()))
    child.actor.end()
    live.expect_pool(nr=1, free=0)


@OVERCOMMIT.case("vm.nr_overcommit_hugepages is the limit of the default size", SURPLUS, sizes=Sizes.DEFAULT)
def sysctl_is_the_default_limit(live: Live) -> None:
    let_grow(live, 1)
    for limit in (3, 2):
        live.host.write(SYSCTL, f"{limit}\n")
        live.expect("sysfs", limit, read_integer(ObservedTree(live.host), live.pool_file("nr_overcommit_hugepages")))
    live.overcommit(1)
    live.expect(SYSCTL, 1, read_integer(ObservedTree(live.host), SYSCTL))
    live.map(1)
    live.expect_pool(nr=1, free=1, resv=1, surplus=1)


@OVERCOMMIT.case(
    "invalid limits are rejected with EINVAL, too large ones with ERANGE",
    "mm/hugetlb.c nr_overcommit_hugepages_store()",
    sizes=Sizes.BUDDY,
)
def no_limits(live: Live) -> None:
    live.overcommit(1)
    path = live.pool_file("nr_overcommit_hugepages")
    for text in ("-1", "x", "1x"):
        live.expect_errno(errno.EINVAL, live.host.write, path, text)
    live.expect_errno(errno.ERANGE, live.host.write, path, str(1 << 64))
    live.expect("the limit", 1, read_integer(ObservedTree(live.host), path))


@OVERCOMMIT.case(
    "a limit with a zero before it is decimal", "mm/hugetlb.c nr_overcommit_hugepages_store()", sizes=Sizes.BUDDY
)
def limit_with_a_zero(live: Live) -> None:
    path = live.pool_file("nr_overcommit_hugepages")
    live.host.write(path, "010")
    live.expect("the limit", 10, read_integer(ObservedTree(live.host), path))


@OVERCOMMIT.case(
    "gigantic pages have no surplus: a limit is refused",
    "mm/hugetlb.c nr_overcommit_hugepages_store()",
    sizes=Sizes.GIGANTIC,
    until=GIGANTIC_SINCE,
)
def no_limit_for_gigantic_pages(live: Live) -> None:
    live.expect_errno(errno.EINVAL, live.overcommit, 1)
    live.expect_errno(errno.ENOMEM, live.map, 1)
    live.expect_pool(nr=0, free=0)


class Overcommit(LiveTest):
    def test_overcommit(self) -> None:
        self.run_area(OVERCOMMIT)
