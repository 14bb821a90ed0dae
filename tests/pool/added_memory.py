"""Memory that is added to a machine busy in huge pages: the pool, which had no room, uses it."""

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.memory_blocks import expect_total, read_total, take_a_block
from hugepage_qa.cases.race import at_once
from hugepage_qa.cases.struct_pages import keep_struct_pages_that_nobody_counts
from hugepage_qa.cases.thp_policy import huge_pages
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest

ADDED_MEMORY = Area("pool/added-memory", sizes=Sizes.BUDDY)

DOC = "Documentation/admin-guide/mm/memory-hotplug.rst"
#: more than any machine has
_ALL = 1 << 30


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


class AddedMemory(LiveTest):
    def test_added_memory(self) -> None:
        self.run_area(ADDED_MEMORY)
