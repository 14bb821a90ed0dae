"""Protected memory for which its process gives advice: what the kernel keeps of it stays protected."""

import mmap
import signal
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.lru_batches import drain_lru_batches
from hugepage_qa.cases.mapped_memory import PRESENT, WORD, WRITE_PROTECTED, Memory, runs
from hugepage_qa.cases.swapped import need_swap, parts_out
from hugepage_qa.cases.thp_memory import mapped_huge, pmd_size
from hugepage_qa.cases.thp_policy import base_pages, huge_pages, mapped_in_parts
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault, protected_pages
from hugepage_qa.kernel.proc_tables import SWAPS
from hugepage_qa.kernel.uapi import MADV_COLD, MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest

ADVISED = Area("userfaultfd/advised-protected", sizes=Sizes.ONCE)

DOC = (
    "Documentation/admin-guide/mm/userfaultfd.rst Write Protect Notifications; Documentation/admin-guide/mm/pagemap.rst"
    " bit 57"
)
SINCE = "5.13"  # bit 57 of pagemap
_NEW_VALUE = 1 << 41
_KINDS = huge_pages, mapped_in_parts, base_pages
#: what takes nothing from who gives it
_KEEPING = {
    "MADV_COLD": MADV_COLD,
    "MADV_NOHUGEPAGE": MADV_NOHUGEPAGE,
    "MADV_HUGEPAGE": MADV_HUGEPAGE,
}


@ADVISED.case(
    "memory that is protected stays so where its process advises to age it, to keep it, or to have huge pages for it"
    " or none, all of it or a part, huge pages and base pages: pagemap says so, a write is told, and what it holds is"
    " kept",
    f"{DOC}; madvise(2) MADV_COLD, MADV_WILLNEED; mm/madvise.c madvise_cold_or_pageout_pte_range()",
    since=SINCE,
)
def advised_while_protected(live: Live) -> None:
    let_nobody_else_act(live)
    # what brings back what was taken; without CONFIG_SWAP that is no advice for anonymous memory
    bringing = {} if live.host.read(SWAPS) is None else {"MADV_WILLNEED": mmap.MADV_WILLNEED}
    for make, (name, advice) in product(_KINDS, {**_KEEPING, **bringing}.items()):
        for start, length in _parts(live):
            memory = make(live)
            huge = mapped_huge(memory)
            fault = _protect(memory)
            memory.actor.call("madvise", memory.address + start, length, advice)
            with live.about(f"{make.__name__}, {name} of {length} bytes from {start} on"):
                whole = [range(memory.length // live.base_page)]
                live.expect("runs of protected base pages", whole, runs({*protected_pages(memory)}))
                _expect_writes_told(live, memory, *_ends(start, length))
                # what is aged in part is mapped in parts
                found, least = mapped_huge(memory), huge if length == memory.length else 0
                live.expect(f"whether {found} bytes in huge pages are {least} to {huge}", True, least <= found <= huge)
                memory.expect_filled()
                _expect_written_when_open(memory, fault, start, length)
            memory.actor.end()


@ADVISED.case(
    "memory that is protected and may be freed lazily, all of it or a part, stays protected as long as it is there,"
    " huge pages and base pages: pagemap says so, a write is told, and what is beside it is as it was",
    f"{DOC}; madvise(2) MADV_FREE; mm/madvise.c madvise_free_pte_range(); mm/huge_memory.c madvise_free_huge_pmd()",
    since=SINCE,
)
def freed_while_protected(live: Live) -> None:
    let_nobody_else_act(live)
    for make, (start, length) in product(_KINDS, _parts(live)):
        memory = make(live)
        fault = _protect(memory)
        lazily = live.host.last_look(partial(_free, live, memory, start, length), length.__eq__)
        with live.about(f"{make.__name__}, {length} bytes from {start} on"):
            live.expect("LazyFree", length, lazily)
            gone = _expect_present_protected(live, memory)
            for place in _ends(start, length):
                if place // live.base_page not in gone:
                    live.expect_signal(signal.SIGBUS, memory.actor.write, memory.address + place, _NEW_VALUE)
            live.expect("words beside it that changed", 0, memory.wrong_beside(start, start + length))
            live.expect("LazyFree, as nothing was written", length, _lazily_free(memory) + len(gone) * live.base_page)
            _expect_written_when_open(memory, fault, start, length)
        memory.actor.end()


@ADVISED.case(
    "memory that is protected is so in swap, too, where MADV_PAGEOUT has put all of it or a part, and when it is back:"
    " a write is told, and what it holds is kept",
    f"{DOC}; madvise(2) MADV_PAGEOUT; mm/rmap.c try_to_unmap_one(); mm/memory.c do_swap_page()",
    since=SINCE,
)
def paged_out_while_protected(live: Live) -> None:
    let_nobody_else_act(live)
    need_swap(live, 2 * pmd_size(live))
    for make, (start, length) in product(_KINDS, _parts(live)):
        memory = make(live)
        fault = _protect(memory)
        whole = [range(memory.length // live.base_page)]
        with live.about(f"{make.__name__}, {length} bytes from {start} on"):
            is_out = live.host.last_look(partial(_page_out, live, memory, start, length), bool)
            live.expect("whether it is in swap", True, is_out)
            live.expect("runs of protected base pages", whole, runs({*protected_pages(memory)}))
            _expect_writes_told(live, memory, *_ends(start, length))
            memory.expect_filled()
            live.expect("runs of protected base pages that are back", whole, runs({*protected_pages(memory)}))
            _expect_writes_told(live, memory, *_ends(start, length))
            _expect_written_when_open(memory, fault, start, length)
        memory.actor.end()


def _parts(live: Live) -> tuple[tuple[int, int], ...]:
    """Return start and length of what advice is given for: all of a huge page, its ends, and some of it."""
    base, size = live.base_page, pmd_size(live)
    return (0, size), (0, base), (size - base, base), (base, size // 2)


def _ends(start: int, length: int) -> tuple[int, int]:
    return start, start + length - WORD


def _protect(memory: Memory) -> Userfault:
    fault = Userfault(memory, Mode.WRITE_PROTECTED, Feature.PAGEFAULT_FLAG_WP)
    fault.write_protect(length=memory.length)
    return fault


def _free(live: Live, memory: Memory, start: int, length: int) -> int:
    """Give MADV_FREE, and return how much is marked; where that is not all, it is to be given again (free_lazily())."""
    memory.actor.call("madvise", memory.address + start, length, mmap.MADV_FREE)
    marked = _lazily_free(memory)
    if marked != length:
        drain_lru_batches(live, memory.actor)
    return marked


def _page_out(live: Live, memory: Memory, start: int, length: int) -> bool:
    return parts_out(live, memory, [(start, length)], lambda: _in_swap(memory) >= length)


def _in_swap(memory: Memory) -> int:
    return sum(each.fields["Swap"] for each in memory.mappings())


def _lazily_free(memory: Memory) -> int:
    return sum(each.fields["LazyFree"] for each in memory.mappings())


def _expect_present_protected(live: Live, memory: Memory) -> set[int]:
    """Expect all base pages that are there to be protected, and return which are not there any more.

    Raises CannotRun where most are not.
    """
    entries = [*enumerate(memory.whole_pagemap())]
    there = {page for page, entry in entries if entry & PRESENT}
    if 2 * len(there) < len(entries):
        raise CannotRun("the kernel was short of memory, and has taken most of it")
    open_ones = {page for page in there if not entries[page][1] & WRITE_PROTECTED}
    live.expect("runs of base pages that are there and not protected", [], runs(open_ones))
    return {page for page, _entry in entries} - there


def _expect_writes_told(live: Live, memory: Memory, *places: int) -> None:
    for place in places:
        live.expect_signal(signal.SIGBUS, memory.actor.write, memory.address + place, _NEW_VALUE)


def _expect_written_when_open(memory: Memory, fault: Userfault, start: int, length: int) -> None:
    """Have memory be protected no more, of which a part may be a mapping of its own by now, and write all of it."""
    end = start + length
    for offset, part in (0, start), (start, length), (end, memory.length - end):
        if part:
            fault.write_protect(on=False, offset=offset, length=part)
    memory.fill(_NEW_VALUE)
    memory.expect_filled(_NEW_VALUE)


class AdvisedProtected(LiveTest):
    def test_advised_protected(self) -> None:
        self.run_area(ADVISED)
