"""Memory that is added to a machine busy in huge pages, where the pool uses it, and taken: pages move out of it."""

from hugepage_qa.cases.at_once import at_once
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.memory_blocks import MemoryBlock, expect_total, take_a_block
from hugepage_qa.cases.memory_policy import bind
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
    memory, transparent = live.map(2), huge_pages(live, 2)
    memory.fill()
    with at_once(live, memory.actor) as threads, at_once(live, transparent.actor) as others:
        threads.use(memory)
        others.use(transparent)
        _block, pages = _with_pages_in_a_block(live)
        live.expect_pool(nr=pages, free=pages - 2)
        live.set_nr(2)
    memory.actor.end()
    live.expect_pool(nr=2, free=2)


@ADDED_MEMORY.case(
    "a page in use moves out of memory that is taken from the machine, with all that it holds, and the pool keeps it",
    f"{DOC} Offlining Memory Blocks; mm/memory_hotplug.c do_migrate_range(), mm/hugetlb.c"
    " dissolve_free_hugetlb_folios()",
)
def moved_out_of_what_is_taken(live: Live) -> None:
    block, _pages = _with_pages_in_a_block(live)
    # the pool gives what it got last
    memory = live.map(1)
    if live.has_several_nodes:
        # the last blocks are tried first
        bind(memory, live.nodes[-1:])
    memory.fill()
    live.set_nr(1)
    if not (block.has(live, memory.frames().pop()) and block.is_taken(live)):
        raise CannotRun("the block has pages of others, which cannot be moved, or no page of the pool")
    live.expect("whether a frame of the page is in what was taken", False, block.has(live, memory.frames().pop()))
    memory.expect_filled()
    live.expect_pool(nr=1, free=0)
    block.add(live)
    memory.unmap()
    live.expect_pool(nr=1, free=1)


def _with_pages_in_a_block(live: Live) -> tuple[MemoryBlock, int]:
    """Take a block from the machine, have the pool take the rest, and add the block, which the pool has pages of then.

    Returned is how many pages it has, too. Expected is that half of the block was not to be had before. Raises
    CannotRun where none can be taken.
    """
    total = read_meminfo(live.host)["MemTotal"]
    block = take_a_block(live)
    room = block.size // live.size // 2
    if not room:
        raise CannotRun(f"a block of memory has {block.size >> 20} MiB, and no room for two pages")
    live.set_nr(_ALL)
    full = live.pool().nr
    live.set_nr(full + room)
    more = live.pool().nr - full
    live.expect(f"{room} pages are not to be had before, {more} are", True, more < room)
    block.add(live)
    expect_total(live, total)
    live.set_nr(full + room)
    return block, full + room


class AddedMemory(LiveTest):
    """Memory that is added and taken, for every page size that the buddy allocator has.

    :avocado: enable
    """

    def test_added_memory(self) -> None:
        """Every case for every page size."""
        self.run_area(ADDED_MEMORY)
