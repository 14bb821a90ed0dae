"""What khugepaged makes huge, and the limits that it keeps to."""

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import expect_no_node_short
from hugepage_qa.cases.khugepaged_clock import (
    KHUGEPAGED,
    PATIENT_SCANS,
    allow_absent,
    await_khugepaged,
    await_scans,
    let_rest,
    pages_collapsed,
)
from hugepage_qa.cases.khugepaged_work import beyond_limit, expect_beyond_limit, expect_collapse, put_to_work
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.swapped import need_swap, swap_out, swapped
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.cases.thp_policy import advised, base_pages, leave_dirt, smaller_sizes
from hugepage_qa.kernel.counters import read_vmstat
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

KHUGEPAGED_AREA = Area("thp/khugepaged", sizes=Sizes.ONCE, uncleared=True)

DOC = f"{THP_DOC} Khugepaged controls"


@KHUGEPAGED_AREA.case(
    "khugepaged makes huge pages of advised base pages, not of what was never touched, keeps what they hold, and counts"
    " them",
    DOC,
)
def advised_base_pages(live: Live) -> None:
    put_to_work(live)
    before, allocated = pages_collapsed(live), _counted(live, "thp_collapse_alloc")
    untouched, memory = advised(live), base_pages(live, 2)
    expect_collapse(live, memory, memory.length)
    nobodys = untouched.smaps()
    found = (nobodys.rss, nobodys.anon_huge_pages)
    live.expect("Rss and AnonHugePages of advised memory that nobody touched", (0, 0), found)
    _expect_rise(live, "pages_collapsed", before, pages_collapsed(live))
    _expect_rise(live, "thp_collapse_alloc", allocated, _counted(live, "thp_collapse_alloc"))
    memory.expect_filled()


@KHUGEPAGED_AREA.case(
    "memory that is not advised stays as it is with enabled=madvise",
    f"{THP_DOC} enabled",
)
def memory_without_advice(live: Live) -> None:
    put_to_work(live)
    reference = base_pages(live)
    # of the same process: at one without any advice khugepaged does not look
    memory = map_aligned(live, 1, pmd_size(live), actor=reference.actor)
    memory.fill()
    expect_collapse(live, reference, reference.length)
    await_scans(live)
    memory.expect_huge(0, about="without advice")
    memory.expect_filled()


@KHUGEPAGED_AREA.case(
    "khugepaged makes huge pages of what a child has written in memory that its parent advised before fork()",
    f"{DOC}; fork(2); kernel/fork.c dup_mmap()",
)
def memory_of_a_child(live: Live) -> None:
    put_to_work(live)
    let_rest(live)
    parent = base_pages(live)
    child = parent.fork()
    # what both have limits itself (max_ptes_shared)
    child.fill(7)
    put_to_work(live)
    expect_collapse(live, child, child.length)
    child.expect_filled(7)
    parent.expect_filled()


@KHUGEPAGED_AREA.case(
    "khugepaged makes huge pages of what a process had advised and touched while none were allowed, once it has a huge"
    " page of other memory, by a write or a read, of zeroes or its own, or advises once more",
    f"{DOC}; mm/huge_memory.c do_huge_pmd_anonymous_page(); mm/khugepaged.c khugepaged_enter_vma()",
)
def memory_of_before(live: Live) -> None:
    put_to_work(live)
    let_rest(live)
    for name, use_zero_page, come in _WAYS_TO_THE_LIST:
        live.set_knob(f"{DIRECTORY}/use_zero_page", use_zero_page)
        live.host.write(f"{DIRECTORY}/enabled", "never")
        memory = advised(live)
        memory.fill()
        other = advised(live, actor=memory.actor)
        live.host.write(f"{DIRECTORY}/enabled", "madvise")
        put_to_work(live)
        with live.about(name):
            memory.expect_huge(0, about="before")
            come(memory, other)
            expect_collapse(live, memory, memory.length)
            memory.expect_filled()
        memory.actor.end()


def _write(_memory: Memory, other: Memory) -> None:
    other.touch()


def _read(_memory: Memory, other: Memory) -> None:
    other.expect_zero()


def _advise_again(memory: Memory, _other: Memory) -> None:
    for advice in (MADV_NOHUGEPAGE, MADV_HUGEPAGE):
        memory.advise(advice)


#: what use_zero_page is, and what has khugepaged look at a process
_WAYS_TO_THE_LIST = (
    ("a write", "1", _write),
    ("a read of the huge page of zeroes", "1", _read),
    ("a read of a huge page of its own", "0", _read),
    ("advice", "1", _advise_again),
)


@KHUGEPAGED_AREA.case(
    "max_ptes_none is how many pages may be absent of those that are made a huge page, which are zero then",
    f"{DOC} max_ptes_none",
)
def absent_pages(live: Live) -> None:
    put_to_work(live)
    pages = pmd_size(live) // live.base_page
    for absent in (1, pages // 2, pages - 1):
        for limit, huge in ((absent - 1, False), (absent, True)):
            allow_absent(live, limit)
            leave_dirt(live)
            memory = _with_absent(live, absent, pmd_size(live))
            _expect_limit(live, memory, huge, f"{absent} absent, max_ptes_none {limit}", "none")
            _expect_contents(live, memory, pages - absent, pmd_size(live))


@KHUGEPAGED_AREA.case(
    "khugepaged makes pages of a smaller size where that one is enabled and the PMD size is not, and counts them",
    f"{DOC}; {THP_DOC} collapse_alloc; mm/khugepaged.c mthp_collapse()",
    since="7.2",
)
def pages_of_smaller_sizes(live: Live) -> None:
    put_to_work(live, pmd="never")
    for size, path in smaller_sizes(live):
        live.set_knob(f"{path}/enabled", "madvise")
        before, memory = _made(live, path), base_pages(live)
        _expect_made(live, path, before, memory.length // size, size)
        memory.expect_filled()
        memory.actor.end()
        live.set_knob(f"{path}/enabled", "never")


@KHUGEPAGED_AREA.case(
    "of a smaller size no page may be absent, unless max_ptes_none is its highest value, by which one page is enough",
    f"{DOC} max_ptes_none; mm/khugepaged.c collapse_max_ptes_none()",
    since="7.2",
)
def absent_pages_of_a_smaller_size(live: Live) -> None:
    put_to_work(live, pmd="never")
    size, path = smaller_sizes(live)[-1]
    live.set_knob(f"{path}/enabled", "madvise")
    pages, small = pmd_size(live) // live.base_page, size // live.base_page
    # a value between the lowest and the highest counts as the lowest
    for limit, absent, huge in ((0, 1, False), (pages // 2, 1, False), (pages - 1, small - 1, True)):
        allow_absent(live, limit)
        leave_dirt(live)
        memory = _with_absent(live, absent, size)
        if huge:
            _expect_made_whole(live, memory, size)
        else:
            await_scans(live)
            present = memory.length // small * (small - absent)
            live.expect(f"Rss, {absent} absent of {small}, max_ptes_none {limit}", present, memory.smaps().rss)
        _expect_contents(live, memory, small - absent, size)
        memory.actor.end()


@KHUGEPAGED_AREA.case(
    "max_ptes_shared is how many pages may be shared with other processes of those that are made a huge page",
    f"{DOC} max_ptes_shared",
    since="5.8",
)
def shared_pages(live: Live) -> None:
    put_to_work(live)
    pages = pmd_size(live) // live.base_page
    for shared in (1, pages // 2, pages - 1):
        for limit, huge in ((shared - 1, False), (shared, True)):
            live.set_knob(f"{KHUGEPAGED}/max_ptes_shared", str(limit))
            parent = map_aligned(live, 1, pmd_size(live), advice=MADV_NOHUGEPAGE)
            parent.fill()
            child = parent.fork()
            # what it writes is its own
            child.fill_part(0, (pages - shared) * live.base_page, 7)
            child.advise(MADV_HUGEPAGE)
            _expect_limit(live, child, huge, f"{shared} shared, max_ptes_shared {limit}", "share")
            parent.expect_filled()
            wrong = child.wrong(0, (pages - shared) * live.base_page, 7)
            live.expect("words of the child that changed", 0, wrong)
            parent.actor.end()


@KHUGEPAGED_AREA.case(
    "max_ptes_swap is how many pages may be in swap of those that are made a huge page, which holds what they held,"
    " whether they are its first or its last ones",
    f"{DOC} max_ptes_swap; mm/khugepaged.c __collapse_huge_page_swapin()",
    since="5.4",  # MADV_PAGEOUT
)
def pages_in_swap(live: Live) -> None:
    put_to_work(live)
    need_swap(live, pmd_size(live))
    pages = pmd_size(live) // live.base_page
    # half of the pages have to be in use, or the huge page is not worth what swap costs
    for absent in (1, pages // 8, pages // 4):
        for limit, first, huge in ((absent - 1, 0, False), (absent, 0, True), (absent, pages - absent, True)):
            live.set_knob(f"{KHUGEPAGED}/max_ptes_swap", str(limit))
            memory = map_aligned(live, 1, pmd_size(live), advice=MADV_NOHUGEPAGE)
            memory.fill()
            swap_out(live, memory, absent * live.base_page, first * live.base_page)
            memory.advise(MADV_HUGEPAGE)
            _expect_limit(live, memory, huge, f"{absent} in swap, max_ptes_swap {limit}", "swap")
            live.expect("memory in swap", 0 if huge else absent * live.base_page, swapped(memory))
            memory.expect_filled()
            memory.actor.end()


def _with_absent(live: Live, absent: int, size: int) -> Memory:
    """Map a PMD-sized page that lacks the last ``absent`` base pages of each ``size`` bytes."""
    memory = map_aligned(live, 1, pmd_size(live), advice=MADV_NOHUGEPAGE)
    for address in range(memory.address, memory.address + memory.length, size):
        memory.actor.fill(address, size - absent * live.base_page, WORD, 1)
    memory.advise(MADV_HUGEPAGE)
    return memory


def _made(live: Live, path: str) -> int:
    """Return how many pages khugepaged has made of the size whose directory is ``path``."""
    return read_integer(ObservedTree(live.host), f"{path}/stats/collapse_alloc") or 0


def _expect_made(live: Live, path: str, before: int, wanted: int, size: int) -> None:
    if not await_khugepaged(live, lambda: _made(live, path) - before >= wanted, PATIENT_SCANS):
        expect_no_node_short(live, size, wanted)
    # it may make those of others, too: never fewer than ours
    live.expect(f"pages of {size >> 10} kB", wanted, min(_made(live, path) - before, wanted))


def _expect_made_whole(live: Live, memory: Memory, size: int) -> None:
    """Expect pages of ``size`` bytes, which are there as a whole, in place of base pages of which some are absent."""
    if not await_khugepaged(live, lambda: memory.smaps().rss == memory.length, PATIENT_SCANS):
        expect_no_node_short(live, size, memory.length // size)
    live.expect(f"Rss of pages of {size >> 10} kB", memory.length, memory.smaps().rss)


def _expect_limit(live: Live, memory: Memory, huge: bool, where: str, limit: str) -> None:
    """Expect a huge page, or none; what is beyond the ``limit`` is counted for it (/proc/vmstat, since Linux 5.17)."""
    if huge:
        expect_collapse(live, memory, memory.length)
        return
    before = beyond_limit(live, limit)
    await_scans(live)
    live.expect(f"AnonHugePages, {where}", 0, memory.smaps().anon_huge_pages)
    expect_beyond_limit(live, limit, before, where)


def _counted(live: Live, name: str) -> int:
    return read_vmstat(ObservedTree(live.host)).get(name, 0)


def _expect_rise(live: Live, name: str, before: int, now: int) -> None:
    """Expect a counter to have risen by at least two: others have huge pages, too."""
    live.expect(f"whether {name}, {before} before and {now} now, rose by at least two", True, now - before >= 2)


def _expect_contents(live: Live, memory: Memory, present: int, size: int) -> None:
    """Expect the first ``present`` base pages of each ``size`` bytes as they were written, and the others zero."""
    length = present * live.base_page
    for address in range(memory.address, memory.address + memory.length, size):
        live.expect("words that changed", 0, memory.actor.check(address, length, WORD, 1))
        absent = memory.actor.nonzero(address + length, size - length)
        live.expect("words of unpopulated pages that are not zero", 0, absent)


class Khugepaged(LiveTest):
    def test_khugepaged(self) -> None:
        self.run_area(KHUGEPAGED_AREA)
