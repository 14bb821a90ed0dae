"""PMD-sized pages made of pages of a smaller size that are alone, that a child has, too, or that are partly in swap."""

from collections.abc import Iterator
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.folio_layout import folios_of_all, layout_of
from hugepage_qa.cases.fragmentation import expect_no_shortage
from hugepage_qa.cases.khugepaged_clock import KHUGEPAGED, await_scans, let_rest
from hugepage_qa.cases.khugepaged_work import beyond_limit, expect_beyond_limit, expect_collapse, put_to_work
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.madv_collapse import collapse_memory
from hugepage_qa.cases.mapped_memory import Memory, runs
from hugepage_qa.cases.swapped import need_swap, parts_out, swapped
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import advised, leave_dirt, need_sizes, set_policy, smaller_sizes
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

OF_SMALLER = Area("thp/collapse-of-smaller", sizes=Sizes.ONCE, uncleared=True)

DOC = f"{THP_DOC} Khugepaged controls"
COLLAPSE = "madvise(2) MADV_COLLAPSE"
SCAN = "mm/khugepaged.c hpage_collapse_scan_pmd(), collapse_scan_pmd(), __collapse_huge_page_isolate()"
SINCE = "6.10"
_NEW_VALUE = 77


@OF_SMALLER.case(
    "a page of a smaller size that is alone is made one of PMD size, by khugepaged where max_ptes_none allows as many"
    " base pages to be absent as are, and by MADV_COLLAPSE in any case; what was absent is zero",
    f"{DOC} max_ptes_none; {COLLAPSE}; {SCAN}",
    since=SINCE,
)
def alone(live: Live) -> None:
    for size, path in _sizes(live):
        length = pmd_size(live)
        absent = (length - size) // live.base_page
        for (start, by_advice), limit in product(
            ((0, False), (length - size, False), (length // 2 // size * size, True)), (absent - 1, absent)
        ):
            leave_dirt(live)
            memory = _in_pages_of(live, size, path, start, size)
            with live.about(f"{size >> 10} kB at {start}"):
                _expect_made(live, memory, "none", limit, by_advice or limit >= absent, by_advice)
                live.expect("words that changed", 0, memory.wrong(start, size))
                rest = memory.nonzero(0, start) + memory.nonzero(start + size, length - start - size)
                live.expect("words of absent pages that are not zero", 0, rest)
            memory.actor.end()


@OF_SMALLER.case(
    "pages of a smaller size that a child shares with its parent are made one of PMD size for the child, by khugepaged"
    " where max_ptes_shared allows as many base pages to be shared as are, and by MADV_COLLAPSE in any case; each of"
    " the two keeps what it wrote",
    f"{DOC} max_ptes_shared; {COLLAPSE}; fork(2); {SCAN}",
    since=SINCE,
)
def shared_with_a_parent(live: Live) -> None:
    for size, path in _sizes(live):
        pages = pmd_size(live) // size
        for shared, (change, by_advice) in product(sorted({1, pages - 1}), ((-1, False), (0, False), (-1, True))):
            own, limit = (pages - shared) * size, shared * size // live.base_page + change
            parent = _in_pages_of(live, size, path, 0, pmd_size(live))
            child = parent.fork()
            # whole pages of the smaller size: what it writes is its own
            child.fill_part(0, own, _NEW_VALUE)
            with live.about(f"{shared} of {size >> 10} kB shared"):
                _expect_made(live, child, "shared", limit, by_advice or not change, by_advice)
                live.expect("words that the child has written and that changed", 0, child.wrong(0, own, _NEW_VALUE))
                live.expect("words that it has not and that changed", 0, child.wrong(own, child.length - own))
                child.fill(_NEW_VALUE)
                parent.expect_filled()
                child.expect_filled(_NEW_VALUE)
            parent.actor.end()


@OF_SMALLER.case(
    "pages of a smaller size are made one of PMD size with a base page of them in swap, by khugepaged where"
    " max_ptes_swap allows that, and by MADV_COLLAPSE in any case; nothing is in swap then, and all is as it was",
    f"{DOC} max_ptes_swap; {COLLAPSE}; {SCAN}, __collapse_huge_page_swapin()",
    since=SINCE,
)
def partly_in_swap(live: Live) -> None:
    need_swap(live, pmd_size(live))
    for size, path in _sizes(live):
        last = pmd_size(live) - live.base_page
        for start, (limit, by_advice) in product((size + live.base_page, last), ((0, False), (1, False), (0, True))):
            memory = _in_pages_of(live, size, path, 0, pmd_size(live))
            out = partial(parts_out, live, memory, [(start, live.base_page)])
            live.host.wait_until(partial(out, partial(_is_in_swap, memory, live.base_page)))
            live.expect("memory in swap before", live.base_page, swapped(memory))
            huge = by_advice or limit > 0
            with live.about(f"{size >> 10} kB, in swap at {start}"):
                _expect_made(live, memory, "swap", limit, huge, by_advice)
                live.expect("memory in swap", 0 if huge else live.base_page, swapped(memory))
                memory.expect_filled()
            memory.actor.end()


def _sizes(live: Live) -> Iterator[tuple[int, str]]:
    """Yield the smallest and the largest size below that of a PMD, in bytes, and its directory. Raises CannotRun."""
    sizes = need_sizes(smaller_sizes(live))
    yield from sorted({sizes[0], sizes[-1]})


def _in_pages_of(live: Live, size: int, path: str, start: int, length: int) -> Memory:
    """Return memory that has pages of ``size`` in ``length`` bytes from ``start`` on, and is advised against more.

    Raises CannotRun where memory is too fragmented for them.
    """
    set_policy(live, "madvise", pmd="never")
    let_rest(live)
    live.set_knob(f"{path}/enabled", "madvise")
    memory = advised(live)
    memory.fill_part(start, length)
    memory.advise(MADV_NOHUGEPAGE)
    first, pages = start // live.base_page, length // live.base_page
    wanted = {size >> 10: runs(set(range(first, first + pages)))}
    found = layout_of(live, folios_of_all(live, memory, pages))
    if found != wanted:
        expect_no_shortage(live, size, length // size)
    live.expect("base pages in folios of each size in kB before", wanted, found)
    return memory


def _expect_made(live: Live, memory: Memory, name: str, limit: int, huge: bool, by_advice: bool) -> None:
    """Expect ``memory`` to be made huge, or not, by advice or by khugepaged with a limit of ``name``.

    Raises CannotRun where memory is too fragmented for that.
    """
    put_to_work(live)
    if by_advice:
        let_rest(live)
    live.set_knob(f"{KHUGEPAGED}/max_ptes_{name}", str(limit))
    counted = "share" if name == "shared" else name
    before, where = beyond_limit(live, counted), f"max_ptes_{name} {limit}, by advice {by_advice}"
    memory.advise(MADV_HUGEPAGE)
    if by_advice:
        collapse_memory(live, memory)
    elif huge:
        expect_collapse(live, memory, memory.length)
    else:
        await_scans(live)
        expect_beyond_limit(live, counted, before, where)
    memory.expect_huge(1 if huge else 0, about=where)


def _is_in_swap(memory: Memory, length: int) -> bool:
    return swapped(memory) == length


class CollapseOfSmaller(LiveTest):
    def test_collapse_of_smaller(self) -> None:
        self.run_area(OF_SMALLER)
