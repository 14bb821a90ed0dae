"""Shared memory that a program wants back from swap before it touches it."""

from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.control_group import Version, new_group
from hugepage_qa.cases.group_memory import actor_in, give_what_is_in_swap
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.pages_in_memory import base_pages_in_memory
from hugepage_qa.cases.swapped import need_swap
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MADV_PAGEOUT, MADV_WILLNEED
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest

BROUGHT = Area("thp/brought-from-swap", sizes=Sizes.ONCE)


@BROUGHT.case(
    "MADV_WILLNEED brings each base page of its range of shared memory from swap, the first and the last, too",
    "madvise(2) MADV_WILLNEED; mm/madvise.c madvise_willneed(), shmem_swapin_range()",
    since="5.4",
)
def each_page_of_a_range(live: Live) -> None:
    size = pmd_size(live)
    need_swap(live, 2 * size)
    live.set_knob_if_there(f"{DIRECTORY}/shmem_enabled", "never")
    group = new_group(live, "memory", Version.TWO)
    memory = map_aligned(live, 1, size, shared=True, actor=actor_in(live, group))
    memory.fill()
    every = range(size // live.base_page)

    def in_memory() -> set[int]:
        return base_pages_in_memory(live, memory.actor, memory.address, every)

    def missing(wanted: set[int]) -> set[int]:
        return wanted - in_memory()

    def left() -> set[int]:
        memory.advise(MADV_PAGEOUT)
        give_what_is_in_swap(group)
        return in_memory()

    for first, count in ((0, 1), (3, 5), (every.stop - 2, 2), (1, every.stop // 2)):
        if stays := live.host.last_attempt(left, lambda found: not found):
            if live.host.has_others:
                raise CannotRun("what was swapped out stays in memory")
            live.fail("base pages that stay in memory", set(), stays)
        memory.actor.call("madvise", memory.address + first * live.base_page, count * live.base_page, MADV_WILLNEED)
        wanted = set(range(first, first + count))
        found = live.host.last_look(partial(missing, wanted), lambda found: not found)
        live.expect(f"base pages of {count} from {first} on that are not in memory", set(), found)
    memory.expect_filled()


class ThpBroughtFromSwap(LiveTest):
    def test_brought_from_swap(self) -> None:
        self.run_area(BROUGHT)
