"""What khugepaged makes of base pages where sizes below that of a PMD are enabled, and what it leaves and why."""

import signal
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.folio_layout import Layout, folios_of, folios_of_all, layout_of
from hugepage_qa.cases.fragmentation import expect_no_node_short
from hugepage_qa.cases.khugepaged_clock import (
    PATIENT_SCANS,
    allow_absent,
    await_khugepaged,
    await_scans,
    pages_collapsed,
)
from hugepage_qa.cases.khugepaged_work import put_to_work
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory, runs
from hugepage_qa.cases.size_counters import allow_only, read_size_counters, size_counter
from hugepage_qa.cases.swapped import need_swap, parts_out, swapped
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.cases.thp_policy import base_pages, leave_dirt, need_sizes, smaller_sizes, some_smaller_sizes
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault
from hugepage_qa.kernel.uapi import MADV_DONTNEED, MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

COLLAPSED = Area("thp/collapsed-smaller", sizes=Sizes.ONCE, uncleared=True)

CONTROLS = f"{THP_DOC} Khugepaged controls"
#: whose document tells of smaller sizes
SINCE = "7.3"
#: numbers of base pages in a PMD-sized page
Places = Set[int]


@COLLAPSED.case(
    "of base pages khugepaged makes pages of the largest enabled size that fits, and counts them; of these larger ones"
    " when a larger size is enabled, and none that are smaller",
    f"{CONTROLS}; {THP_DOC} collapse_alloc; mm/khugepaged.c mthp_collapse()",
    since=SINCE,
)
def largest_size_that_fits(live: Live) -> None:
    put_to_work(live, pmd="never")
    sizes = [size for size, _path in need_sizes(some_smaller_sizes(live))]
    before = read_size_counters(live, ("collapse_alloc",))
    # advice while no size is enabled puts nobody on its list
    allow_only(live, sizes[0])
    memory = base_pages(live)
    for size in sizes:
        allow_only(live, size)
        _expect_sizes(live, memory, _wanted(live, [size]))
        _expect_rise(live, "collapse_alloc", size, before, memory.length // size)
    allow_only(live, sizes[0])
    await_scans(live)
    kept = _wanted(live, sizes[-1:])
    live.expect("pages by size, of which smaller ones are enabled", kept, _sizes_of_all(live, memory, kept))
    memory.expect_filled()
    allow_only(live, *sizes)
    other = base_pages(live)
    _expect_sizes(live, other, _wanted(live, sizes))
    other.expect_filled()


@COLLAPSED.case(
    "a page of a smaller size is made of none that another process has, too, which is counted, and of all others beside"
    " them, wherever these are, which pages_collapsed counts; and of all when the other process has ended",
    f"{CONTROLS} max_ptes_shared, pages_collapsed; {THP_DOC} collapse_exceed_shared_pte; mm/khugepaged.c"
    " mthp_collapse()",
    since=SINCE,
)
def beside_shared_pages(live: Live) -> None:
    put_to_work(live, pmd="never")
    for sizes in _choices(live):
        for shared in _places_that_are_found(live, sizes):
            allow_only(live, *sizes)
            memory, child = _shared(live, shared)
            name = "collapse_exceed_shared_pte"
            before, collapsed = read_size_counters(live, (name,)), pages_collapsed(live)
            memory.advise(MADV_HUGEPAGE)
            with live.about(f"shared {runs(shared)}"):
                _expect_sizes(live, memory, _wanted(live, sizes, left=shared))
                _expect_rise(live, name, min(sizes), before)
                _expect_collapse_counted(live, collapsed)
                memory.expect_filled()
                wrong = [place for place in shared if _wrong(live, child, place)]
                live.expect("base pages of the other process that changed", [], wrong)
                child.actor.end()
                _expect_sizes(live, memory, _wanted(live, sizes))
                memory.expect_filled()
            memory.actor.end()


@COLLAPSED.case(
    "of base pages before one that another process has, too, in the same page of a larger enabled size, a page of a"
    " smaller one is made",
    f"{CONTROLS}; mm/khugepaged.c mthp_collapse(), release_pte_pages()",
    since=SINCE,
)
def before_a_shared_page(live: Live) -> None:
    put_to_work(live, pmd="never")
    sizes = [size for size, _path in need_sizes(smaller_sizes(live))[-2:]]
    if len(sizes) < 2:
        raise CannotRun("one size below that of a PMD alone")
    allow_only(live, *sizes)
    smaller, larger = (size // live.base_page for size in sizes)
    shared = {pmd_size(live) // live.base_page - larger + smaller + 1}
    memory, _child = _shared(live, shared)
    memory.advise(MADV_HUGEPAGE)
    larger_alone = _wanted(live, sizes[-1:], left=shared)
    known = {Quirk.SMALLER_COLLAPSE_MEETS_OWN_REFERENCES: larger_alone}
    _expect_sizes(live, memory, _wanted(live, sizes, left=shared), known)
    memory.expect_filled()


@COLLAPSED.case(
    "a page of a smaller size is made of none that are in swap, which stay there and are counted, and of all others"
    " beside them, wherever these are, which pages_collapsed counts",
    f"{CONTROLS} max_ptes_swap, pages_collapsed; {THP_DOC} collapse_exceed_swap_pte; mm/khugepaged.c"
    " __collapse_huge_page_swapin()",
    since=SINCE,
)
def beside_pages_in_swap(live: Live) -> None:
    put_to_work(live, pmd="never")
    need_swap(live, pmd_size(live))
    for sizes in _choices(live):
        for out in _places(live, sizes):
            allow_only(live, *sizes)
            memory = map_aligned(live, 1, pmd_size(live), advice=MADV_NOHUGEPAGE)
            memory.fill()
            _swap_out(live, memory, out)
            name = "collapse_exceed_swap_pte"
            before, collapsed = read_size_counters(live, (name,)), pages_collapsed(live)
            memory.advise(MADV_HUGEPAGE)
            with live.about(f"in swap {runs(out)}"):
                _expect_sizes(live, memory, _wanted(live, sizes, absent=out, left=out))
                _expect_rise(live, name, min(sizes), before)
                _expect_collapse_counted(live, collapsed)
                live.expect("memory in swap", len(out) * live.base_page, swapped(memory))
                memory.expect_filled()
            memory.actor.end()


@COLLAPSED.case(
    "where base pages are absent, khugepaged makes pages of the largest enabled size that fits beside them, or, with"
    " the highest max_ptes_none, of the largest one that has any page, of which the others are zero then;"
    " pages_collapsed counts either",
    f"{CONTROLS} max_ptes_none, pages_collapsed; mm/khugepaged.c collapse_max_ptes_none(), mthp_collapse()",
    since=SINCE,
)
def beside_absent_pages(live: Live) -> None:
    put_to_work(live, pmd="never")
    every = pmd_size(live) // live.base_page
    for sizes in _choices(live):
        for absent in (*_places(live, sizes), set(range(1, every // 2)) | {every - 1}):
            # a value between the lowest and the highest counts as the lowest
            for limit in (0, every // 2, every - 1):
                allow_only(live, *sizes)
                allow_absent(live, limit)
                leave_dirt(live)
                memory = _with_absent(live, absent)
                collapsed = pages_collapsed(live)
                memory.advise(MADV_HUGEPAGE)
                with live.about(f"absent {runs(absent)}, max_ptes_none {limit}"):
                    filled = limit == every - 1
                    _expect_sizes(live, memory, _wanted(live, sizes, absent=absent, filled=filled))
                    _expect_collapse_counted(live, collapsed)
                    _expect_contents(live, memory, absent)
                memory.actor.end()


@COLLAPSED.case(
    "where a userfaultfd watches memory for missing pages, for writes or for both, khugepaged fills no page that is"
    " absent, whatever max_ptes_none is, and makes pages of smaller sizes beside them; beside the watched memory, and"
    " where it is watched no more, it fills them",
    f"{CONTROLS} max_ptes_none; Documentation/admin-guide/mm/userfaultfd.rst UFFDIO_REGISTER_MODE_MISSING;"
    " mm/khugepaged.c collapse_max_ptes_none()",
    since=SINCE,
)
def watched(live: Live) -> None:
    put_to_work(live, pmd="never")
    for sizes in _choices(live):
        absent = set[int]().union(*_places_that_are_found(live, sizes))
        filled = _wanted(live, sizes, absent=absent, filled=True)
        for mode in (Mode.MISSING, Mode.WRITE_PROTECTED, Mode.MISSING | Mode.WRITE_PROTECTED):
            allow_only(live, *sizes)
            leave_dirt(live)
            memory, beside = _with_absent(live, absent), _with_absent(live, absent)
            fault = Userfault(memory, mode, Feature.PAGEFAULT_FLAG_WP)
            for each in (beside, memory):
                each.advise(MADV_HUGEPAGE)
            with live.about(f"absent {runs(absent)}, watched for {mode!r}"):
                _expect_sizes(live, memory, _wanted(live, sizes, absent=absent))
                _expect_sizes(live, beside, filled)
                for place in absent if Mode.MISSING in mode else ():
                    access = partial(memory.actor.read, memory.address + place * live.base_page)
                    live.expect_signal(signal.SIGBUS, access)
                fault.unregister()
                _expect_sizes(live, memory, filled)
                for each in (memory, beside):
                    _expect_contents(live, each, absent)
            for each in (memory, beside):
                each.actor.end()


def _choices(live: Live) -> Iterator[list[int]]:
    """Yield sizes in bytes that are enabled together: one alone, and all below that of a PMD. Raises CannotRun."""
    some = [size for size, _path in need_sizes(some_smaller_sizes(live))]
    yield [some[len(some) // 2]]
    if len(some) > 1:
        yield [size for size, _path in smaller_sizes(live)]


def _places(live: Live, sizes: Sequence[int]) -> tuple[set[int], ...]:
    """Return sets of base pages of a PMD-sized page: at its start, its end, and in both halves of it.

    They lie at both ends, and in the midst, of pages of the smallest of ``sizes``.
    """
    every, block = pmd_size(live) // live.base_page, min(sizes) // live.base_page
    quarter = every // 4
    return {0}, {every - 1}, {block - 1, quarter + block // 2, 3 * quarter}


def _places_that_are_found(live: Live, sizes: Sequence[int]) -> tuple[set[int], ...]:
    """Return such sets of what khugepaged finds only when it has taken the base pages before it from the LRU.

    Of these it leaves some to no smaller size (smaller-collapse-meets-own-references), which are not the same on each
    kernel. So of several sizes each begins with such a base page.
    """
    if len(sizes) == 1:
        return _places(live, sizes)
    largest = max(sizes) // live.base_page
    last = pmd_size(live) // live.base_page - largest
    return {0}, {last}, {0, last}


def _shared(live: Live, shared: Places) -> tuple[Memory, Memory]:
    """Return base pages, and those ``shared`` ones of them that a child has, too: the others it has given back."""
    memory = map_aligned(live, 1, pmd_size(live), advice=MADV_NOHUGEPAGE)
    memory.fill()
    child = memory.fork()
    for own in runs(set(range(memory.length // live.base_page)) - shared):
        start = child.address + own.start * live.base_page
        child.actor.call("madvise", start, len(own) * live.base_page, MADV_DONTNEED)
    return memory, child


def _with_absent(live: Live, absent: Places) -> Memory:
    """Return base pages of which those that are ``absent`` were never touched."""
    memory = map_aligned(live, 1, pmd_size(live), advice=MADV_NOHUGEPAGE)
    for there in runs(set(range(memory.length // live.base_page)) - absent):
        start = there.start * live.base_page
        memory.fill_part(start, len(there) * live.base_page)
    return memory


def _swap_out(live: Live, memory: Memory, places: Places) -> None:
    length = len(places) * live.base_page
    parts = [(place * live.base_page, live.base_page) for place in sorted(places)]
    live.host.wait_until(partial(parts_out, live, memory, parts, lambda: swapped(memory) == length))
    live.expect("memory in swap before", length, swapped(memory))


def _wanted(
    live: Live, sizes: Sequence[int], *, absent: Places = frozenset(), left: Places = frozenset(), filled: bool = False
) -> Layout:
    """Return what has to become of a PMD-sized page of base pages but for those that are ``absent``.

    Of such that are ``left`` nothing is made, and of what has absent ones only where these are ``filled``.
    """
    rest = set(range(pmd_size(live) // live.base_page))
    found = dict[int, set[int]]()
    for size in sorted(sizes, reverse=True):
        step = size // live.base_page
        for start in range(0, pmd_size(live) // live.base_page, step):
            block = set(range(start, start + step))
            missing = block & absent
            if block <= rest and not block & left and (not missing or (filled and missing != block)):
                rest -= block
                found.setdefault(size, set()).update(block)
    found[live.base_page] = rest - absent
    return {size >> 10: runs(places) for size, places in sorted(found.items()) if places}


def _sizes(live: Live, memory: Memory) -> Layout:
    """Return of which sizes the folios of ``memory`` are, as far as they are mapped, and where. Raises CannotRun."""
    return layout_of(live, folios_of(live, memory))


def _sizes_of_all(live: Live, memory: Memory, wanted: Layout) -> Layout:
    """Return what ``_sizes`` does, when as many base pages are mapped as are in what is ``wanted``: none is moved."""
    pages = sum(len(places) for found in wanted.values() for places in found)
    return layout_of(live, folios_of_all(live, memory, pages))


def _expect_sizes(live: Live, memory: Memory, wanted: Layout, known: Mapping[Quirk, Layout] | None = None) -> None:
    """Expect khugepaged to make of ``memory`` what is ``wanted``, or ``known``, and nothing more of it after that.

    Raises CannotRun where memory is too fragmented for that.
    """
    if not await_khugepaged(live, lambda: _sizes(live, memory) == wanted, PATIENT_SCANS):
        size = max(wanted) << 10
        expect_no_node_short(live, size, memory.length // size)
    await_scans(live)
    found = _sizes_of_all(live, memory, wanted)
    live.expect("base pages that are in pages of each size in kB", wanted, found, known)


def _expect_rise(live: Live, name: str, size: int, before: dict[str, int], least: int = 1) -> None:
    """Expect a counter of ``size`` to have risen: others have such pages, too, so that it may rise by more."""
    counter = size_counter(size, name)
    rose = read_size_counters(live, (name,)).get(counter, 0) - before.get(counter, 0)
    live.expect(f"{counter} rose by {least} at least", least, min(rose, least))


def _expect_collapse_counted(live: Live, before: int) -> None:
    """Expect khugepaged to have counted that it made something of a PMD-sized range, of all of it or of parts."""
    rose = pages_collapsed(live) - before
    live.expect("pages_collapsed rose by 1 at least", 1, min(rose, 1))


def _expect_contents(live: Live, memory: Memory, absent: Places) -> None:
    """Expect base pages as ``fill`` left them, and those that were ``absent`` zero."""
    base = live.base_page
    for there in runs(set(range(memory.length // base)) - absent):
        live.expect("words that changed", 0, memory.wrong(there.start * base, len(there) * base))
    for each in runs(absent):
        dirty = memory.nonzero(each.start * base, len(each) * base)
        live.expect("words of pages that were absent and are not zero", 0, dirty)


def _wrong(live: Live, memory: Memory, place: int) -> int:
    return memory.wrong(place * live.base_page, live.base_page)


class CollapsedSmaller(LiveTest):
    def test_collapsed_smaller(self) -> None:
        self.run_area(COLLAPSED)
