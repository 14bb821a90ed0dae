"""The report of memory that the kernel logs, on demand (sysrq m) and when memory runs out: what it tells of huge pages.

Each amount in it is held against the file of the kernel that tells the same, with another amount of each kind there.
"""

from collections.abc import Callable, Mapping
from functools import partial

from hugepage_qa.cases.added_up import add_up_counters
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import expect_change
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.logged_report import ask_for_report, need_logged_reports
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import bind
from hugepage_qa.cases.pages_of_a_node import need_memory
from hugepage_qa.cases.swapped import need_swap, swap_out
from hugepage_qa.cases.thp_memory import allow_on_advice, map_aligned, pmd_size
from hugepage_qa.cases.thp_policy import fill_in_huge_pages, huge_pages
from hugepage_qa.kernel.counters import read_meminfo, read_vmstat
from hugepage_qa.kernel.memory_layout import read_free_blocks, read_zones
from hugepage_qa.kernel.memory_report import MemoryReport, read_memory_report
from hugepage_qa.kernel.nodes import node_directories
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.version import KernelVersion

REPORT = Area("accounting/memory-report", sizes=Sizes.ONCE)

SYSRQ = "Documentation/admin-guide/sysrq.rst m; mm/page_alloc.c __show_free_areas() as of Linux 6.1"
#: more huge pages than are made on any node
_ROOM = 16
#: so many are asked for until one agrees with the files
_REPORTS = 5
#: f0c0c115fb81: before, page tables are told of zones
_PAGE_TABLES_OF_NODES_SINCE = KernelVersion(5, 11)
#: what a report has of a node, and the line of the node's meminfo that tells the same
_OF_NODES = {
    "active_anon": "Active(anon)",
    "inactive_anon": "Inactive(anon)",
    "active_file": "Active(file)",
    "inactive_file": "Inactive(file)",
    "unevictable": "Unevictable",
    "mapped": "Mapped",
    "dirty": "Dirty",
    "writeback": "Writeback",
    "shmem": "Shmem",
    "shmem_thp": "ShmemHugePages",
    "shmem_pmdmapped": "ShmemPmdMapped",
    "anon_thp": "AnonHugePages",
    "kernel_stack": "KernelStack",
    "pagetables": "PageTables",
}
#: what it has of the machine, in base pages, and the counter of vmstat
_OF_MACHINE = {
    "active_anon": "nr_active_anon",
    "inactive_anon": "nr_inactive_anon",
    "isolated_anon": "nr_isolated_anon",
    "active_file": "nr_active_file",
    "inactive_file": "nr_inactive_file",
    "isolated_file": "nr_isolated_file",
    "unevictable": "nr_unevictable",
    "dirty": "nr_dirty",
    "writeback": "nr_writeback",
    "slab_reclaimable": "nr_slab_reclaimable",
    "slab_unreclaimable": "nr_slab_unreclaimable",
    "mapped": "nr_mapped",
    "shmem": "nr_shmem",
    "pagetables": "nr_page_table_pages",
    "bounce": "nr_bounce",
    "free": "nr_free_pages",
    "free_cma": "nr_free_cma",
    "pagecache pages": "nr_file_pages",
}
#: what leaves no page of the page cache out, and has none twice (meminfo_proc_show() in fs/proc/meminfo.c)
_CACHES = "Cached, SwapCached and Buffers together, as pagecache pages"


@REPORT.case(
    "the report of memory tells of each node how much of it is in huge pages, anonymous, shared, and shared and mapped"
    " as a whole, to the page, what is locked of it, and all else as the meminfo of the node does",
    SYSRQ,
)
def huge_pages_of_nodes(live: Live) -> None:
    need_logged_reports(live)
    allow_on_advice(live)
    let_rest(live)
    size = pmd_size(live)
    need_memory(live, live.nodes[:2], _ROOM * size)
    # a kernel without NUMA tells of one node
    for more, node in enumerate(live.nodes[:2] or (0,)):
        anonymous, shared = 2 + more, 5 + more
        amounts = {
            "anon_thp": anonymous,
            "shmem": shared,
            "shmem_pmdmapped": shared - 1,
            "unevictable": 1,
            "mlocked": 1,
        }
        if not live.has_bug(Quirk.MOVED_SHARED_PAGE_OFF_NODES):
            # else it may be below 0, and reads 0 then, since such pages have moved
            amounts["shmem_thp"] = shared
        counted = {_of(node, name): pages * size for name, pages in amounts.items()}
        prepare = partial(_on_node, live, node, anonymous, shared)
        expect_change(live, counted, prepare, partial(_fill, live, node), _read_amounts)
        _expect_as_in_meminfo(live)


@REPORT.case(
    "the report of memory tells of all memory, of swap, of zones and of their free blocks as vmstat, meminfo, zoneinfo"
    " and buddyinfo do, and as many pages of the page cache as Cached, SwapCached and Buffers of meminfo are together,"
    " with some of memory in swap, and some back from there that is in the swap cache still",
    f"{SYSRQ}; Documentation/filesystems/proc.rst meminfo, buddyinfo; lib/show_mem.c __show_mem()",
)
def all_memory(live: Live) -> None:
    need_logged_reports(live)
    need_swap(live, 3 * pmd_size(live))
    memory = huge_pages(live, 4)
    memory.actor.call("mlock", memory.at(3), memory.size)
    swap_out(live, memory.part(0, 3), 3 * memory.size)
    # what is read alone keeps its place in swap, and is in the swap cache
    memory.expect_filled(pages=2)
    page = live.base_page
    told, report = _expect_close(live, _told_of_memory, partial(_reported, page=page))
    live.expect("whether swap and what is free of it are told", True, {"Total swap", "Free swap"} <= told.keys())
    for (node, zone), (counts, total) in report.free_blocks.items():
        blocks = sum(count * page << order for order, count in enumerate(counts))
        live.expect(f"free blocks of node {node}, zone {zone}, in bytes", blocks, total)


def _on_node(live: Live, node: int, anonymous: int, shared: int) -> tuple[Memory, Memory]:
    """Return untouched memory of ``node`` that is to get so many huge pages, anonymous and shared."""
    found = []
    for pages, is_shared in ((anonymous, False), (shared, True)):
        memory = map_aligned(live, pages, pmd_size(live), shared=is_shared, advice=MADV_HUGEPAGE)
        if live.nodes:
            bind(memory, [node])
        found.append(memory)
    return found[0], found[1]


def _fill(live: Live, node: int, memories: tuple[Memory, Memory]) -> None:
    """Fill the two; a page of the first is locked, and one of the other is mapped no more."""
    for memory in memories:
        fill_in_huge_pages(live, memory, node if live.nodes else None)
    first, other = memories
    first.actor.call("mlock", first.address, first.size)
    other.unmap(other.pages - 1, 1)


def _report(live: Live) -> MemoryReport:
    add_up_counters(live)
    return read_memory_report(ask_for_report(live))


def _of(node: int, name: str) -> str:
    return f"node {node}: {name}"


def _read_amounts(live: Live) -> dict[str, int]:
    """Return what a report tells of nodes, and what is locked in their zones, in bytes."""
    report = _report(live)
    amounts = {_of(node, name): amount for node, told in report.nodes.items() for name, amount in told.items()}
    for node in report.nodes:
        zones = (told for (where, _zone), told in report.zones.items() if where == node)
        amounts[_of(node, "mlocked")] = sum(told["mlocked"] for told in zones)
    return amounts


def _expect_as_in_meminfo(live: Live) -> None:
    of_zones = {"pagetables"} if live.kernel_version < _PAGE_TABLES_OF_NODES_SINCE else set[str]()
    names = {name: line for name, line in _OF_NODES.items() if name not in of_zones}

    def reported(report: MemoryReport) -> dict[str, int]:
        return {_of(node, name): told[name] for node, told in report.nodes.items() for name in names}

    def told(live: Live) -> dict[str, int]:
        tree = ObservedTree(live.host)
        directories = node_directories(live.host)
        # a node without memory is in no report
        files = {node: f"{directories[node]}/meminfo" for node in live.nodes}
        shown = {node: read_meminfo(tree, path) for node, path in (files or {0: "proc/meminfo"}).items()}
        return {_of(node, name): shown[node][line] for node in shown for name, line in names.items()}

    _expect_close(live, told, reported)


def _reported(report: MemoryReport, page: int) -> dict[str, int]:
    """Return what a report tells of the machine and its zones, in bytes; base pages have ``page``."""
    of_machine = {name: pages * page for name, pages in report.machine.items() if name in _OF_MACHINE}
    totals = {
        name: count if "swap" in name and "pages" not in name else count * page for name, count in report.totals.items()
    }
    zones = {
        f"{_of(node, zone)} {name}": told[name]
        for (node, zone), told in report.zones.items()
        for name in ("free", "present", "managed")
    }
    zones[_CACHES] = totals["pagecache pages"]
    zones["free_cma of all zones"] = sum(told["free_cma"] for told in report.zones.values())
    blocks = {f"{_of(node, zone)} blocks": total for (node, zone), (_counts, total) in report.free_blocks.items()}
    return of_machine | totals | zones | blocks


def _told_of_memory(live: Live) -> dict[str, int]:
    """Return the same from other files of the kernel."""
    tree, page = ObservedTree(live.host), live.base_page
    vmstat, meminfo = read_vmstat(tree), read_meminfo(tree)
    zones = [zone for zone in read_zones(tree) if zone.present]
    told = {name: vmstat[counter] * page for name, counter in _OF_MACHINE.items() if counter in vmstat}
    told |= {
        "Total swap": meminfo["SwapTotal"],
        "Free swap": meminfo["SwapFree"],
        "pages in swap cache": meminfo["SwapCached"],
        _CACHES: sum(meminfo[name] for name in ("Cached", "SwapCached", "Buffers")),
    }
    told["pages RAM"] = sum(zone.present for zone in zones) * page
    told["pages reserved"] = sum(zone.present - zone.managed for zone in zones) * page
    if "HardwareCorrupted" in meminfo:
        told["pages hwpoisoned"] = meminfo["HardwareCorrupted"]
    told["free_cma of all zones"] = vmstat["nr_free_cma"] * page
    if "CmaTotal" in meminfo:
        told["pages cma reserved"] = meminfo["CmaTotal"]
    for zone in zones:
        where = _of(zone.node, zone.name)
        told |= {f"{where} free": zone.free * page, f"{where} present": zone.present * page}
        told[f"{where} managed"] = zone.managed * page
    for free in read_free_blocks(tree):
        blocks = sum(count * page << order for order, count in enumerate(free.counts))
        told[f"{_of(free.node, free.zone)} blocks"] = blocks
    return told


def _expect_close(
    live: Live, tell: Callable[[Live], Mapping[str, int]], reported: Callable[[MemoryReport], Mapping[str, int]]
) -> tuple[Mapping[str, int], MemoryReport]:
    """Expect a report to have all that files ``tell`` before and after it, but for less than half a huge page.

    What somebody has for the moment of the report alone is in neither: of up to five reports one has to agree. Returns
    what they told before, and the report.
    """
    for _attempt in range(_REPORTS):
        before, report, after = tell(live), _report(live), tell(live)
        found = reported(report)
        bounds = {name: sorted((before[name], after[name])) for name in before.keys() & found.keys()}
        most = pmd_size(live) // 2
        away = {name for name, (low, high) in bounds.items() if not low - most < found[name] < high + most}
        # what others log meanwhile stands amid a line, which tells nothing then
        if not away and bounds.keys() == before.keys():
            break
    live.expect("amounts in the report", sorted(before), sorted(bounds))
    for name, (low, high) in bounds.items():
        live.expect(f"{name}: {found[name]}, is {low} to {high}", True, name not in away)
    return before, report


class MemoryReports(LiveTest):
    def test_memory_report(self) -> None:
        self.run_area(REPORT)
