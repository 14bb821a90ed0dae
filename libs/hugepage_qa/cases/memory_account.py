"""What the kernel counts of all memory of a machine, and what is left of it when a case is over.

A machine that is started for a run has nothing but the suite, so that whatever stays mapped, locked, isolated or pinned
behind a case was forgotten by the kernel, and so was memory that is neither free nor counted as anything. A case looks
at what it knows to be in danger; here all of them are held against what no case may leave.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.oracle.compare import Difference
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.known_thp_issues import THP_ISSUES
from hugepage_qa.oracle.rules import Rule

MEMORY_ACCOUNTED = Rule(
    "memory-accounted",
    "when a case is over nothing of it is mapped as a huge page, locked, isolated or pinned any more, and no memory is"
    " missing that is neither free nor counted as anything",
    "Documentation/filesystems/proc.rst meminfo; mm/vmstat.c zoneinfo_show_print(); fs/proc/meminfo.c",
)
_SHARED = "nr_shmem_hugepages"
#: of all processes together: of each node, in base pages
_OF_PROCESSES = frozenset(
    {
        "nr_anon_transparent_hugepages",
        _SHARED,
        "nr_shmem_pmdmapped",
        "nr_file_pmdmapped",
        "nr_isolated_anon",
        "nr_isolated_file",
        "nr_mlock",
        "nr_unevictable",
    }
)
#: of which those that the suite itself has in the machine have some, too
_OF_PROCESSES_AND_OURS = frozenset({"nr_anon_pages", "nr_mapped", "nr_swapcached"})
#: events since 5.2 and 5.8, of which there are as many of the second as of the first when nothing is pinned
_PINNED, _UNPINNED = "nr_foll_pin_acquired", "nr_foll_pin_released"
#: lines of /proc/meminfo, in bytes, that leave no page out but those on the lists of processors, and none twice
_COUNTED = (
    "MemFree",
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
_ALL_MEMORY = ("MemTotal", "HardwareCorrupted")
#: less than a huge page of 2 MiB. Without a bug the account of 700 cases on Linux 7.3 was never out by more than 116
#: pages, and the agent takes 270 when it gets its first program
_OUR_PAGES = 400
_SETTLED_SECONDS = 20.0

_ZONE = re.compile(r"Node (\d+), zone +\w+")
_COUNTER = re.compile(r" +(nr_\w+) +(\d+)")
_ON_A_LIST = re.compile(r" +count: +(\d+)")


@dataclass(frozen=True)
class MemoryAccount:
    """Counters in base pages, by name and node, bytes that are neither free nor counted, and what there is in all."""

    counters: Mapping[str, int]
    unaccounted: int
    all_memory: tuple[int, ...]


def read_account(live: Live) -> MemoryAccount:
    """Return what the kernel counts now. Raises InputError for a file of an unknown form."""
    host = live.host
    # what each processor has counted for itself is added up now
    host.write("proc/sys/vm/stat_refresh", "1")
    meminfo = read_meminfo(ObservedTree(host))
    counters: Counter[str] = Counter()
    is_off_nodes = THP_ISSUES[Quirk.MOVED_SHARED_PAGE_OFF_NODES].applies_to(live.kernel_version)
    if is_off_nodes:  # for good, once a page has moved: what they are on all nodes is right
        counters[_SHARED] = meminfo.get("ShmemHugePages", 0) // host.base_page
    node = pages = 0
    for line in (ObservedTree(host).read("proc/zoneinfo") or "").splitlines():
        if found := _ZONE.match(line):
            node = int(found[1])
        elif found := _ON_A_LIST.fullmatch(line):
            pages += int(found[1])
        elif found := _COUNTER.fullmatch(line):
            name, count = found[1], int(found[2])
            if name == _SHARED and is_off_nodes:
                continue
            if name in _OF_PROCESSES | _OF_PROCESSES_AND_OURS:
                counters[f"{name} of node {node}"] += count
            elif name in (_PINNED, _UNPINNED):
                counters[f"pinned pages of node {node}"] += count if name == _PINNED else -count
            elif name == "nr_zspages":
                pages += count
    counted = sum(meminfo.get(name, 0) for name in _COUNTED) + pages * host.base_page
    everything = tuple(meminfo.get(name, 0) for name in _ALL_MEMORY)
    return MemoryAccount(counters, meminfo["MemTotal"] - counted, everything)


def left_behind(live: Live, before: MemoryAccount) -> list[Difference]:
    """Return what a case has left of all memory that there is.

    What ends late, waits on lists of processors or is kept for the next one, as the huge zero page is, is waited for
    when caches are dropped and memory was compacted, which empties these lists.
    """
    found = _compare(live, before)
    if found:
        live.make_room()
        live.host.wait_until(lambda: not _compare(live, before), _SETTLED_SECONDS)
        found = _compare(live, before)
    return found


def _compare(live: Live, before: MemoryAccount) -> list[Difference]:
    now = read_account(live)
    found = [
        Difference(name, MEMORY_ACCOUNTED, f"{was} as before", str(now.counters[name]))
        for name, was in before.counters.items()
        if abs(now.counters[name] - was) >= (_OUR_PAGES if name.split()[0] in _OF_PROCESSES_AND_OURS else 1)
    ]
    missed = now.unaccounted - before.unaccounted
    if now.all_memory == before.all_memory and missed >= _OUR_PAGES * live.base_page:
        found.append(Difference("memory that nobody has", MEMORY_ACCOUNTED, "0 bytes more", f"{missed} bytes more"))
    return found
