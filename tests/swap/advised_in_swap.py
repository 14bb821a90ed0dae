"""Shared memory in swap of which MADV_WILLNEED wants a part: what comes, and what mincore(2) tells of it.

A huge page that was swapped out as a whole has one entry in its file, by which each base page of it is found.
"""

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory, runs
from hugepage_qa.cases.process_counters import faults
from hugepage_qa.cases.shared_in_swap import file_in_swap, file_pages_in_memory, swapping_group
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.kernel.uapi import MADV_WILLNEED
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.version import KernelVersion

ADVISED = Area("swap/advised-in-swap", sizes=Sizes.ONCE)

_PAGES, _ROOM = 2, 24
#: what is read ahead is there in some milliseconds
_SECONDS = 20.0
#: shmem_swapin_range(): before, it took the end of the range for a part of it, and brought one more
_BRINGS_NO_MORE = KernelVersion(6, 5)
_SINCE = "5.4"  # MADV_PAGEOUT; huge pages as a whole since Linux 6.12


@ADVISED.case(
    "mincore(2) tells of a base page of shared memory that MADV_WILLNEED brought from swap, and not of what stayed"
    " there, wherever in a huge page it is that was swapped to a device, as a whole where these can be",
    "mincore(2); madvise(2) MADV_WILLNEED; mm/mincore.c mincore_page(); mm/madvise.c shmem_swapin_range()",
    since=_SINCE,
)
def told_of_one(live: Live) -> None:
    count = pmd_size(live) // live.base_page
    group, _device = swapping_group(live, _ROOM)
    for huge in ("never", "always"):
        for page in (2 * count - 1, count - 1, count // 2 + 3, 1, 0):
            with live.about(f"huge={huge}, base page {page}"):
                memory = file_in_swap(live, group, huge, _PAGES).memory
                told = _told_when_there(live, memory, range(page, page + 1))
                whole = range(page // count * count, (page // count + 1) * count)
                live.expect("whether mincore(2) tells of what was wanted", True, page in told)
                near = {page, page + 1} if live.kernel_version < _BRINGS_NO_MORE else {page}
                known = {Quirk.SWAP_BY_FIRST_PAGE: runs({*whole} - near)}
                live.expect("other base pages that mincore(2) tells are in memory", [], runs(told - near), known)
                memory.actor.end()


@ADVISED.case(
    "MADV_WILLNEED brings each base page of its range of shared memory from swap, in whichever part of huge pages that"
    " were swapped to a device it begins and ends: who reads them then has no major fault",
    "madvise(2) MADV_WILLNEED; mincore(2); mm/madvise.c madvise_willneed(), shmem_swapin_range(); mm/shmem.c"
    " shmem_swapin_folio()",
    since=_SINCE,
)
def range_comes(live: Live) -> None:
    base, count = live.base_page, pmd_size(live) // live.base_page
    group, _device = swapping_group(live, _ROOM)
    for huge in ("never", "always"):
        for part in (range(count), range(_PAGES * count), range(3, count - 2), range(count // 2, count + 5)):
            with live.about(f"huge={huge}, base pages {part.start} to {part.stop}"):
                memory = file_in_swap(live, group, huge, _PAGES).memory
                told = _told_when_there(live, memory, part)
                before = faults(live, memory.actor).major
                live.expect("words that changed", 0, memory.wrong(part.start * base, len(part) * base))
                later = faults(live, memory.actor).major
                live.expect(
                    "whether what was wanted has to be read from swap when it is read",
                    False,
                    later > before,
                    {Quirk.SWAP_BY_FIRST_PAGE: huge == "always"},
                )
                live.expect("wanted base pages that mincore(2) does not tell of", [], runs({*part} - told))
                memory.expect_filled()
                memory.actor.end()


def _told_when_there(live: Live, memory: Memory, part: range) -> set[int]:
    """Want ``part`` of the base pages, and return which mincore(2) tells are in memory, when they come or time is over.

    It is read ahead, and nobody waits for it.
    """
    base = live.base_page
    memory.actor.call("madvise", memory.address + part.start * base, len(part) * base, MADV_WILLNEED)
    return live.host.last_look(lambda: file_pages_in_memory(live, memory), lambda found: found >= {*part}, _SECONDS)


class ThpAdvisedInSwap(LiveTest):
    def test_advised_in_swap(self) -> None:
        self.run_area(ADVISED)
