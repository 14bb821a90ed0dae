"""Memory that nobody uses, which khugepaged makes no huge pages of."""

import mmap

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import read_counters
from hugepage_qa.cases.clear_refs import CLEAR_REFS_ALL, clear_refs, keeps_use_when_split, uses_what_is_protected
from hugepage_qa.cases.khugepaged_clock import KHUGEPAGED, await_scans
from hugepage_qa.cases.khugepaged_work import expect_collapse, put_to_work
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.swapped import need_swap, parts_out, swapped
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import advised, base_pages
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest

UNUSED = Area("thp/unused-pages", sizes=Sizes.ONCE)

SOURCE = "mm/khugepaged.c hpage_collapse_scan_pmd(), SCAN_LACK_REFERENCED_PAGE"
#: before, what compaction moves is used (2e3468778dbe)
SINCE = "6.1"


@UNUSED.case(
    "khugepaged leaves advised memory in base pages that nobody has used since clear_refs was written, and makes it"
    " huge when one base page was read or written, the first or the last",
    f"Documentation/filesystems/proc.rst clear_refs; {SOURCE}",
    since=SINCE,
)
def used_again(live: Live) -> None:
    _need_kept_use(live)
    put_to_work(live)
    last = pmd_size(live) - live.base_page
    for place, is_read in ((0, True), (last, True), (last // 2, False)):
        memory = _unused(live)
        _expect_left_alone(live, memory, "nobody uses it")
        address = memory.address + place
        if is_read:
            live.expect("what is read", 1 + place, memory.actor.read(address))
        else:
            memory.actor.write(address, 1 + place)
        with live.about(f"the base page at {place} is used"):
            expect_collapse(live, memory, memory.length)
            memory.expect_filled()
        memory.actor.end()


@UNUSED.case(
    "khugepaged brings nothing back from swap for memory of which less than half of a huge page is used, and makes it"
    " huge when half is",
    f"Documentation/admin-guide/mm/transhuge.rst max_ptes_swap; {SOURCE}",
    since=SINCE,
)
def half_of_it_used(live: Live) -> None:
    _need_kept_use(live)
    put_to_work(live)
    base = live.base_page
    need_swap(live, 2 * base)
    live.set_knob(f"{KHUGEPAGED}/max_ptes_swap", "2")
    scanned = _scanned(live)
    memory = _unused(live, in_swap=1)
    _expect_swapped(live, memory, base, scanned)
    half = memory.size // 2
    # of the second base page on, for the first one is in swap
    for used in (base, half - base):
        live.expect("words that changed", 0, memory.wrong(base, used))
        _expect_left_alone(live, memory, f"{used} bytes are used")
        _expect_swapped(live, memory, base, scanned)
    live.expect("words that changed", 0, memory.wrong(half, base))
    expect_collapse(live, memory, memory.length)
    live.expect("memory in swap when it is huge", 0, swapped(memory))
    memory.expect_filled()


def _need_kept_use(live: Live) -> None:
    """Raise CannotRun where compaction makes unused what it moves, which may be what was used, or mprotect(2) used."""
    if uses_what_is_protected(live):
        raise CannotRun("mprotect(2) marks pages as used on powerpc: pte_modify()")
    if not keeps_use_when_split(live):
        raise CannotRun("pages that compaction moves are not used then, whatever they were")


def _unused(live: Live, in_swap: int = 0) -> Memory:
    """Return advised memory that was filled with base pages, of which the first are in swap, and not used since."""
    memory = advised(live, 1, MADV_NOHUGEPAGE)
    memory.fill()
    if in_swap:
        length = in_swap * live.base_page
        live.host.wait_until(lambda: parts_out(live, memory, [(0, length)], lambda: swapped(memory) == length))
    clear_refs(live, memory, CLEAR_REFS_ALL)
    # a processor that still knows an entry of the page table marks nothing as used in it, and nobody has it forget it
    for prot in (mmap.PROT_READ, READ_WRITE):
        memory.actor.call("mprotect", memory.address, memory.length, prot)
    memory.advise(MADV_HUGEPAGE)
    return memory


def _scanned(live: Live) -> int:
    """Return how many base pages were looked at because somebody needed memory, which MADV_PAGEOUT does not count."""
    return read_counters(live)["pgscan_anon"]


def _expect_swapped(live: Live, memory: Memory, length: int, scanned: int) -> None:
    """Expect ``length`` bytes to be in swap.

    Raises CannotRun where more are, and more than ``scanned`` was looked at since: somebody needs so much memory.
    """
    found = swapped(memory)
    if found > length and _scanned(live) > scanned:
        raise CannotRun(f"{found - length} bytes more are in swap than were put there: others need memory")
    live.expect("memory in swap", length, found)


def _expect_left_alone(live: Live, memory: Memory, what: str) -> None:
    # khugepaged has had its chance when what came later is huge
    reference = base_pages(live)
    expect_collapse(live, reference, reference.length)
    await_scans(live)
    live.expect(f"AnonHugePages, {what}", 0, memory.smaps().anon_huge_pages)
    reference.actor.end()


class ThpUnusedPages(LiveTest):
    def test_unused_pages(self) -> None:
        self.run_area(UNUSED)
