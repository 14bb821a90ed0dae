"""The huge page of zeroes as /proc tells of it: all of its base pages, and the page tables that stand by for it."""

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import expect_change
from hugepage_qa.cases.control_group import Version, new_group
from hugepage_qa.cases.endless_calls import returned
from hugepage_qa.cases.fragmentation import compact_if_short, expect_no_shortage
from hugepage_qa.cases.frames import TRANSPARENT, ZERO, kpageflags
from hugepage_qa.cases.group_memory import actor_in, need_exact_charges
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import FRAME, WORD, Memory
from hugepage_qa.cases.process_counters import process_status
from hugepage_qa.cases.thp_memory import mapped_huge, pmd_size
from hugepage_qa.cases.thp_policy import advised, huge_zeroes
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.version import KernelVersion

ZERO_PAGE = Area("thp/zero-page", sizes=Sizes.ONCE)

#: enough of them that a few tables of something else are not taken for theirs
_PAGES = 16
#: two of each level above that of the PMD, for the mapping may lie over the border of two
_TABLES_ABOVE = 6
#: before, a write to the huge page of zeroes got a base page (mm/huge_memory.c do_huge_zero_wp_pmd())
_BECOMES_HUGE = KernelVersion(6, 13)


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


@ZERO_PAGE.case(
    "where a control group has no room for a huge page a write to the huge page of zeroes, anywhere in it, gets a base"
    " page, the refusal is counted, and the rest stays zero; with room the next page is huge",
    f"{THP_DOC} use_zero_page, thp_fault_fallback_charge; mm/huge_memory.c do_huge_pmd_wp_page()",
    since="5.8",
)
def written_without_room(live: Live) -> None:
    # half a huge page has room for what the process has besides
    need_exact_charges(live)
    let_rest(live)
    compact_if_short(live, pmd_size(live), 1)
    group = new_group(live, "memory", Version.TWO)
    group.write("memory.max", str(pmd_size(live) // 2))
    becomes_huge = live.kernel_version >= _BECOMES_HUGE
    counted = dict.fromkeys(("thp_fault_fallback", "thp_fault_fallback_charge"), int(becomes_huge))
    for place in (0, pmd_size(live) // 2, pmd_size(live) - live.base_page):

        def write(memory: Memory, place: int = place) -> None:
            def store() -> bool:
                memory.actor.write(memory.address + place, 1)
                return True

            # a fault that neither fails nor maps anything comes again, without end
            if not returned(live, memory.actor, store):
                live.fail("a write to the huge page of zeroes", "it ends", "it does not")
            # a page that is not allocated is not charged either
            expect_no_shortage(live, memory.size, 1)

        with live.about(f"written at byte {place}"):
            memory = expect_change(live, counted, lambda: huge_zeroes(live, 2, actor=actor_in(live, group)), write)
            live.expect("Rss", live.base_page, memory.smaps().rss)
            live.expect("the word that was written", 1, memory.actor.read(memory.address + place))
            live.expect("words that are not zero", 1, memory.nonzero(0, memory.length))
    group.write("memory.max", "max")
    memory.touch(1)
    found = mapped_huge(memory)
    if becomes_huge and not found:
        expect_no_shortage(live, memory.size, 1)
    live.expect("bytes in huge pages with room", memory.size if becomes_huge else 0, found)


class ThpZeroPage(LiveTest):
    def test_zero_page(self) -> None:
        self.run_area(ZERO_PAGE)
