"""Free memory: what the lists of the buddy allocator hold is what each zone counts as free, whatever became free."""

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

from hugepage_qa.cases.added_up import add_up_counters
from hugepage_qa.cases.broken_memory import hard_offline, mended_at_the_end, need_mending
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.debugfs import expect_split
from hugepage_qa.cases.demotion import demote, smaller_pool
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_memory import allow_on_advice, map_aligned, mapped_huge, need_blocks, pmd_size
from hugepage_qa.kernel.memory_layout import read_free_blocks, read_zones
from hugepage_qa.kernel.uapi import MADV_DONTNEED, MADV_HUGEPAGE
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.plugins.avocado_test import LiveTest

FREE_LISTS = Area("accounting/free-lists")

RULE = "Documentation/filesystems/proc.rst buddyinfo, zoneinfo; mm/page_alloc.c __free_one_page()"

#: base pages of lists that are not counted as free, below 0 the other way round; zones that agree are left out
_Uncounted = dict[str, int]
_LOOKS, _SECONDS, _PAUSE_SECONDS = 5, 20.0, 0.1


@FREE_LISTS.case(
    "pages of a pool that are given back, one after the other and all at once, are on the free lists what they are in"
    " the count of free pages of their zones",
    f"{RULE}; mm/hugetlb.c update_and_free_hugetlb_folio()",
    pages=3,
)
def pages_of_a_pool(live: Live) -> None:
    before = _uncounted(live)
    memory = live.map(2)
    memory.fill()
    live.set_nr(1)
    _expect_counted(live, before, "those in use stay")
    memory.unmap()
    for pages in (1, 3, 0):
        live.set_nr(pages)
        _expect_counted(live, before, f"a pool of {pages}")


@FREE_LISTS.case(
    "so are pages that were demoted, and then given back",
    f"{RULE}; mm/hugetlb.c demote_pool_huge_page()",
    pages=1,
)
def demoted_pages(live: Live) -> None:
    smaller = smaller_pool(live)
    before = _uncounted(live)
    demote(live, 1)
    for pages in (1, 0):
        smaller.set_nr(pages)
        _expect_counted(live, before, f"smaller pages: {pages}")


@FREE_LISTS.case(
    "so is the rest of a page that broke, wherever in it, and what broke when it was mended",
    f"{RULE}; mm/page_alloc.c take_page_off_buddy(), put_page_back_buddy()",
    sizes=Sizes.BUDDY,
    pages=1,
)
def broken_pages(live: Live) -> None:
    need_mending(live)
    last = live.size // live.base_page - 1
    before = _uncounted(live)
    for number in (0, 1, last // 4, last // 2, last // 2 + 1, last // 2 + 2, last):
        with live.about(f"base page {number}"):
            live.reserve(1)
            memory = live.map(1)
            memory.fill()
            (frame,) = memory.frames()
            memory.actor.end()
            with mended_at_the_end(live, frame + number, lambda: live.set_nr(0)):
                hard_offline(live, frame + number)
                _expect_counted(live, before, "it broke")
            _expect_counted(live, before, "it was mended")


@FREE_LISTS.case(
    "so are transparent huge pages, given back whole, and base page by base page",
    f"{RULE}; mm/huge_memory.c __split_huge_page()",
    sizes=Sizes.ONCE,
    since="5.13",  # fa6c02315f74: of a range of addresses alone
)
def transparent_pages(live: Live) -> None:
    allow_on_advice(live)
    size = pmd_size(live)
    before = _uncounted(live)
    memory = map_aligned(live, 4, size, advice=MADV_HUGEPAGE)
    memory.fill()
    need_blocks(live, memory)
    memory.expect_huge()
    expect_split(live, f"{memory.actor.pid},{memory.address:#x},{memory.at(memory.pages):#x}", memory.pages)
    live.expect("bytes mapped by huge pages after the split", 0, mapped_huge(memory))
    parts = Memory(live, memory.actor, memory.address, size // live.base_page, live.base_page)
    for page in range(0, parts.pages, 2):
        parts.advise(MADV_DONTNEED, page, 1)
    _expect_counted(live, before, "half of a split one was given back")
    memory.actor.end()
    _expect_counted(live, before, "all were given back")


def _expect_counted(live: Live, before: _Uncounted, when: str) -> None:
    """Expect the lists to hold what is counted as free, but for what they did ``before``: memory that is isolated.

    Whoever isolated it may have given it back meanwhile, and then nothing is left.
    """
    after = _uncounted(live, before)
    live.expect(f"base pages of free lists beyond those counted as free, {when}", before if after else {}, after)


def _uncounted(live: Live, expected: Mapping[str, int] = MappingProxyType({})) -> _Uncounted:
    """Return what lists hold and zones do not count: nothing or ``expected`` if it is so for a moment, else what stays.

    Looks between which the lists changed say nothing. Raises CannotRun when there are no others.
    """
    seen: list[_Uncounted] = []
    end = live.host.clock() + _SECONDS
    while len(seen) < _LOOKS and live.host.clock() < end:
        lists = _on_lists(live)
        # what a processor has counted for itself
        add_up_counters(live)
        zones = read_zones(ObservedTree(live.host))
        if _on_lists(live) == lists:
            counted = {f"node {zone.node} {zone.name}": zone.free - zone.unaccepted for zone in zones}
            seen.append({zone: pages - counted[zone] for zone, pages in lists.items() if pages != counted[zone]})
            if seen[-1] in ({}, expected):
                return seen[-1]
        live.host.pause(_PAUSE_SECONDS)
    if not seen:
        raise CannotRun("what is free changes all the time")
    # what comes and goes is somebody who isolates memory
    lasting, _often = Counter(tuple(sorted(each.items())) for each in seen).most_common(1)[0]
    return dict(lasting)


def _on_lists(live: Live) -> dict[str, int]:
    """Return how many base pages the free lists of each zone hold."""
    return {
        f"node {blocks.node} {blocks.zone}": sum(count << order for order, count in enumerate(blocks.counts))
        for blocks in read_free_blocks(ObservedTree(live.host))
    }


class FreeLists(LiveTest):
    def test_free_lists(self) -> None:
        self.run_area(FREE_LISTS)
