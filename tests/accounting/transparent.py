"""What the kernel counts of PMD-sized transparent huge pages: for the machine, and for a process."""

import errno
import mmap
from functools import partial

from hugepage_qa.cases.balanced_pages import expect_hints_counted, waited_for
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import expect_change, read_counters
from hugepage_qa.cases.fragmentation import expect_no_shortage, with_blocks
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.madv_collapse import collapse_memory
from hugepage_qa.cases.mapped_memory import FRAME, OF_A_FILE, PRESENT, Memory
from hugepage_qa.cases.memory_policy import node_of
from hugepage_qa.cases.process_counters import process_status, tells_resident
from hugepage_qa.cases.thp_memory import allow_on_advice, map_aligned, need_blocks, pmd_size
from hugepage_qa.cases.thp_policy import fill_in_huge_pages
from hugepage_qa.kernel.process_status import read_process_status
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MADV_DONTNEED, MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

TRANSPARENT = Area("accounting/transparent", sizes=Sizes.ONCE)

PROC_DOC = "Documentation/filesystems/proc.rst"

_ZERO_PAGES = "thp_zero_page_alloc"


@TRANSPARENT.case(
    "AnonHugePages of a mapping, of its process and of the machine is the memory in PMD-sized anonymous pages",
    f"{THP_DOC} Monitoring usage; {PROC_DOC} AnonHugePages; mm/huge_memory.c __do_huge_pmd_anonymous_page()",
)
def anonymous_huge_pages(live: Live) -> None:
    allow_on_advice(live)
    size = pmd_size(live)
    with_blocks(live, size, 2)
    counted = {"AnonHugePages": 2 * size, "nr_anon_transparent_hugepages": 2, "thp_fault_alloc": 2}
    memory = expect_change(live, counted, lambda: _advised(live, 2), partial(fill_in_huge_pages, live))
    mapping = memory.smaps()
    live.expect("AnonHugePages", 2 * size, mapping.anon_huge_pages)
    live.expect("Rss", 2 * size, mapping.rss)
    live.expect("Anonymous", 2 * size, mapping.fields["Anonymous"])
    live.expect("shmem and file pages", 0, mapping.shmem_pmd_mapped + mapping.file_pmd_mapped)
    live.expect("hugetlb pages", 0, mapping.hugetlb)
    live.expect("has the flag hg", True, "hg" in mapping.flags)
    status = read_process_status(ObservedTree(live.host), memory.actor.pid)
    live.expect("HugetlbPages", 0, status.hugetlb_pages if status else None)
    memory.expect_filled()
    released = {"AnonHugePages": -2 * size, "nr_anon_transparent_hugepages": -2, "thp_fault_alloc": 0}
    expect_change(live, released, lambda: _filled(live, 2), Memory.unmap)


@TRANSPARENT.case(
    "a huge page that is unmapped in part is no longer counted as one, its rest stays in Rss, and the split is counted",
    f"{THP_DOC} thp_split_pmd, thp_deferred_split_page; mm/huge_memory.c __split_huge_pmd()",
)
def a_page_unmapped_in_part(live: Live) -> None:
    allow_on_advice(live)
    size = pmd_size(live)
    counted = {"AnonHugePages": -size, "thp_split_pmd": 1, "thp_deferred_split_page": 1, "thp_fault_alloc": 0}
    memory = expect_change(live, counted, lambda: _filled(live, 1), _unmap_the_second_half)
    mapping = memory.smaps()
    live.expect("AnonHugePages", 0, mapping.anon_huge_pages)
    live.expect("Rss", size // 2, mapping.rss)


@TRANSPARENT.case(
    "after a fork both processes show the huge page, the machine has it once, and a write splits it for the writer",
    f"{THP_DOC}; mm/huge_memory.c do_huge_pmd_wp_page(), since 3917c80280c9",
    since="5.8",
)
def a_page_shared_by_fork(live: Live) -> None:
    allow_on_advice(live)
    size = pmd_size(live)
    ours = _filled(live, 1)
    theirs = expect_change(live, {"AnonHugePages": 0}, ours.fork, _read_first)
    live.expect("AnonHugePages of the parent", size, ours.smaps().anon_huge_pages)
    live.expect("AnonHugePages of the child", size, theirs.smaps().anon_huge_pages)
    theirs.touch(0, value=9)
    theirs.expect_huge(0, about="of the child after its write")
    live.expect("Rss of the child after its write", size, theirs.smaps().rss)
    live.expect("AnonHugePages of the parent", size, ours.smaps().anon_huge_pages)
    ours.expect_filled()


@TRANSPARENT.case(
    "RssAnon in status counts huge pages whole, for the process and for its child, and no longer those that it unmaps",
    f"{PROC_DOC} RssAnon; mm/huge_memory.c copy_huge_pmd(), zap_huge_pmd()",
)
def resident_by_status(live: Live) -> None:
    allow_on_advice(live)
    pages = 4
    ours = _filled(live, pages)
    theirs = ours.fork()
    is_told = tells_resident(live, ours.size)
    if is_told:
        found = [_resident(live, memory) for memory in (ours, theirs)]
        live.expect("RssAnon of parent and child, in huge pages", [pages, pages], found)
    theirs.unmap(0, 1)
    if is_told:
        found = [_resident(live, memory) for memory in (ours, theirs)]
        live.expect("RssAnon of both when the child has unmapped one", [pages, pages - 1], found)
    ours.expect_filled()


@TRANSPARENT.case(
    "pagemap says of each base page of a huge one whether it is of a file or shared, mapped whole and in parts",
    "Documentation/admin-guide/mm/pagemap.rst bit 61; fs/proc/task_mmu.c pagemap_pmd_range()",
)
def of_a_file_or_anonymous(live: Live) -> None:
    allow_on_advice(live)
    for shared in (False, True):
        memory = _filled(live, 2, shared=shared)
        # of the second one the first base page is a mapping of its own, and the rest is mapped again as base pages
        memory.actor.call("mprotect", memory.at(1), live.base_page, mmap.PROT_READ)
        memory.expect_filled()
        entries = memory.whole_pagemap()
        count = memory.length // live.base_page
        live.expect("base pages that are present", count, sum(bool(entry & PRESENT) for entry in entries))
        of_a_file = sum(bool(entry & OF_A_FILE) for entry in entries)
        known = {Quirk.HUGE_PAGE_OF_NO_FILE: count // 2} if shared else None
        live.expect(f"base pages of a file or shared, shared: {shared}", count if shared else 0, of_a_file, known)


@TRANSPARENT.case(
    "numa_maps tells of each base page of a huge one whether it is anonymous and dirty, on which node it lies, and how"
    " often one is mapped: alone, with a child, when the child has written, with a base page that is gone, and when it"
    " may only be read since; and of others that may",
    "numa(7) anon=, dirty=, mapmax=; fs/proc/task_mmu.c gather_stats(), gather_pte_stats()",
)
def numa_maps_of_huge_pages(live: Live) -> None:
    live.need_nodes()
    allow_on_advice(live)
    # it would fill the place of the base page that is gone
    let_rest(live)
    ours = _filled(live, 2)
    count = ours.length // live.base_page
    whole = {"anon": count, "dirty": count}
    live.expect("of two pages", whole, _base_pages_in_numa_maps(live, ours))
    theirs = ours.fork()
    for whose, memory in (("parent", ours), ("child", theirs)):
        live.expect(f"of the {whose}", whole | {"mapmax": 2}, _base_pages_in_numa_maps(live, memory))
    # with base pages of its own for one huge page, the child has all of both still
    theirs.touch(0, value=9)
    live.expect("of the child after its write", whole | {"mapmax": 2}, _base_pages_in_numa_maps(live, theirs))
    theirs.actor.end()
    live.expect("without the child", whole, _base_pages_in_numa_maps(live, ours))
    ours.actor.call("madvise", ours.at(1) - live.base_page, live.base_page, MADV_DONTNEED)
    rest = {"anon": count - 1, "dirty": count - 1}
    live.expect("without the last base page of the first", rest, _base_pages_in_numa_maps(live, ours))
    # those of a huge page that was split are dirty themselves, whatever the page table says
    small = map_aligned(live, 8, live.base_page, advice=MADV_NOHUGEPAGE)
    small.fill()
    for memory, found in ((ours, rest), (small, {"anon": small.pages, "dirty": small.pages})):
        memory.protect(mmap.PROT_READ)
        live.expect("that may only be read since", found, _base_pages_in_numa_maps(live, memory))
    ours = _filled(live, 2, shared=True)
    live.expect("of shared memory", {"dirty": count}, _base_pages_in_numa_maps(live, ours))
    theirs = ours.fork()
    theirs.expect_filled()
    for whose, memory in (("parent", ours), ("child", theirs)):
        shared = {"dirty": count, "mapmax": 2}
        live.expect(f"of shared memory, of the {whose}", shared, _base_pages_in_numa_maps(live, memory))


@TRANSPARENT.case(
    "the huge zero page that a read maps is no memory of the process: it is neither in Rss nor in AnonHugePages",
    f"{THP_DOC} use_zero_page; mm/huge_memory.c do_huge_pmd_anonymous_page(), vm_normal_page_pmd()",
)
def the_zero_page_is_nobodys(live: Live) -> None:
    allow_on_advice(live)
    live.set_knob(f"{DIRECTORY}/use_zero_page", "1")
    memory = expect_change(live, {"AnonHugePages": 0, "thp_fault_alloc": 0}, lambda: _advised(live, 1), _read_first)
    memory.expect_zero(0)
    memory.expect_huge(0)
    live.expect("Rss", 0, memory.smaps().rss)


@TRANSPARENT.case(
    "the huge zero page is allocated once for all who read, and again when nobody had it and memory was asked back:"
    " each time is counted",
    f"{THP_DOC} thp_zero_page_alloc; mm/huge_memory.c get_huge_zero_page(), shrink_huge_zero_page_scan()",
)
def an_allocated_zero_page(live: Live) -> None:
    allow_on_advice(live)
    live.set_knob(f"{DIRECTORY}/use_zero_page", "1")
    with_blocks(live, pmd_size(live), 1)
    reader = _advised(live, 1)
    reader.read()
    entries = reader.pagemap((reader.address, reader.at(1) - live.base_page))
    if not entries[1] & PRESENT:
        # one zero page of base pages is at the place that was read
        expect_no_shortage(live, reader.size, 1)
    first, last = (entry & FRAME for entry in entries)
    live.expect("base pages from the first frame to the last", reader.size // live.base_page - 1, last - first)
    live.expect(f"{_ZERO_PAGES} is more than none", True, read_counters(live)[_ZERO_PAGES] > 0)
    expect_change(live, {_ZERO_PAGES: 0}, lambda: _advised(live, 1), _read_and_leave)
    reader.actor.end()
    # others may have it, and of kernels that keep it since 6.18 some do not tell
    if not live.host.has_others and live.host.kernel_option("PERSISTENT_HUGE_ZERO_FOLIO") is False:
        expect_change(live, {_ZERO_PAGES: 1}, partial(_advised_anew, live), _read_and_leave)


@TRANSPARENT.case(
    "base pages that MADV_COLLAPSE makes a huge page are then counted as one, and the collapse is counted",
    f"{THP_DOC} thp_collapse_alloc; mm/khugepaged.c madvise_collapse()",
    since="6.1",
)
def a_collapsed_page(live: Live) -> None:
    allow_on_advice(live)
    size = pmd_size(live)
    counted = {"AnonHugePages": size, "thp_collapse_alloc": 1, "thp_fault_alloc": 0}

    def collapse_all(memory: Memory) -> None:
        collapse_memory(live, memory)

    memory = expect_change(live, counted, lambda: _base_pages(live), collapse_all)
    live.expect("AnonHugePages", size, memory.smaps().anon_huge_pages)
    live.expect("Rss", size, memory.smaps().rss)
    memory.expect_filled()


@TRANSPARENT.case(
    "ShmemHugePages is shared memory in huge pages, ShmemPmdMapped what of it is mapped as a whole",
    f"{PROC_DOC} ShmemHugePages, ShmemPmdMapped; {THP_DOC} thp_file_alloc, thp_file_mapped",
)
def shared_huge_pages(live: Live) -> None:
    allow_on_advice(live)
    size = pmd_size(live)
    counted = {"ShmemHugePages": size, "ShmemPmdMapped": size, "Shmem": size, "AnonHugePages": 0}
    events = {"thp_file_alloc": 1, "thp_file_mapped": 1, "thp_fault_alloc": 0}
    with_blocks(live, size, 1)
    touch = partial(_touch, live)
    memory = expect_change(live, counted | events, lambda: _advised(live, 1, shared=True), touch)
    mapping = memory.smaps()
    live.expect("ShmemPmdMapped", size, mapping.shmem_pmd_mapped)
    live.expect("Rss", size, mapping.rss)
    live.expect("AnonHugePages and FilePmdMapped", 0, mapping.anon_huge_pages + mapping.file_pmd_mapped)
    split = {"ShmemHugePages": 0, "ShmemPmdMapped": -size, "thp_split_pmd": 1}
    memory = expect_change(live, split, lambda: _filled(live, 1, shared=True), _unmap_the_second_half)
    live.expect("ShmemPmdMapped of the first half", 0, memory.smaps().shmem_pmd_mapped)
    gone = {"ShmemHugePages": -size, "ShmemPmdMapped": -size, "Shmem": -size}
    expect_change(live, gone, lambda: _filled(live, 1, shared=True), Memory.unmap)


@TRANSPARENT.case(
    "shared memory that MADV_COLLAPSE makes a huge page is then counted as one, and is no more memory than before",
    f"{PROC_DOC} ShmemHugePages, Shmem; mm/khugepaged.c collapse_file()",
    since="6.1",
)
def collapsed_shared_memory(live: Live) -> None:
    allow_on_advice(live)
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "never")
    size = pmd_size(live)

    def collapse_all(memory: Memory) -> None:
        collapse_memory(live, memory)
        memory.touch()

    counted = {"ShmemHugePages": size, "ShmemPmdMapped": size, "Shmem": 0, "FileHugePages": 0, "thp_collapse_alloc": 1}
    memory = expect_change(live, counted, lambda: _filled(live, 1, shared=True), collapse_all)
    live.expect("ShmemPmdMapped", size, memory.smaps().shmem_pmd_mapped)
    live.expect("Rss", size, memory.smaps().rss)
    memory.touch(0, 1)
    memory.expect_filled()


@TRANSPARENT.case(
    "a huge page that NUMA balancing waits for a fault on is in memory: smaps, pagemap and numa_maps show all of it",
    f"{PROC_DOC} Rss, AnonHugePages; fs/proc/task_mmu.c smaps_pmd_entry(), since 8b9c1cc0418a, pagemap_pmd_range()",
    nodes=2,
)
def a_page_that_balancing_waits_for(live: Live) -> None:
    memory, node = waited_for(live, 2)
    mapping = memory.smaps()
    found = (mapping.rss, mapping.anon_huge_pages)
    known = {Quirk.BALANCED_PAGES_MISSED: (0, 0)}
    live.expect("Rss, AnonHugePages", (memory.length, memory.length), found, known)
    base_pages = memory.length // live.base_page
    live.expect("base pages in pagemap", base_pages, len(memory.present_frames(memory.pages)))
    live.expect("base pages of each node in numa_maps", {node: base_pages}, memory.numa_maps().nodes)
    memory.expect_filled()


@TRANSPARENT.case(
    "move_pages() tells the node of a huge page that NUMA balancing waits for a fault on",
    "move_pages(2) status; mm/migrate.c do_pages_stat_array(), since d74943a2f3cd",
    nodes=2,
)
def node_of_a_page_that_balancing_waits_for(live: Live) -> None:
    memory, node = waited_for(live, 1)
    known = {Quirk.BALANCED_PAGES_MISSED: -errno.EFAULT}
    live.expect("status of the page", node, node_of(memory), known)


@TRANSPARENT.case(
    "a huge page that NUMA balancing brings to the processor of its process is counted as marked, once as a huge page"
    " and as all its base pages, as touched from afar, and as moved",
    "Documentation/admin-guide/sysctl/kernel.rst numa_balancing; mm/mprotect.c change_pmd_range();"
    " mm/memory.c numa_migrate_prep(); mm/migrate.c migrate_misplaced_page()",
    since="5.17",  # a huge page that moves counts as its base pages
    nodes=2,
)
def hints_of_balancing(live: Live) -> None:
    expect_hints_counted(live, 4)


def _advised(live: Live, pages: int, *, shared: bool = False) -> Memory:
    return map_aligned(live, pages, pmd_size(live), shared=shared, advice=MADV_HUGEPAGE)


def _filled(live: Live, pages: int, *, shared: bool = False) -> Memory:
    memory = _advised(live, pages, shared=shared)
    fill_in_huge_pages(live, memory)
    return memory


def _touch(live: Live, memory: Memory) -> None:
    memory.touch()
    need_blocks(live, memory)


def _base_pages(live: Live) -> Memory:
    memory = map_aligned(live, 1, pmd_size(live))
    memory.fill()
    memory.expect_huge(0, about="without advice")
    return memory


def _read_first(memory: Memory) -> None:
    memory.read(0)


def _read_and_leave(memory: Memory) -> None:
    memory.read(0)
    memory.actor.end()


def _advised_anew(live: Live) -> Memory:
    """Return advised memory of a process that has to have a huge zero page allocated: the last one was given back."""
    live.host.write("proc/sys/vm/drop_caches", "2")
    return _advised(live, 1)


def _unmap_the_second_half(memory: Memory) -> None:
    memory.actor.call("munmap", memory.address + memory.size // 2, memory.size // 2)


def _base_pages_in_numa_maps(live: Live, memory: Memory) -> dict[str, int]:
    """Return what numa_maps counts, when all its nodes together have as many base pages as it says to be mapped."""
    mapping = memory.numa_maps()
    # which of them reclaim takes for active is its own matter
    counts = {name: pages for name, pages in mapping.counts.items() if name != "active"}
    # the kernel leaves mapped= out where it is one of the others
    mapped = counts.get("mapped", counts.get("anon", counts.get("dirty")))
    live.expect("base pages on nodes", mapped, sum(mapping.nodes.values()))
    return counts


def _resident(live: Live, memory: Memory) -> int:
    """Return RssAnon in whole huge pages: of base pages some count later (Linux before 6.2), and actors have few."""
    found = process_status(live, memory.actor).sizes["RssAnon"]
    return (found + memory.size // 2) // memory.size


class TransparentAccounting(LiveTest):
    def test_transparent(self) -> None:
        self.run_area(TRANSPARENT)
