"""Shared memory in swap of which MADV_WILLNEED wants a part: what comes, and what mincore(2) tells of it.

A huge page that was swapped out as a whole has one entry in its file, by which each base page of it is found.
"""

import os

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import ControlGroup, Version, new_group
from hugepage_qa.cases.group_memory import actor_in, leave_memory
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory, runs
from hugepage_qa.cases.pages_in_memory import base_pages_in_memory
from hugepage_qa.cases.swapped import swap_to_a_device
from hugepage_qa.cases.thp_memory import (
    expect_shared,
    let_only_pmd_inherit,
    map_file,
    map_start,
    mount_tmpfs,
    pmd_size,
)
from hugepage_qa.kernel.uapi import MADV_WILLNEED
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.process_table import MAJOR_FAULTS, split_stat

ADVISED = Area("thp/advised-in-swap", sizes=Sizes.ONCE)

_PAGES, _ROOM = 2, 24
#: what is read ahead is there in some milliseconds
_SECONDS = 20.0
_SINCE = "5.4"  # MADV_PAGEOUT; huge pages as a whole since Linux 6.12


@ADVISED.case(
    "mincore(2) tells of a base page of shared memory that MADV_WILLNEED brought from swap, and not of what stayed"
    " there, wherever in a huge page it is that was swapped to a device, as a whole where these can be",
    "mincore(2); madvise(2) MADV_WILLNEED; mm/mincore.c mincore_page(); mm/madvise.c shmem_swapin_range()",
    since=_SINCE,
)
def told_of_one(live: Live) -> None:
    count = pmd_size(live) // live.base_page
    group = _swapping_group(live)
    for huge in ("never", "always"):
        for page in (2 * count - 1, count - 1, count // 2 + 3, 1, 0):
            with live.about(f"huge={huge}, base page {page}"):
                memory = _memory_in_swap(live, group, huge)
                told = _told_when_there(live, memory, range(page, page + 1))
                whole = range(page // count * count, (page // count + 1) * count)
                live.expect("whether mincore(2) tells of what was wanted", True, page in told)
                # Linux 6.1 brings one more: it takes the end of the range for a part of it
                near = {page, page + 1}
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
    group = _swapping_group(live)
    for huge in ("never", "always"):
        for part in (range(count), range(_PAGES * count), range(3, count - 2), range(count // 2, count + 5)):
            with live.about(f"huge={huge}, base pages {part.start} to {part.stop}"):
                memory = _memory_in_swap(live, group, huge)
                told = _told_when_there(live, memory, part)
                before = _major_faults(live, memory)
                live.expect("words that changed", 0, memory.wrong(part.start * base, len(part) * base))
                faults = _major_faults(live, memory) - before
                live.expect(
                    "whether what was wanted has to be read from swap when it is read",
                    False,
                    faults > 0,
                    {Quirk.SWAP_BY_FIRST_PAGE: huge == "always"},
                )
                live.expect("wanted base pages that mincore(2) does not tell of", [], runs({*part} - told))
                memory.expect_filled()
                memory.actor.end()


def _swapping_group(live: Live) -> ControlGroup:
    """Return a group for who fills memory, on a machine that swaps to a device. Raises CannotRun."""
    let_rest(live)
    swap_to_a_device(live, _ROOM * pmd_size(live))
    let_only_pmd_inherit(live)
    return new_group(live, "memory", Version.TWO)


def _memory_in_swap(live: Live, group: ControlGroup, huge: str) -> Memory:
    """Return a file of a tmpfs as it is mapped by a process that is in no group: ``group`` had it swapped out.

    Raises CannotRun.
    """
    path = f"{mount_tmpfs(live, huge)}/file"
    writer, reader = actor_in(live, group), live.actor()
    written = map_start(live, writer, live.open(writer, path, os.O_RDWR | os.O_CREAT), _PAGES)
    expect_shared(live, written, huge == "always", f"huge={huge}")
    # to make a group leave memory has its processes swapped out, too, whose faults would be counted
    memory = map_file(live, reader, live.open(reader, path, os.O_RDWR), _PAGES)

    def there() -> set[int]:
        leave_memory(live, written, group)
        return _in_memory(live, memory)

    if live.host.last_attempt(there, lambda found: not found):
        raise CannotRun("what was swapped out stays in memory")
    writer.end()
    return memory


def _told_when_there(live: Live, memory: Memory, part: range) -> set[int]:
    """Want ``part`` of the base pages, and return which mincore(2) tells are in memory, when they come or time is over.

    It is read ahead, and nobody waits for it.
    """
    base = live.base_page
    memory.actor.call("madvise", memory.address + part.start * base, len(part) * base, MADV_WILLNEED)
    return live.host.last_look(lambda: _in_memory(live, memory), lambda found: found >= {*part}, _SECONDS)


def _in_memory(live: Live, memory: Memory) -> set[int]:
    return base_pages_in_memory(live, memory.actor, memory.address, range(memory.length // live.base_page))


def _major_faults(live: Live, memory: Memory) -> int:
    return int(split_stat(live.host.read(f"proc/{memory.actor.pid}/stat") or "")[MAJOR_FAULTS])


class ThpAdvisedInSwap(LiveTest):
    def test_advised_in_swap(self) -> None:
        self.run_area(ADVISED)
