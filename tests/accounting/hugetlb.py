"""What the kernel counts of hugetlb pages: in the pools, for the machine, for a process and for a mapping."""

import errno
import mmap

from hugepage_qa.actor.process import Actor
from hugepage_qa.kernel.meminfo import parse_meminfo, read_meminfo
from hugepage_qa.kernel.nodes import node_directories
from hugepage_qa.kernel.pools import read_node_pools
from hugepage_qa.kernel.process_status import ProcessStatus, read_process_status
from hugepage_qa.kernel.smaps import read_smaps_rollup
from hugepage_qa.kernel.values import read_integer
from hugepage_qa.kernel.vmstat import read_vmstat, vmstat_delta
from hugepage_qa.live.case import Area, Sizes
from hugepage_qa.live.host import ObservedTree
from hugepage_qa.live.live import CannotRun, Live
from hugepage_qa.live.memory import Memory
from hugepage_qa.live.mman import MREMAP_FIXED, MREMAP_MAYMOVE
from hugepage_qa.model.known import Quirk
from hugepage_qa.model.rules import HUGETLB_DOC
from hugepage_qa.plugins.live_test import LiveTest

ACCOUNTING = Area("accounting/hugetlb", gigantic_quirk=Quirk.FORK_LOSES_PAGES)

PROC_DOC = "Documentation/filesystems/proc.rst"
OVERCOMMIT_DOC = "Documentation/mm/overcommit-accounting.rst"
MADV_DONTNEED = 4


# --- the counters of the pool ----------------------------------------------------------------------------------------
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
    theirs = ours.seen_by(ours.actor.fork())
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
    theirs = ours.seen_by(ours.actor.fork())
    _expect_hugetlb(live, ours, shared=1)
    _expect_hugetlb(live, theirs, shared=1)
    live.expect("what the child reads", 1, theirs.read())
    live.expect_pool(nr=2, free=1)
    theirs.touch(value=2)
    live.expect_pool(nr=2, free=0)
    _expect_hugetlb(live, ours, private=1)
    _expect_hugetlb(live, theirs, private=1)
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
    live.overcommit(2)
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


# --- counters of the machine -----------------------------------------------------------------------------------------
@ACCOUNTING.case(
    "Hugetlb: is the memory in the pools of all page sizes together, whether their pages are used or not",
    f"{HUGETLB_DOC} Hugetlb; mm/hugetlb.c hugetlb_report_meminfo(), since fcb2b0c577f1",
    since="4.18",
    sizes=Sizes.DEFAULT,
)
def hugetlb_is_the_sum_over_all_sizes(live: Live) -> None:
    if len(live.sizes) == 1:
        raise CannotRun("the machine has huge pages of one size")
    pools = [live if size == live.size else live.of_size(size) for size in live.sizes]
    before = _meminfo(live)["Hugetlb"]
    memory = before
    for pages, pool in enumerate(reversed(pools), start=1):
        pool.reserve(pages)
        memory += pages * pool.size
        live.expect("meminfo Hugetlb", memory, _meminfo(live)["Hugetlb"])
    for pool in pools:
        pool.map(1).touch()
        live.expect("meminfo Hugetlb", memory, _meminfo(live)["Hugetlb"])
    for pages, pool in enumerate(reversed(pools), start=1):
        pool.expect_pool(nr=pages, free=pages - 1)


@ACCOUNTING.case(
    "CommitLimit: is what overcommit_ratio leaves of memory without the huge page pools, and swap",
    f"{PROC_DOC} CommitLimit; mm/util.c vm_commit_limit()",
    sizes=Sizes.EACH,
)
def pools_do_not_count_for_the_commit_limit(live: Live) -> None:
    if read_integer(live.host, "proc/sys/vm/overcommit_kbytes"):
        raise CannotRun("vm.overcommit_kbytes is set: the limit does not depend on memory")
    _expect_commit_limit(live)
    live.reserve(1)
    _expect_commit_limit(live)


@ACCOUNTING.case(
    "each node's meminfo shows the pool of the default size on that node as sysfs does",
    f"{HUGETLB_DOC} Per Node Hugepages Attributes; mm/hugetlb.c hugetlb_report_node_meminfo()",
    pages=3,
    sizes=Sizes.DEFAULT,
)
def nodes_show_the_default_pool_in_meminfo(live: Live) -> None:
    live.overcommit(1)
    _expect_node_meminfo(live)
    live.map(4).touch()
    live.expect_pool(nr=4, free=3, resv=3, surplus=1)
    _expect_node_meminfo(live)


@ACCOUNTING.case(
    "htlb_buddy_alloc_success counts each page that a pool takes from the buddy allocator, and nothing else",
    "mm/hugetlb.c alloc_buddy_hugetlb_folio() and, before 6.8, alloc_buddy_huge_page(): HTLB_BUDDY_PGALLOC",
)
def vmstat_counts_pages_from_the_buddy_allocator(live: Live) -> None:
    counter = "htlb_buddy_alloc_success"
    before = _vmstat(live)
    live.reserve(2)
    taken = 0 if live.is_gigantic else 2
    live.expect(counter, taken, vmstat_delta(before, _vmstat(live))[counter])
    memory = live.map(2)
    memory.touch()
    memory.unmap()
    live.set_nr(0)
    live.expect(counter, taken, vmstat_delta(before, _vmstat(live))[counter])
    live.expect_pool(nr=0, free=0)


@ACCOUNTING.case(
    "a surplus page comes from the buddy allocator and is counted in htlb_buddy_alloc_success",
    "mm/hugetlb.c alloc_surplus_hugetlb_folio(), HTLB_BUDDY_PGALLOC",
    sizes=Sizes.BUDDY,
)
def vmstat_counts_surplus_pages(live: Live) -> None:
    live.overcommit(1)
    before = _vmstat(live)
    live.map(1).touch()
    live.expect("htlb_buddy_alloc_success", 1, vmstat_delta(before, _vmstat(live))["htlb_buddy_alloc_success"])
    live.expect_pool(nr=1, free=0, surplus=1)


@ACCOUNTING.case(
    "nr_hugetlb counts the base pages of the huge pages in use, not those that wait in a pool",
    "mm/hugetlb.c alloc_hugetlb_folio(), free_huge_folio(): NR_HUGETLB, since 05d4532b60f0",
    pages=2,
    since="6.13",
)
def vmstat_counts_pages_in_use(live: Live) -> None:
    before = _vmstat(live)
    memory = live.map(2)
    live.expect("nr_hugetlb of mapped pages", 0, _base_pages_in_use(live, before))
    memory.touch(0)
    _expect_in_use(live, 1, before)
    memory.touch(1)
    _expect_in_use(live, 2, before)
    memory.unmap()
    live.expect("nr_hugetlb of unmapped pages", 0, _base_pages_in_use(live, before))


@ACCOUNTING.case(
    "surplus pages of a reservation that fails are taken out of no count: nr_hugetlb stays as it was",
    "mm/hugetlb.c gather_surplus_pages(), free_huge_folio(): NR_HUGETLB, since 05d4532b60f0",
    pages=3,
    sizes=Sizes.BUDDY,
    since="6.13",
)
def a_failed_reservation_is_in_no_count(live: Live) -> None:
    before = _vmstat(live)
    live.map(3).fill()
    _expect_in_use(live, 3, before)
    live.overcommit(2)
    live.expect_errno(errno.ENOMEM, live.map, 3)
    live.expect_pool(nr=3, free=0)
    lost = {Quirk.NR_HUGETLB_LOST: live.size}
    live.expect("nr_hugetlb of three pages in use", 3 * live.size, _base_pages_in_use(live, before), lost)


@ACCOUNTING.case(
    "the DirectMap lines cover the same memory before, while and after pages are in a pool",
    f"{PROC_DOC} DirectMap; arch/x86/mm/pat/set_memory.c split_page_count(), and its likes on s390 and powerpc",
)
def the_direct_map_keeps_its_size(live: Live) -> None:
    before = _direct_map(live)
    if not before:
        raise CannotRun("this architecture has no DirectMap lines in /proc/meminfo")
    live.reserve(1)
    live.map(1).touch()
    live.expect("DirectMap lines while a page is used", before, _direct_map(live))


# --- what a process and its mappings show ----------------------------------------------------------------------------
@ACCOUNTING.case(
    "smaps shows the page size of a hugetlb mapping, the flag ht, its touched pages and nothing as Rss",
    f"{PROC_DOC} smaps: Private_Hugetlb; fs/proc/task_mmu.c smaps_hugetlb_range(), show_smap_vma_flags()",
    pages=2,
)
def smaps_of_a_private_mapping(live: Live) -> None:
    memory = live.map(2)
    _expect_hugetlb(live, memory)
    memory.touch(0)
    _expect_hugetlb(live, memory, private=1)
    memory.touch(1)
    _expect_hugetlb(live, memory, private=2)
    mapping = memory.smaps()
    live.expect("Size", 2 * live.size, mapping.size)
    live.expect("KernelPageSize", live.size, mapping.kernel_page_size)
    live.expect("MMUPageSize", live.size, mapping.mmu_page_size)
    live.expect("is shared", False, mapping.is_shared)
    live.expect("has the flag ht", True, "ht" in mapping.flags)
    live.expect("is eligible for THP", False, bool(mapping.thp_eligible))


@ACCOUNTING.case(
    "a page of a shared mapping is Private_Hugetlb while one process maps it and Shared_Hugetlb while several do",
    f"{PROC_DOC} smaps: Shared_Hugetlb; fs/proc/task_mmu.c smaps_hugetlb_range()",
    pages=2,
)
def smaps_of_a_shared_mapping(live: Live) -> None:
    ours = live.map(2, shared=True)
    ours.touch(0)
    _expect_hugetlb(live, ours, private=1)
    theirs = ours.seen_by(ours.actor.fork())
    live.expect("what the page holds", 1, theirs.read(0))
    theirs.touch(1)
    _expect_hugetlb(live, theirs, private=1, shared=1)
    _expect_hugetlb(live, ours, shared=1)
    live.expect("is shared", True, ours.smaps().is_shared)
    ours.unmap()
    live.expect("HugetlbPages without a mapping", 0, _status(live, ours.actor).hugetlb_pages)
    _expect_hugetlb(live, theirs, private=2)


@ACCOUNTING.case(
    "smaps_rollup sums up the hugetlb pages of a process, and its Rss does not grow with them",
    f"{PROC_DOC} smaps_rollup; fs/proc/task_mmu.c show_smaps_rollup()",
    pages=2,
)
def rollup_of_two_mappings(live: Live) -> None:
    first = live.map(1)
    second = live.map(1, first.actor, shared=True)
    first.touch()
    before = _rollup(live, first.actor)
    live.expect("Private_Hugetlb of one page", live.size, before["Private_Hugetlb"])
    second.touch()
    after = _rollup(live, first.actor)
    live.expect("Private_Hugetlb of two pages", 2 * live.size, after["Private_Hugetlb"])
    live.expect("Shared_Hugetlb", 0, after["Shared_Hugetlb"])
    live.expect("Rss", before["Rss"], after["Rss"])
    live.expect("HugetlbPages", 2 * live.size, _status(live, first.actor).hugetlb_pages)


@ACCOUNTING.case(
    "a process has no HugetlbPages for pages that were unmapped, and keeps those of a mapping that moved",
    f"{PROC_DOC} status: HugetlbPages; mm/hugetlb.c hugetlb_count_sub(), since 5d317b2b6536",
    pages=2,
    since="5.16",  # mremap of hugetlb memory
)
def hugetlb_pages_of_a_process(live: Live) -> None:
    memory = live.map(2)
    memory.touch(0, value=6)
    memory.touch(1)
    _expect_hugetlb(live, memory, private=2)
    memory.unmap(1, 1)
    _expect_hugetlb(live, memory, private=1)
    moved = live.map(1, memory.actor, noreserve=True)
    flags = MREMAP_MAYMOVE | MREMAP_FIXED
    memory.actor.call("mremap", memory.address, live.size, live.size, flags, moved.address)
    _expect_hugetlb(live, moved, private=1)
    live.expect("what the page holds", 6, moved.read())
    moved.unmap()
    live.expect("HugetlbPages", 0, _status(live, memory.actor).hugetlb_pages)


@ACCOUNTING.case(
    "MADV_DONTNEED takes a page from the mapping and from HugetlbPages, and gives it back to the pool",
    "madvise(2); mm/madvise.c madvise_dontneed_single_vma(), mm/hugetlb.c __unmap_hugepage_range()",
    pages=2,
    since="5.18",
)
def a_page_given_back_is_not_counted(live: Live) -> None:
    memory = live.map(2)
    memory.touch(0)
    memory.touch(1)
    live.expect_pool(nr=2, free=0)
    memory.advise(MADV_DONTNEED, 0, 1)
    _expect_hugetlb(live, memory, private=1)
    live.expect("free pages", 1, live.pool().free)


@ACCOUNTING.case(
    "truncating a file takes its pages out of every process that maps them, and out of what it counts",
    "mm/hugetlb.c unmap_hugepage_range(); fs/hugetlbfs/inode.c hugetlb_vmtruncate()",
    pages=2,
)
def truncated_pages_are_not_counted(live: Live) -> None:
    actor = live.actor()
    fd = live.open(actor, f"{live.mount()}/file")
    ours = live.map(2, actor, shared=True, fd=fd)
    ours.touch(0)
    ours.touch(1)
    theirs = ours.seen_by(actor.fork())
    live.expect("what the page holds", 1, theirs.read(0))
    live.expect("what the page holds", 1, theirs.read(1))
    _expect_hugetlb(live, theirs, shared=2)
    actor.call("ftruncate", fd, live.size)
    for memory in (ours, theirs):
        _expect_hugetlb(live, memory, shared=1)
    live.expect_pool(nr=2, free=1)


@ACCOUNTING.case(
    "numa_maps shows a mapping as huge with its page size, and its pages as anonymous, dirty, and on their nodes",
    "numa(7) /proc/pid/numa_maps; fs/proc/task_mmu.c show_numa_map(), gather_hugetlb_stats()",
    pages=2,
)
def numa_maps_of_a_private_mapping(live: Live) -> None:
    _require_nodes(live)
    memory = live.map(2)
    untouched = memory.numa_maps()
    live.expect("is huge", True, untouched.huge)
    live.expect("pages on nodes", {}, untouched.nodes)
    live.expect("file", "/anon_hugepage (deleted)", untouched.path)
    memory.touch(0)
    memory.touch(1)
    mapping = memory.numa_maps()
    live.expect("is huge", True, mapping.huge)
    live.expect("kernelpagesize_kB", live.size, mapping.page_size)
    live.expect("pages on nodes", 2, sum(mapping.nodes.values()))
    live.expect("anonymous and dirty pages", {"anon": 2, "dirty": 2}, mapping.counts)


@ACCOUNTING.case(
    "numa_maps shows the pages of a file by its name, as not anonymous, and how often one of them is mapped",
    "numa(7) file=, mapmax=; fs/proc/task_mmu.c gather_stats()",
    pages=2,
)
def numa_maps_of_a_file(live: Live) -> None:
    _require_nodes(live)
    actor = live.actor()
    path = f"{live.mount()}/file"
    ours = live.map(2, actor, shared=True, fd=live.open(actor, path))
    ours.touch(0)
    mapping = ours.numa_maps()
    live.expect("file", path, mapping.path)
    live.expect("is huge", True, mapping.huge)
    live.expect("pages on nodes", 1, sum(mapping.nodes.values()))
    live.expect("anonymous pages", 0, mapping.counts.get("anon", 0))
    live.expect("mapmax= of a page that is mapped once", None, mapping.counts.get("mapmax"))
    theirs = ours.seen_by(actor.fork())
    live.expect("what the page holds", 1, theirs.read(0))
    live.expect("mapmax=", 2, ours.numa_maps().counts.get("mapmax"))
    live.expect("pages on nodes", mapping.nodes, theirs.numa_maps().nodes)


@ACCOUNTING.case(
    "numa_maps and the free pages of the nodes tell the same of where the pages of a mapping lie",
    f"{HUGETLB_DOC} Per Node Hugepages Attributes; fs/proc/task_mmu.c show_numa_map()",
    pages=2,
)
def numa_maps_agree_with_the_nodes(live: Live) -> None:
    _require_nodes(live)
    before = _free_on_nodes(live)
    memory = live.map(2)
    memory.touch(0)
    memory.touch(1)
    taken = {node: free - _free_on_nodes(live)[node] for node, free in before.items()}
    live.expect("pages on nodes", {node: pages for node, pages in taken.items() if pages}, memory.numa_maps().nodes)


def _expect_hugetlb(live: Live, memory: Memory, *, private: int = 0, shared: int = 0) -> None:
    """Expect what the only hugetlb mapping of a process shows, in pages, and that the process shows the same."""
    mapping = memory.smaps()
    live.expect("Private_Hugetlb", private * live.size, mapping.private_hugetlb)
    live.expect("Shared_Hugetlb", shared * live.size, mapping.shared_hugetlb)
    for name in ("Rss", "Pss", "Anonymous", "AnonHugePages", "ShmemPmdMapped", "Shared_Dirty", "Private_Dirty"):
        live.expect(f"{name} of a hugetlb mapping", 0, mapping.fields.get(name, 0))
    live.expect("HugetlbPages", (private + shared) * live.size, _status(live, memory.actor).hugetlb_pages)


def _expect_commit_limit(live: Live) -> None:
    page = mmap.PAGESIZE
    meminfo = _meminfo(live)
    ratio = read_integer(live.host, "proc/sys/vm/overcommit_ratio") or 0
    allowed = (meminfo["MemTotal"] - meminfo["Hugetlb"]) // page * ratio // 100
    live.expect("CommitLimit", allowed * page + meminfo["SwapTotal"], meminfo["CommitLimit"])


def _expect_node_meminfo(live: Live) -> None:
    tree = ObservedTree(live.host)
    pools = read_node_pools(tree)
    for node, directory in node_directories(live.host).items():
        path = f"{directory}/meminfo"
        meminfo = parse_meminfo(tree.read(path) or "", path)
        for pool in pools[node]:
            if pool.size != live.size:
                continue
            live.expect(f"node{node} HugePages_Total", pool.nr_hugepages, meminfo["HugePages_Total"])
            live.expect(f"node{node} HugePages_Free", pool.free_hugepages, meminfo["HugePages_Free"])
            live.expect(f"node{node} HugePages_Surp", pool.surplus_hugepages, meminfo["HugePages_Surp"])


def _meminfo(live: Live) -> dict[str, int]:
    return read_meminfo(ObservedTree(live.host))


def _direct_map(live: Live) -> int:
    return sum(amount for name, amount in _meminfo(live).items() if name.startswith("DirectMap"))


def _vmstat(live: Live) -> dict[str, int]:
    # counters of nodes are kept per CPU and added up now and then; this adds them up now
    live.host.write("proc/sys/vm/stat_refresh", "1")
    return read_vmstat(ObservedTree(live.host))


def _expect_in_use(live: Live, pages: int, before: dict[str, int]) -> None:
    found = _base_pages_in_use(live, before)
    # once it has lost pages the counter reads 0 until it has made up for them
    lost = found if before["nr_hugetlb"] == 0 and found < pages * live.size else None
    live.expect(f"nr_hugetlb of {pages} pages in use", pages * live.size, found, {Quirk.NR_HUGETLB_LOST: lost})


def _base_pages_in_use(live: Live, before: dict[str, int]) -> int:
    return vmstat_delta(before, _vmstat(live))["nr_hugetlb"] * mmap.PAGESIZE


def _status(live: Live, actor: Actor) -> ProcessStatus:
    status = read_process_status(ObservedTree(live.host), actor.pid)
    return status or live.fail(f"/proc/{actor.pid}/status", "a process", "none")


def _rollup(live: Live, actor: Actor) -> dict[str, int]:
    rollup = read_smaps_rollup(ObservedTree(live.host), actor.pid)
    return rollup or live.fail(f"/proc/{actor.pid}/smaps_rollup", "a process", "none")


def _free_on_nodes(live: Live) -> dict[int, int]:
    return {node: live.pool(node).free for node in live.nodes}


def _require_nodes(live: Live) -> None:
    if not live.nodes:
        raise CannotRun("this kernel has no NUMA nodes and no numa_maps")


class HugetlbAccounting(LiveTest):
    """What the kernel counts of hugetlb pages, for every page size of the machine.

    :avocado: enable
    :avocado: tags=hugetlb,accounting
    """

    timeout = 600

    def test_hugetlb(self) -> None:
        """Every case for every page size."""
        self.run_area(ACCOUNTING)
