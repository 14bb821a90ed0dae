"""Transparent huge pages with memory that is said to be broken: the base page goes, the rest stays."""

from hugepage_qa.cases.broken_memory import break_page, expect_broken, out_of_use
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import FRAME
from hugepage_qa.cases.thp_policy import huge_pages
from hugepage_qa.kernel.uapi import MADV_HWPOISON, MADV_SOFT_OFFLINE
from hugepage_qa.plugins.avocado_test import LiveTest

HWPOISON = Area("hwpoison/transparent", sizes=Sizes.ONCE)

SPLIT = "mm/memory-failure.c try_to_split_thp_page()"


@HWPOISON.case(
    "a base page of a huge page that will break is replaced, the huge page is split, and nobody loses a word",
    f"madvise(2) MADV_SOFT_OFFLINE; {SPLIT}",
)
def soft_offline_of_a_part(live: Live) -> None:
    memory = huge_pages(live, 2)
    child = memory.seen_by(memory.actor.fork())
    before, address = out_of_use(live), memory.address + memory.size // 2
    old = memory.pagemap([address])[0]
    break_page(live, memory, memory.size // 2, MADV_SOFT_OFFLINE)
    live.expect("base pages out of use", 1, out_of_use(live) - before)
    for each in (memory, child):
        each.expect_filled()
        live.expect("it still has the frame that will break", False, each.pagemap([address])[0] & FRAME == old & FRAME)
    live.expect("AnonHugePages of the page behind it", memory.size, memory.smaps(1).anon_huge_pages)


@HWPOISON.case(
    "a broken base page of a huge page ends those who touch it, and all other memory holds what it held",
    f"madvise(2) MADV_HWPOISON; {SPLIT}, memory_failure()",
)
def a_broken_part(live: Live) -> None:
    memory = huge_pages(live, 2)
    before, broken = out_of_use(live), memory.size // 2
    break_page(live, memory, broken, MADV_HWPOISON)
    live.expect("base pages out of use", 1, out_of_use(live) - before)
    expect_broken(live, memory, broken)
    behind = broken + live.base_page
    wrong = memory.wrong(0, broken) + memory.wrong(behind, memory.length - behind)
    live.expect("words beside the broken page that changed", 0, wrong)
    live.expect("AnonHugePages of the page behind it", memory.size, memory.smaps(1).anon_huge_pages)


class HwpoisonTransparent(LiveTest):
    """Transparent huge pages with broken memory.

    :avocado: enable
    """

    def test_transparent(self) -> None:
        """Every case, once for the machine."""
        self.run_area(HWPOISON)
