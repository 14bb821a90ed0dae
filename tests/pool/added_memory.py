"""Memory that is added to a machine busy in huge pages, whose pool had no room: its zone, and what is kept free."""

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.memory_blocks import (
    MOVABLE,
    ONLINE,
    ONLINE_KERNEL,
    ONLINE_MOVABLE,
    MemoryBlock,
    blocks_within_zones,
    expect_total,
    read_total,
    take_a_block,
)
from hugepage_qa.cases.race import at_once
from hugepage_qa.cases.struct_pages import keep_struct_pages_that_nobody_counts
from hugepage_qa.cases.thp_memory import MIN_FREE
from hugepage_qa.cases.thp_policy import huge_pages, set_policy
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.plugins.avocado_test import LiveTest

ADDED_MEMORY = Area("pool/added-memory", sizes=Sizes.BUDDY)

DOC = "Documentation/admin-guide/mm/memory-hotplug.rst"
#: more than any machine has
_ALL = 1 << 30
_POLICY = "sys/module/memory_hotplug/parameters/online_policy"
#: less than any memory needs for base pages
_LOW_KIB = 1024


@ADDED_MEMORY.case(
    "memory that is added while threads use hugetlb pages and transparent ones is free for the pool, which had no room,"
    " and they lose nothing",
    f"{DOC} Onlining Memory Blocks; mm/memory_hotplug.c online_pages()",
)
def added_to_a_busy_machine(live: Live) -> None:
    keep_struct_pages_that_nobody_counts(live)
    total = read_total(live)
    block = take_a_block(live)
    room = block.size // live.size // 2
    if not room:
        raise CannotRun(f"a block of memory has {block.size >> 20} MiB, and no room for two pages")
    # no earlier: free pages of a pool that lie in a block go with it (dissolve_free_hugetlb_folios() in mm/hugetlb.c)
    live.reserve(2)
    memory, transparent = live.map(2), huge_pages(live, 2)
    memory.fill()
    with at_once(live, memory.actor) as threads, at_once(live, transparent.actor) as others:
        threads.use(memory)
        others.use(transparent)
        live.set_nr(_ALL)
        full = live.pool().nr
        live.set_nr(full + room)
        more = live.pool().nr - full
        live.expect(f"{room} pages are not to be had before, {more} are", True, more < room)
        block.add(live)
        expect_total(live, total)
        live.set_nr(full + room)
        live.expect_pool(nr=full + room, free=full + room - 2)
        live.set_nr(2)
    memory.actor.end()
    live.expect_pool(nr=2, free=2)


@ADDED_MEMORY.case(
    "a block of memory from within a kernel zone, of each zone and node, comes back to that zone when it is added for"
    " whatever lies there or for the kernel, to Movable for what can be moved alone, and to its zone again after that;"
    " while it is away valid_zones names its zone first",
    f"{DOC} Onlining Memory Blocks, state, valid_zones; mm/memory_hotplug.c zone_for_pfn_range()",
    sizes=Sizes.ONCE,
)
def back_to_its_zone(live: Live) -> None:
    if live.host.read(_POLICY) not in (None, "contig-zones\n"):  # since Linux 5.15
        raise CannotRun("the kernel chooses a zone by how much memory each has: auto-movable")
    judged = [
        zone for zone, blocks in blocks_within_zones(live) if any(_is_judged(live, each, zone) for each in blocks)
    ]
    if not judged:
        raise CannotRun("each block of memory within a zone has pages that cannot be moved")


def _is_judged(live: Live, block: MemoryBlock, zone: str) -> bool:
    """Tell whether ``block`` of ``zone`` could be taken, and if so, judge to which zone it comes back."""
    live.when_actors_have_ended(block.put_back, live)
    for how, to in ((ONLINE_MOVABLE, MOVABLE), (ONLINE_KERNEL, zone), (ONLINE, zone)):
        if not block.is_taken(live):
            break
        with live.about(f"block {block.number} of {zone}, {how}"):
            block.expect_zone(live, zone)
            block.add(live, how)
            block.expect_zone(live, to)
    else:
        return True
    if block.zone(live) == MOVABLE:
        live.when_actors_have_ended(block.make_ordinary, live)
    return False


@ADDED_MEMORY.case(
    "vm.min_free_kbytes, which huge pages that are switched on have raised, is as high when a block of memory was taken"
    " away and is back",
    f"{DOC}; mm/page_alloc.c init_per_zone_wmark_min(); mm/khugepaged.c set_recommended_min_free_kbytes()",
    since="5.16",  # before, what was raised is not lowered when they are switched off
    sizes=Sizes.ONCE,
)
def as_much_kept_free(live: Live) -> None:
    set_policy(live, "never")
    live.set_knob_if_there(f"{DIRECTORY}/shmem_enabled", "never")
    # what somebody has set counts for more than what the kernel computes
    live.host.write(MIN_FREE, str(_LOW_KIB))
    raised = _kept_free(live, "always")
    take_a_block(live).add(live)
    found = _kept_free(live)
    # what memory has now decides: each can be a little more or less than before, by what is kept free of it
    lowered, again = _kept_free(live, "never"), _kept_free(live, "always")
    if again < 2 * lowered:
        raise CannotRun(f"base pages alone need {lowered} KiB free, with huge pages it is {again} KiB")
    nearer = f"{found} KiB, {raised} before, is nearer to {again} with huge pages than to {lowered} without"
    live.expect(nearer, True, 2 * found > again + lowered)


def _kept_free(live: Live, policy: str | None = None) -> int:
    """Return vm.min_free_kbytes, with a ``policy`` when that was set for all huge pages."""
    if policy:
        live.host.write(f"{DIRECTORY}/enabled", policy)
    return read_integer(ObservedTree(live.host), MIN_FREE) or 0


class AddedMemory(LiveTest):
    def test_added_memory(self) -> None:
        self.run_area(ADDED_MEMORY)
