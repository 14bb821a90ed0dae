"""Memory that is added to a machine busy in huge pages, where the pool uses it, and taken: pages move out of it."""

from hugepage_qa.cases.at_once import at_once
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.memory_blocks import MemoryBlock, expect_total, memory_blocks, take_a_block
from hugepage_qa.cases.thp_policy import huge_pages
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest

ADDED_MEMORY = Area("added-memory", sizes=Sizes.BUDDY)

DOC = "Documentation/admin-guide/mm/memory-hotplug.rst"
#: more than any machine has
_ALL = 1 << 30


@ADDED_MEMORY.case(
    "memory that is added while threads use hugetlb pages and transparent ones is free for the pool, which had no room,"
    " and they lose nothing",
    f"{DOC} Onlining Memory Blocks; mm/memory_hotplug.c online_pages()",
    pages=2,
)
def added_to_a_busy_machine(live: Live) -> None:
    total = read_meminfo(live.host)["MemTotal"]
    block = take_a_block(live)
    room = block.size // live.size // 2
    if not room:
        raise CannotRun(f"a block of memory has {block.size >> 20} MiB, and no room for two pages")
    memory, transparent = live.map(2), huge_pages(live, 2)
    memory.fill()
    with at_once(live, memory.actor) as threads, at_once(live, transparent.actor) as others:
        threads.use(memory)
        others.use(transparent)
        live.set_nr(_ALL)
        full = live.pool().nr
        live.set_nr(full + room)
        live.expect(f"{room} pages are not to be had, {live.pool().nr - full} are", True, live.pool().nr < full + room)
        block.add(live)
        expect_total(live, total)
        live.set_nr(full + room)
        live.expect_pool(nr=full + room, free=full + room - 2)
        live.set_nr(2)
    memory.actor.end()
    live.expect_pool(nr=2, free=2)


@ADDED_MEMORY.case(
    "a page in use moves out of memory that is taken from the machine, with all that it holds, and the pool keeps it",
    f"{DOC} Offlining Memory Blocks; mm/memory_hotplug.c do_migrate_range(), mm/hugetlb.c"
    " dissolve_free_hugetlb_folios()",
    pages=1,
)
def moved_out_of_what_is_taken(live: Live) -> None:
    memory = live.map(1)
    memory.fill()
    block = _taken_block_of(live, memory.frames().pop())
    live.expect("whether a frame of the page is in what was taken", False, block.has(live, memory.frames().pop()))
    memory.expect_filled()
    live.expect_pool(nr=1, free=0)
    block.add(live)
    memory.unmap()
    live.expect_pool(nr=1, free=1)


def _taken_block_of(live: Live, frame: int) -> MemoryBlock:
    """Take the block that ``frame`` lies in. Raises CannotRun where it has pages that cannot be moved."""
    for block in memory_blocks(live):
        if block.has(live, frame) and block.is_taken(live):
            return block
    raise CannotRun("the memory that the page is in has others that cannot be moved")


class AddedMemory(LiveTest):
    """Memory that is added and taken, for every page size that the buddy allocator has.

    :avocado: enable
    """

    def test_added_memory(self) -> None:
        """Every case for every page size."""
        self.run_area(ADDED_MEMORY)
