"""What the machine counts of hugetlb pages: /proc/meminfo, /proc/vmstat, and meminfo of its nodes."""

import errno
import mmap
import re
from itertools import product

from hugepage_qa.cases.added_up import add_up_counters
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.hugetlb_segments import get_segment
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.logged_report import ask_for_report, need_logged_reports
from hugepage_qa.kernel.counters import read_meminfo, read_vmstat, vmstat_delta
from hugepage_qa.kernel.nodes import node_directories
from hugepage_qa.kernel.pools import read_node_pools, read_pools
from hugepage_qa.kernel.smaps import read_smaps
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.kernel.uapi import MAP_POPULATE
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor
from hugepage_qa.sizes import KIB, MIB
from hugepage_qa.version import KernelVersion

ACCOUNTING = Area("accounting/hugetlb-machine")

#: eb02f14c4a2b
_GIGANTIC_SURPLUS_SINCE = KernelVersion(6, 19)

PROC_DOC = "Documentation/filesystems/proc.rst"
#: pages that random operations lose on a kernel with nr-hugetlb-lost, and more
_MOST_LOST = 512
#: more than processes commit by the way
_COMMITMENT = 256 * MIB
_ATTEMPTS = 3
OVERCOMMIT = "Documentation/admin-guide/sysctl/vm.rst overcommit_ratio, overcommit_kbytes"
#: with this policy nobody gets more than the limit (Documentation/mm/overcommit-accounting.rst)
_POLICY, _STRICT = "proc/sys/vm/overcommit_memory", 2
_RATIO, _KBYTES = "proc/sys/vm/overcommit_ratio", "proc/sys/vm/overcommit_kbytes"
#: percent of memory, more than all of it among them; KiB, an odd number among them, of which whole base pages count
_COMMIT_SETTINGS = (_RATIO, 137), (_KBYTES, 1 << 23), (_RATIO, 0), (_KBYTES, 12345677), (_RATIO, 100), (_RATIO, 50)
_REPORT = re.compile(
    r"Node (\d+) hugepages_total=(\d+) hugepages_free=(\d+) hugepages_surp=(\d+) hugepages_size=(\d+)kB"
)


@ACCOUNTING.case(
    "Hugetlb: is the memory in the pools of all page sizes together, whether their pages are used or not",
    f"{HUGETLB_DOC} Hugetlb; mm/hugetlb.c hugetlb_report_meminfo(), since fcb2b0c577f1",
    since="4.16",
    sizes=Sizes.LARGEST,
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
    if read_integer(live.host, _KBYTES):
        raise CannotRun("vm.overcommit_kbytes is set: the limit does not depend on memory")
    _expect_commit_limit(live)
    live.reserve(1)
    _expect_commit_limit(live)


@ACCOUNTING.case(
    "CommitLimit: is what overcommit_ratio leaves of memory without the pools, or what overcommit_kbytes says whatever"
    " pools there are, and swap; of the two the one that was written last counts, and the other one reads 0",
    f"{OVERCOMMIT}, {PROC_DOC} CommitLimit; mm/util.c vm_commit_limit(), overcommit_kbytes_handler()",
    sizes=Sizes.EACH,
)
def commit_limit_by_its_settings(live: Live) -> None:
    if read_integer(live.host, _POLICY) == _STRICT:
        raise CannotRun("vm.overcommit_memory is 2: all that runs would find no memory below a low limit")
    # the last that is put back counts
    in_force = _RATIO if read_integer(live.host, _RATIO) else _KBYTES
    live.set_knob(in_force, str(read_integer(live.host, in_force)))
    live.reserve(0)
    for path, value in _COMMIT_SETTINGS:
        live.set_knob(path, str(value))
        with live.about(f"{path} {value}"):
            live.expect("what the two read", (path, value), _commit_setting(live, path))
            live.set_nr(0)
            _expect_commit_limit(live)
            live.reserve(2)
            _expect_commit_limit(live)
            live.expect_pool(nr=2, free=2)
            memory = live.map(2)
            memory.touch()
            _expect_commit_limit(live)
            if not live.is_gigantic:
                live.set_nr(1)
                live.expect_pool(nr=2, free=1, resv=1, surplus=1)
                _expect_commit_limit(live)
            memory.actor.end()


def _commit_setting(live: Live, written: str) -> tuple[str, int | None]:
    """Return which of the two settings is not 0, the ``written`` one where both are, and its value."""
    read = {path: read_integer(ObservedTree(live.host), path) for path in (_RATIO, _KBYTES)}
    others = [path for path, value in read.items() if value and path != written]
    return (others or [written])[0], read[written]


@ACCOUNTING.case(
    "Committed_AS: does not count private huge pages, neither when they are mapped nor once they may be written",
    "mm/vma.c, mm/mmap.c: accountable_mapping(); mm/mprotect.c mprotect_fixup()",
)
def pages_are_not_committed(live: Live) -> None:
    pages = max(1, _COMMITMENT // live.size)
    live.reserve(pages)
    actor = live.actor()
    for prot in (READ_WRITE, mmap.PROT_READ):
        for _attempt in range(_ATTEMPTS):
            more = _committed_by(live, pages, actor, prot)
            if more < pages * live.size // 2:
                break
        live.expect(f"{more} bytes more, less than half of {pages * live.size}", True, more < pages * live.size // 2)


@ACCOUNTING.case(
    "no mapping of huge pages is one of committed memory (ac in VmFlags): private or shared, of a file or not, with"
    " reservations or without, as it was mapped, and protected as a whole or in part since",
    f"{PROC_DOC} VmFlags; mm/vma.c, mm/mmap.c: accountable_mapping(); mm/mprotect.c mprotect_fixup()",
    pages=3,
)
def mappings_are_not_committed(live: Live) -> None:
    actor = live.actor()
    file = new_memfd(live, actor)
    for shared, noreserve, fd in product((False, True), (False, True), (None, file.descriptor)):
        for prot in (0, mmap.PROT_READ, READ_WRITE):
            memory = live.map(3, actor, shared=shared, noreserve=noreserve, fd=fd, prot=prot)
            _expect_not_committed(live, actor)
            memory.protect(READ_WRITE, 1, 1)
            _expect_not_committed(live, actor)
            memory.protect(READ_WRITE)
            _expect_not_committed(live, actor)
            memory.unmap()
    file.close()
    get_segment(live, live.size, actor).attach()
    _expect_not_committed(live, actor)
    live.expect_pool(nr=3, free=3, resv=1)


def _expect_not_committed(live: Live, actor: Actor) -> None:
    """Expect none of the mappings of huge pages, of which there is one at least, to be committed."""
    huge = [mapping for mapping in read_smaps(ObservedTree(live.host), actor.pid) or () if "ht" in mapping.flags]
    live.expect("whether a mapping is committed", {False}, {"ac" in mapping.flags for mapping in huge})


def _committed_by(live: Live, pages: int, actor: Actor, prot: int) -> int:
    """Return by how many bytes Committed_AS rises for ``pages`` mapped with ``prot``; others commit memory, too."""
    before = _meminfo(live)["Committed_AS"]
    memory = live.map(pages, actor, prot=prot)
    live.expect_pool(nr=pages, free=pages, resv=pages)
    memory.protect(READ_WRITE)
    more = _meminfo(live)["Committed_AS"] - before
    memory.unmap()
    return more


@ACCOUNTING.case(
    "each node's meminfo shows the pool of the default size on that node as sysfs does",
    f"{HUGETLB_DOC} Per Node Hugepages Attributes; mm/hugetlb.c hugetlb_report_node_meminfo()",
    pages=3,
    sizes=Sizes.DEFAULT,
)
def nodes_show_the_default_pool_in_meminfo(live: Live) -> None:
    live.need_nodes()
    surplus = 0 if live.is_gigantic and live.kernel_version < _GIGANTIC_SURPLUS_SINCE else 1
    if surplus:
        live.let_grow(surplus)
    _expect_node_meminfo(live)
    live.map(3 + surplus).touch()
    live.expect_pool(nr=3 + surplus, free=2 + surplus, resv=2 + surplus, surplus=surplus)
    _expect_node_meminfo(live)


@ACCOUNTING.case(
    "the report of memory that sysrq-trigger has the kernel log tells of each node what sysfs does: pages that are"
    " there, free, and surplus",
    "Documentation/admin-guide/sysrq.rst m; mm/hugetlb.c hugetlb_show_meminfo_node()",
    pages=3,
)
def logged_report(live: Live) -> None:
    need_logged_reports(live)
    _expect_report(live)
    live.map(3).touch()
    live.expect_pool(nr=3, free=2, resv=2)
    _expect_report(live)


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
    live.let_grow(1)
    before = _vmstat(live)
    live.map(1).touch()
    live.expect("htlb_buddy_alloc_success", 1, vmstat_delta(before, _vmstat(live))["htlb_buddy_alloc_success"])
    live.expect_pool(nr=1, free=0, surplus=1)


@ACCOUNTING.case(
    "nr_hugetlb counts the base pages of the huge pages in use, not those that wait in a pool",
    "mm/hugetlb.c alloc_hugetlb_folio(), free_huge_folio(): NR_HUGETLB, since 05d4532b60e3",
    since="6.13",
)
def vmstat_counts_pages_in_use(live: Live) -> None:
    live.reserve(_raise_nr_hugetlb(live) + 2)
    before = _vmstat(live)
    memory = live.map(2)
    live.expect("nr_hugetlb of mapped pages", 0, _more_in_use(live, before))
    for pages in (1, 2):
        memory.touch(pages - 1)
        live.expect(f"nr_hugetlb of {pages} touched pages", pages * live.size, _more_in_use(live, before))
    memory.unmap()
    live.expect("nr_hugetlb of unmapped pages", 0, _more_in_use(live, before))


@ACCOUNTING.case(
    "surplus pages of a reservation that fails are taken out of no count: nr_hugetlb stays as it was",
    "mm/hugetlb.c gather_surplus_pages(), free_huge_folio(): NR_HUGETLB, since 05d4532b60e3",
    sizes=Sizes.BUDDY,
    since="6.13",
)
def a_failed_reservation_is_in_no_count(live: Live) -> None:
    pages = _raise_nr_hugetlb(live) + 3
    live.reserve(pages)
    before = _vmstat(live)
    live.map(3, flags=MAP_POPULATE)
    live.expect("nr_hugetlb of three pages in use", 3 * live.size, _more_in_use(live, before))
    # with no room for both it gives up earlier, and has less to give back
    live.let_grow(2)
    live.expect_errno(errno.ENOMEM, live.map, 3)
    live.expect_pool(nr=pages, free=0)
    lost = {Quirk.NR_HUGETLB_LOST: live.size}
    live.expect("nr_hugetlb of the same three pages", 3 * live.size, _more_in_use(live, before), lost)


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


def _expect_commit_limit(live: Live) -> None:
    page = live.base_page
    meminfo = _meminfo(live)
    kbytes, ratio = (read_integer(live.host, path) or 0 for path in (_KBYTES, _RATIO))
    of_memory = (meminfo["MemTotal"] - meminfo["Hugetlb"]) // page * ratio // 100
    allowed = kbytes * KIB // page if kbytes else of_memory
    live.expect("CommitLimit", allowed * page + meminfo["SwapTotal"], meminfo["CommitLimit"])


def _expect_node_meminfo(live: Live) -> None:
    tree = ObservedTree(live.host)
    pools = read_node_pools(tree)
    for node, directory in node_directories(live.host).items():
        meminfo = read_meminfo(tree, f"{directory}/meminfo")
        for pool in pools[node]:
            if pool.size != live.size:
                continue
            live.expect(f"node{node} HugePages_Total", pool.files.get("nr_hugepages"), meminfo["HugePages_Total"])
            live.expect(f"node{node} HugePages_Free", pool.files.get("free_hugepages"), meminfo["HugePages_Free"])
            live.expect(f"node{node} HugePages_Surp", pool.files.get("surplus_hugepages"), meminfo["HugePages_Surp"])


def _expect_report(live: Live) -> None:
    reported = [tuple(map(int, found)) for found in _REPORT.findall("\n".join(ask_for_report(live)))]
    tree = ObservedTree(live.host)
    # a kernel without NUMA tells of one node
    for node, pools in (read_node_pools(tree) or {0: read_pools(tree)}).items():
        files = {pool.size: pool.files for pool in pools}.get(live.size)
        if files is None and live.nodes and node not in live.nodes:
            # before Linux 6.1 a node without memory has no pools in sysfs
            continue
        files = files or {}
        counts = [files.get(f"{name}_hugepages") for name in ("nr", "free", "surplus")]
        found = [list(told) for where, *told, size in reported if (where, size) == (node, live.size // KIB)]
        live.expect(f"report of node {node}: pages that are there, free, surplus", [counts], found)


def _meminfo(live: Live) -> dict[str, int]:
    return read_meminfo(ObservedTree(live.host))


def _direct_map(live: Live) -> int:
    return sum(amount for name, amount in _meminfo(live).items() if name.startswith("DirectMap"))


def _vmstat(live: Live) -> dict[str, int]:
    add_up_counters(live)
    return read_vmstat(ObservedTree(live.host))


def _raise_nr_hugetlb(live: Live) -> int:
    """Use pages until nr_hugetlb is above 0, from where it is exact, and return how many.

    Below 0 it reads 0 until pages in use have made up for what failed reservations took out of it. Raises CannotRun
    where that is too much, and Failed where the kernel loses nothing.
    """
    used = 0
    while not _vmstat(live)["nr_hugetlb"]:
        if used and not live.has_bug(Quirk.NR_HUGETLB_LOST):
            live.fail("nr_hugetlb", f"{used} pages in use", 0)
        if used >= _MOST_LOST:
            raise CannotRun(f"nr_hugetlb reads 0 with {used} pages in use: failed reservations took more out of it")
        more = max(used, 1)
        live.reserve(used + more)
        live.map(more, flags=MAP_POPULATE)
        used += more
    return used


def _more_in_use(live: Live, before: dict[str, int]) -> int:
    """Return how many bytes nr_hugetlb counts above ``before``."""
    return vmstat_delta(before, _vmstat(live))["nr_hugetlb"] * live.base_page


class MachineAccounting(LiveTest):
    def test_machine(self) -> None:
        self.run_area(ACCOUNTING)
