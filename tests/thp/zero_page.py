"""The huge page of zeroes as /proc tells of it: all of its base pages, and the page tables that stand by for it."""

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.frames import TRANSPARENT, ZERO, kpageflags
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import FRAME, WORD
from hugepage_qa.cases.process_counters import process_status
from hugepage_qa.cases.thp_policy import advised, huge_zeroes
from hugepage_qa.plugins.avocado_test import LiveTest

ZERO_PAGE = Area("thp/zero-page", sizes=Sizes.ONCE)

#: enough of them that a few tables of something else are not taken for theirs
_PAGES = 16
#: two of each level above that of the PMD, for the mapping may lie over the border of two
_TABLES_ABOVE = 6


@ZERO_PAGE.case(
    "each base page of the huge page of zeroes is told as one of zeroes and as transparent, in kpageflags, and lies"
    " behind the one before it",
    "Documentation/admin-guide/mm/pagemap.rst ZERO_PAGE, THP; fs/proc/page.c stable_page_flags()",
)
def each_base_page(live: Live) -> None:
    let_rest(live)
    memory = huge_zeroes(live)
    base = live.base_page
    frames = [entry & FRAME for entry in memory.pagemap(range(memory.address, memory.at(1), base))]
    live.expect("frames", list(range(frames[0], frames[0] + len(frames))), frames)
    wanted = ZERO | TRANSPARENT
    others = [place for place, flags in enumerate(kpageflags(live, memory.actor, frames)) if flags & wanted != wanted]
    live.expect("base pages without both flags", [], others)


@ZERO_PAGE.case(
    "a page table stands by for each huge page of zeroes that a process has mapped, its child as well, is counted in"
    " VmPTE, and goes with the mapping",
    "Documentation/filesystems/proc.rst VmPTE; mm/huge_memory.c set_huge_zero_folio(), copy_huge_pmd(), zap_huge_pmd()",
)
def tables_that_stand_by(live: Live) -> None:
    let_rest(live)
    one = huge_zeroes(live)
    [zeroes] = (entry & FRAME for entry in one.pagemap([one.address]))
    memory = advised(live, _PAGES)
    live.expect("words that are not zero", 0, memory.nonzero(0, memory.length, memory.size))
    frames = {entry & FRAME for entry in memory.pagemap(memory.at(page) for page in range(_PAGES))}
    live.expect("frames of what was read", {zeroes}, frames)
    child = memory.fork()
    for name, each in (("a process", memory), ("its child", child)):
        before = process_status(live, each.actor).page_tables
        each.unmap()
        gone = before - process_status(live, each.actor).page_tables
        # tables above them had nothing but these, and go too
        least = _PAGES * (memory.size // live.base_page * WORD)
        most = least + _TABLES_ABOVE * live.base_page
        with live.about(name):
            live.expect(f"page tables that went, {gone} bytes, are {least} to {most}", True, least <= gone <= most)


class ThpZeroPage(LiveTest):
    def test_zero_page(self) -> None:
        self.run_area(ZERO_PAGE)
