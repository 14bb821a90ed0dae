"""The run-time pool: what writes to its files do, and what they never do."""

import errno
import os
import signal

from hugepage_qa.cases.capabilities import become_nobody
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import Mode, set_policy
from hugepage_qa.cases.pool_view import read_pool_view
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

POOL = Area("pool/pool")
SYSCTL = "proc/sys/vm/nr_hugepages"
SURPLUS = f"{HUGETLB_DOC} Caveat: shrinking"


@POOL.case("the pool has as many free pages as were written, more and fewer", f"{HUGETLB_DOC} nr_hugepages")
def grow_and_shrink(live: Live) -> None:
    for pages in (1, 2, 1, 0):
        live.reserve(pages)
        live.expect_pool(nr=pages, free=pages)


@POOL.case("growing and shrinking loses no page", f"{HUGETLB_DOC} nr_hugepages", sizes=Sizes.BUDDY)
def resize_again_and_again(live: Live) -> None:
    for _round in range(10):
        live.reserve(8)
        live.expect_pool(nr=8, free=8)
        live.set_nr(0)
        live.expect_pool(nr=0, free=0)


@POOL.case("a pool is resized alone, the other sizes stay", f"{HUGETLB_DOC} /sys/kernel/mm/hugepages")
def other_sizes_stay(live: Live) -> None:
    others = [live.of_size(size) for size in live.sizes if size != live.size]
    live.reserve(2)
    for other in others:
        other.expect_pool(nr=0, free=0)
    live.expect_pool(nr=2, free=2)


@POOL.case(
    "vm.nr_hugepages is the pool of the default size",
    f"{HUGETLB_DOC} /proc/sys/vm/nr_hugepages; mm/hugetlb.c hugetlb_sysctl_handler()",
    sizes=Sizes.DEFAULT,
)
def sysctl_resizes_default_pool(live: Live) -> None:
    live.reserve(2)  # the memory is there
    live.set_nr(0)
    base = read_integer(live.host, SYSCTL) or 0
    live.host.write(SYSCTL, f"{base + 2}\n")
    live.expect_pool(nr=2, free=2)
    live.set_nr(1)
    live.expect(SYSCTL, base + 1, read_integer(ObservedTree(live.host), SYSCTL))
    live.host.write(SYSCTL, f"{base}\n")
    live.expect_pool(nr=0, free=0)


@POOL.case(
    "vm.nr_hugepages tells the persistent pages, without the surplus",
    f"{HUGETLB_DOC} nr_hugepages; mm/hugetlb.c set_max_huge_pages()",
    sizes=Sizes.DEFAULT,
    pages=2,
)
def sysctl_counts_persistent_pages(live: Live) -> None:
    asked = read_integer(live.host, SYSCTL) or 0
    live.map(2).fill()
    live.set_nr(1)
    live.expect_pool(nr=2, free=0, surplus=1)
    live.expect(SYSCTL, asked - 1, read_integer(ObservedTree(live.host), SYSCTL))


@POOL.case(
    "invalid numbers of pages are rejected with EINVAL, too large ones with ERANGE, and change nothing",
    "mm/hugetlb.c nr_hugepages_store_common(); lib/kstrtox.c kstrtoul()",
    pages=1,
)
def no_counts(live: Live) -> None:
    path = live.pool_file("nr_hugepages")
    for text in ("-1", "x", "1x", "1 2", "0x", " "):
        live.expect_errno(errno.EINVAL, live.host.write, path, text)
        live.expect_pool(nr=1, free=1)
    live.expect_errno(errno.ERANGE, live.host.write, path, str(1 << 64))
    live.expect_pool(nr=1, free=1)


@POOL.case(
    "invalid values of vm.nr_hugepages are rejected with EINVAL",
    "kernel/sysctl.c proc_doulongvec_minmax()",
    sizes=Sizes.DEFAULT,
    pages=1,
)
def no_counts_for_sysctl(live: Live) -> None:
    for text in ("x", "1x", str(1 << 64)):
        live.expect_errno(errno.EINVAL, live.host.write, SYSCTL, text)
        live.expect_pool(nr=1, free=1)


@POOL.case("the counters cannot be written", "mm/hugetlb.c HSTATE_ATTR_RO(); fs/kernfs/file.c kernfs_fop_open()")
def counters_are_read_only(live: Live) -> None:
    for name in ("free_hugepages", "resv_hugepages", "surplus_hugepages"):
        live.expect_errno(errno.EACCES, live.host.write, live.pool_file(name), "1")
    live.expect_pool(nr=0, free=0)


@POOL.case("the pool is for the administrator to resize", f"{HUGETLB_DOC} nr_hugepages (root user)")
def others_cannot_resize(live: Live) -> None:
    actor = live.actor()
    become_nobody(actor)
    path = f"/{live.pool_file('nr_hugepages')}"
    live.expect_errno(errno.EACCES, live.open, actor, path, os.O_WRONLY)


# --- shrinking below what is in use ----------------------------------------------------------------------------------


def surplus_without(live: Live, memory: Memory) -> int:
    """Return the surplus that the pool has when all pages of ``memory`` are given back.

    A node counts its own surplus, of whichever pages it has (adjust_pool_surplus()). A page that is given back leaves
    the pool where its node has surplus, and is free where it has none (free_huge_folio()).
    """
    if not live.has_several_nodes:
        return 0
    given_back = memory.numa_maps().nodes
    return sum(max(0, live.pool(node).surplus - given_back.get(node, 0)) for node in live.nodes)


@POOL.case("pages in use survive a shrink of the pool as surplus", SURPLUS, pages=2)
def shrink_below_use(live: Live) -> None:
    memory = live.map(2)
    memory.fill()
    live.set_nr(1)
    live.expect_pool(nr=2, free=0, surplus=1)
    memory.expect_filled()
    left = surplus_without(live, memory)
    memory.unmap(0, 1)
    # which of its pages lies on which node is not known
    if not live.has_several_nodes:
        live.expect_pool(nr=1, free=0)
    memory.unmap(1)
    live.expect_pool(nr=1 + left, free=1 + left, surplus=left)


@POOL.case("free pages go before pages in use become surplus", f"{SURPLUS}; mm/hugetlb.c set_max_huge_pages()", pages=2)
def shrink_takes_free_pages_first(live: Live) -> None:
    memory = live.map(1)
    memory.touch()
    live.set_nr(1)
    live.expect_pool(nr=1, free=0)
    live.expect("the page in use", 1, memory.read())


@POOL.case("surplus pages become persistent again when the pool grows", "mm/hugetlb.c set_max_huge_pages()", pages=2)
def growth_takes_surplus_first(live: Live) -> None:
    memory = live.map(2)
    memory.touch(0)
    memory.touch(1)
    live.set_nr(0)
    live.expect_pool(nr=2, free=0, surplus=2)
    live.set_nr(1)
    live.expect_pool(nr=2, free=0, surplus=1)
    live.set_nr(2)
    live.expect_pool(nr=2, free=0)
    live.set_nr(1)
    live.expect_pool(nr=2, free=0, surplus=1)
    # by one write the surplus page and a new one
    live.reserve(3)
    live.expect_pool(nr=3, free=1)
    memory.unmap()
    live.expect_pool(nr=3, free=3)


@POOL.case(
    "pages that are reserved for a mapping survive a shrink of the pool as surplus",
    f"{SURPLUS}; mm/hugetlb.c set_max_huge_pages(), return_unused_surplus_pages()",
    pages=2,
)
def shrink_below_reservations(live: Live) -> None:
    memory = live.map(2)
    live.set_nr(0)
    live.expect_pool(nr=2, free=2, resv=2, surplus=2)
    memory.touch(0)
    live.expect_pool(nr=2, free=1, resv=1, surplus=2)
    memory.touch(1)
    live.expect_pool(nr=2, free=0, surplus=2)
    left = surplus_without(live, memory)
    memory.unmap()
    live.expect_pool(nr=left, free=left, surplus=left)


@POOL.case(
    "surplus that nobody used goes back to the system with its reservation",
    "mm/hugetlb.c hugetlb_acct_memory(), return_unused_surplus_pages()",
    pages=2,
)
def unused_surplus_is_given_back(live: Live) -> None:
    # adjust_pool_surplus() may count surplus on a node whose pages are all in use: it goes when they do
    of_nodes = [pools[live.size] for pools in live.before.nodes.values() if live.size in pools]
    if live.has_several_nodes and any(pool.nr > pool.free for pool in of_nodes):
        raise CannotRun("a node has pages that others use, which may become surplus in place of ours")
    memory = live.map(2)
    live.set_nr(0)
    live.expect_pool(nr=2, free=2, resv=2, surplus=2)
    memory.unmap()
    live.expect_pool(nr=0, free=0)


@POOL.case("a new mapping cannot have the surplus of a shrunk pool", SURPLUS, pages=1)
def surplus_is_not_for_others(live: Live) -> None:
    memory = live.map(1)
    memory.touch()
    live.set_nr(0)
    live.expect_errno(errno.ENOMEM, live.map, 1)
    other = live.map(1, noreserve=True)
    live.expect_signal(signal.SIGBUS, other.touch)
    live.expect_pool(nr=1, free=0, surplus=1)


# --- gigantic pages --------------------------------------------------------------------------------------------------


@POOL.case(
    "gigantic pages are taken and given back at run time, clean and whole",
    f"{HUGETLB_DOC}; mm/hugetlb.c alloc_gigantic_folio(), free_gigantic_folio()",
    sizes=Sizes.GIGANTIC,
    pages=1,
)
def gigantic_pages_at_run_time(live: Live) -> None:
    memory = live.map(1)
    memory.expect_zero(0)
    memory.touch()
    memory.actor.write(memory.address + live.size - 8, 2)
    live.expect("the last word", 2, memory.actor.read(memory.address + live.size - 8))
    memory.unmap()
    live.expect_pool(nr=1, free=1)
    memory_in_pools = read_pool_view(live.host).meminfo.get("Hugetlb", 0)
    live.set_nr(0)
    live.expect_pool(nr=0, free=0)
    left = read_pool_view(ObservedTree(live.host)).meminfo.get("Hugetlb", 0)
    live.expect("memory that left the pools", live.size, memory_in_pools - left)


# --- nodes -----------------------------------------------------------------------------------------------------------


@POOL.case(
    "nr_hugepages of a node resizes the pool there and nowhere else",
    f"{HUGETLB_DOC} /sys/devices/system/node/node[0-9]*/hugepages",
)
def node_file_resizes_its_node(live: Live) -> None:
    live.need_nodes()
    for node in live.nodes:
        live.reserve(2, node)
        live.expect_pool(nr=2, free=2)
        for other in live.nodes:
            pages = 2 if other == node else 0
            live.expect_pool(nr=pages, free=pages, node=other)
        live.set_nr(0, node)
        live.expect_pool(nr=0, free=0)


@POOL.case(
    "a node has nr_hugepages, free_hugepages, surplus_hugepages and neither reservations nor a limit",
    f"{HUGETLB_DOC} /sys/devices/system/node/node[0-9]*/hugepages",
)
def files_of_a_node(live: Live) -> None:
    live.need_nodes()
    for node in live.nodes:
        names = set(live.host.names(live.pool_file("", node=node).rstrip("/")))
        # the others came with demotion in Linux 5.16
        counters = names - {"demote", "demote_size"}
        live.expect(f"files of node {node}", {"nr_hugepages", "free_hugepages", "surplus_hugepages"}, counters)


@POOL.case(
    "nr_hugepages_mempolicy resizes the pool on the nodes of the memory policy of the writer",
    f"{HUGETLB_DOC} Interaction of Task Memory Policy with Huge Page Allocation/Freeing",
)
def mempolicy_of_the_writer(live: Live) -> None:
    path = live.pool_file("nr_hugepages_mempolicy")
    if live.host.read(path) is None:
        raise CannotRun(f"this kernel has no /{path}")
    base = (read_integer(live.host, path) or 0) - live.pool().nr
    for node in live.nodes:
        live.reserve(2, node)  # the memory is there
        live.set_nr(0, node)
        actor = live.actor()
        set_policy(actor, Mode.BIND, [node])
        file = live.open(actor, f"/{path}", os.O_WRONLY)
        for pages in (2, 1, 0):
            text = f"{base + pages}".encode()
            actor.call("write", file, text, len(text))
            live.expect_pool(nr=pages, free=pages)
            live.expect_pool(nr=pages, free=pages, node=node)


class Pool(LiveTest):
    def test_pool(self) -> None:
        self.run_area(POOL)
