"""What the kernel counts of all memory of a machine, and what is left of it when a case is over.

A machine that is started for a run has nothing but the suite, so that whatever stays mapped, locked, isolated or pinned
behind a case was forgotten by the kernel, and so was memory that is neither free nor counted as anything. A case looks
at what it knows to be in danger; here all of them are held against what no case may leave.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import not_

from hugepage_qa.cases.added_up import add_up_counters
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.memory_of_others import free_bytes
from hugepage_qa.kernel.counters import read_meminfo, read_vmstat
from hugepage_qa.kernel.nodes import node_directories
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.oracle.compare import Difference
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import HUGETLB_DOC, Rule
from hugepage_qa.sizes import MIB

MEMORY_ACCOUNTED = Rule(
    "memory-accounted",
    "when a case is over nothing of it is mapped as a huge page, locked, isolated or pinned any more, nor counted as"
    " anonymous memory or page tables, and no memory is missing that is neither free nor counted",
    "Documentation/filesystems/proc.rst meminfo; mm/vmstat.c vmstat_refresh(); fs/proc/meminfo.c",
)
MEMORY_LEFT = Rule(
    "memory-left",
    "the memory of gigantic pages that a pool had for a while is free again when they have left it",
    f"{HUGETLB_DOC} nr_hugepages; mm/hugetlb.c __update_and_free_hugetlb_folio()",
)
_SHARED = "nr_shmem_hugepages"
#: of all processes together, in base pages or in huge ones (vmstat_item_print_in_thp() in mm/vmstat.c)
_OF_PROCESSES = (
    "nr_anon_transparent_hugepages",
    _SHARED,
    "nr_shmem_pmdmapped",
    "nr_file_pmdmapped",
    "nr_isolated_anon",
    "nr_isolated_file",
    "nr_mlock",
    "nr_unevictable",
)
#: of which those that the suite itself has in the machine have some, too, in base pages
_OF_PROCESSES_AND_OURS = ("nr_anon_pages", "nr_mapped", "nr_swapcached", "nr_page_table_pages")
#: of all nodes together, since what the suite has stored may move; of the lists a page goes from one to the other
_STORED, _LISTS = "nr_shmem", ("nr_active_anon", "nr_inactive_anon")
#: bytes that were promised
_COMMITTED = "Committed_AS"
#: events since 5.8, of which there are as many of the second as of the first when nothing is pinned
_PINNED, _UNPINNED = "nr_foll_pin_acquired", "nr_foll_pin_released"
#: lines of /proc/meminfo, in bytes, that leave no page out but free ones and those of zsmalloc, and none twice
_COUNTED = (
    "Buffers",
    "Cached",
    "SwapCached",
    "AnonPages",
    "Slab",
    "KernelStack",
    "PageTables",
    "SecPageTables",
    "Percpu",
    "VmallocUsed",
    "Hugetlb",
)
#: these change what memory there is to account for
_TOTAL, _CORRUPTED = "MemTotal", "HardwareCorrupted"
_ALL_MEMORY = (_TOTAL, _CORRUPTED)
#: those of pools that give them back and get others are in all memory since then, as those of added memory are
#: (free_bootmem_page()): counted since Linux 6.11 (15995a352474)
_STRUCT_PAGES = "nr_memmap_pages"
#: less than a huge page of 2 MiB. Without a bug the account of 700 cases on Linux 7.3 was never out by more than 116
#: pages, and the agent takes 270 when it gets its first program
_OUR_PAGES = 400
#: half a page of this size is more than what the kernel and the suite take meanwhile, and count
_SEEN_IN_FREE_MEMORY = 512 * MIB
#: for what the kernel ends later; pages of a pool are given back by the write itself
_SETTLED_SECONDS = 20.0


@dataclass(frozen=True)
class MemoryAccount:
    """Counters by name and node, in pages; bytes that are free, that are neither free nor counted, and of all memory.

    ``ours`` are the counters of which the suite may have some more. Where struct pages are not counted nobody knows who
    has memory when there is more or less of it in all.
    """

    counters: Mapping[str, int]
    ours: Mapping[str, int]
    free: int
    unaccounted: int
    all_memory: Mapping[str, int]
    has_struct_pages: bool


def read_account(live: Live) -> MemoryAccount:
    """Return what the kernel counts now. Raises InputError for a file of an unknown form."""
    add_up_counters(live)
    tree = ObservedTree(live.host)
    meminfo, of_all, free = read_meminfo(tree), read_vmstat(tree), free_bytes(live)
    counters: dict[str, int] = {}
    ours: dict[str, int] = {}
    of_nodes = {f" of node {node}": read_vmstat(tree, f"{at}/vmstat") for node, at in node_directories(tree).items()}
    # a page that has moved is on the wrong node for good: what there is on all of them is right
    is_off_nodes = live.has_bug(Quirk.MOVED_SHARED_PAGE_OFF_NODES)
    for where, found in (of_nodes or {"": of_all}).items():
        shown = of_all if is_off_nodes else found
        counters |= {f"{name}{where}": (shown if name == _SHARED else found).get(name, 0) for name in _OF_PROCESSES}
        counters[f"pinned pages{where}"] = found.get(_PINNED, 0) - found.get(_UNPINNED, 0)
        ours |= {f"{name}{where}": found.get(name, 0) for name in _OF_PROCESSES_AND_OURS}
    ours[_STORED] = of_all.get(_STORED, 0)
    ours[" and ".join(_LISTS)] = sum(of_all.get(name, 0) for name in _LISTS)
    ours[_COMMITTED] = meminfo.get(_COMMITTED, 0) // live.base_page
    counted = sum(meminfo.get(name, 0) for name in _COUNTED)
    counted += sum(of_all.get(name, 0) for name in ("nr_zspages", _STRUCT_PAGES)) * live.base_page
    everything = {name: meminfo.get(name, 0) for name in _ALL_MEMORY}
    return MemoryAccount(counters, ours, free, meminfo[_TOTAL] - free - counted, everything, _STRUCT_PAGES in of_all)


def stored_pages(live: Live) -> int:
    """Return how many base pages of memory have what the suite stored: the root of a throwaway machine is a tmpfs."""
    return live.host.file_system("/").taken_bytes // live.base_page


def left_behind(live: Live, *comparisons: Callable[[], list[Difference]]) -> list[Difference]:
    """Return the differences that ``comparisons`` with what was before a case still find when it is over.

    What ends late, waits on lists of processors or is kept for the next one, as the huge zero page is, is waited for
    when caches are dropped and memory was compacted, which empties these lists.
    """

    def compare() -> list[Difference]:
        return [difference for comparison in comparisons for difference in comparison()]

    found = compare()
    if found:
        live.make_room()
        found = live.host.last_look(compare, not_, _SETTLED_SECONDS)
    return found


def compare_account(live: Live, before: MemoryAccount, stored: int) -> list[Difference]:
    """Return what there is more or less of than ``before``, when ``stored`` base pages were ours."""
    now = read_account(live)
    of_ours = _OUR_PAGES + max(stored_pages(live) - stored, 0)
    found = [
        Difference(name, MEMORY_ACCOUNTED, f"{was} as before", str(count))
        for then, counts, least in ((before.counters, now.counters, 1), (before.ours, now.ours, of_ours))
        for name, was in then.items()
        if abs((count := counts.get(name, 0)) - was) >= least
    ]
    was, total = before.all_memory[_TOTAL], now.all_memory[_TOTAL]
    if total < was:
        found.append(Difference(_TOTAL, MEMORY_ACCOUNTED, f"{was} bytes at least", f"{total} bytes"))
    is_corrupted = now.all_memory[_CORRUPTED] != before.all_memory[_CORRUPTED]
    if is_corrupted or total < was or (total != was and not now.has_struct_pages):
        return found
    missed = now.unaccounted - before.unaccounted
    if missed >= _OUR_PAGES * live.base_page:
        found.append(Difference("memory that nobody has", MEMORY_ACCOUNTED, "0 bytes more", f"{missed} bytes more"))
    # who only looked at the pools would pass over it, and find memory too fragmented for the next case
    least = before.free - live.size // 2
    if live.size >= _SEEN_IN_FREE_MEMORY and now.free < least:
        found.append(Difference("free memory", MEMORY_LEFT, f"at least {least} bytes", f"{now.free} bytes"))
    return found
