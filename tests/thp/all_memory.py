"""All free memory taken in transparent huge pages, and given back, again and again."""

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import fragmentation
from hugepage_qa.cases.fragments import join_free_pages, take_into_pool
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_of_others import expect_not_others, used_memory
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import advised, set_policy
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.sizes import MIB

ALL_MEMORY = Area("thp/all-memory", sizes=Sizes.ONCE)

#: what is taken: one part of so many of what is available, and no more than that; a pool takes the rest, uncleared
_PARTS, _MOST = 8, 512 * MIB
_ROUNDS, _PROCESSES = 4, 2
#: one part of so many of the blocks may come and go by themselves
_NOISE = 16
_FEWEST_BLOCKS = 32
#: of the pages that are taken are huge: the last blocks may be others' by then
_ENOUGH = 0.75


@ALL_MEMORY.case(
    "who takes all free blocks of memory in huge pages gets them, whole or in parts given back before, again and again,"
    " and when they are given back the blocks are free as before",
    f"{THP_DOC} enabled; mm/huge_memory.c do_huge_pmd_anonymous_page(), deferred_split_folio(); mm/page_alloc.c",
)
def taken_again_and_again(live: Live) -> None:
    let_rest(live)
    set_policy(live, "madvise")
    before = _leave_a_part(live)
    pages = min(before, read_meminfo(live.host).get("MemAvailable", 0) // pmd_size(live)) - _few(before)
    if pages < _FEWEST_BLOCKS:
        raise CannotRun(f"{pages} blocks of {pmd_size(live) >> 20} MiB are free that may be taken")
    used = used_memory(live)
    for number in range(_ROUNDS):
        memories = [advised(live, pages // _PROCESSES) for _process in range(_PROCESSES)]
        for memory in memories:
            # a word of each: the kernel has cleared the rest
            memory.actor.fill(memory.address, memory.length, memory.size, 1)
        taken = sum(memory.length for memory in memories)
        huge = sum(memory.smaps().anon_huge_pages for memory in memories)
        short = int(taken * _ENOUGH) - huge
        expect_not_others(live, short, used + sum(memory.smaps().rss for memory in memories))
        with live.about(f"round {number}"):
            live.expect(f"most of {taken} bytes are in huge pages, {huge}", True, short <= 0)
            for memory in memories:
                _expect_zero_but_for_its_word(live, memory)
                _give_back_parts(live, memory)
                memory.actor.end()
    after = _free_again(live, before - _few(before))
    short = before - _few(before) - after
    expect_not_others(live, short * pmd_size(live), used)
    live.expect(f"of {before} free blocks all but a few are free again, {after}", True, short <= 0)


def _leave_a_part(live: Live) -> int:
    """Leave a part of the memory to be taken; return how many blocks of it are free."""
    join_free_pages(live)
    take_into_pool(live, None, min(read_meminfo(live.host).get("MemAvailable", 0) // _PARTS, _MOST))
    live.make_room()
    return fragmentation(live, pmd_size(live)).blocks


def _free_again(live: Live, enough: int) -> int:
    """Return how many blocks are free once they are ``enough``, or at last.

    The blocks that were left are all that others get their base pages from: a compiler that runs for a second takes
    some of many. What the kernel has lost does not come back.
    """
    found = 0

    def is_so() -> bool:
        nonlocal found
        live.make_room()
        found = fragmentation(live, pmd_size(live)).blocks
        return found >= enough

    live.host.wait_until(is_so)
    return found


def _few(blocks: int) -> int:
    return blocks // _NOISE + 1


def _expect_zero_but_for_its_word(live: Live, memory: Memory) -> None:
    changed = memory.actor.check(memory.address, memory.length, memory.size, 1)
    live.expect("words that changed", 0, changed)
    last = memory.pages - 1
    live.expect("words of the last page that are not zero", 1, memory.actor.nonzero(memory.at(last), memory.size))


def _give_back_parts(live: Live, memory: Memory) -> None:
    """Write all of a page, and give all but one base page of each second one back."""
    memory.actor.fill(memory.address, memory.size, memory.step, 1)
    memory.actor.discard(memory.address + live.base_page, memory.length, 2 * memory.size, memory.size - live.base_page)
    live.expect("words that changed", 0, memory.actor.check(memory.address, memory.length, memory.size, 1))


class ThpAllMemory(LiveTest):
    def test_all_memory(self) -> None:
        self.run_area(ALL_MEMORY)
