"""New memory that many touch at the same moment, huge page by huge page: who comes second keeps nothing it took."""

import errno
import mmap
import os
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import expect_no_shortage
from hugepage_qa.cases.kept_memory import expect_nothing_kept
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.race import RACERS, at_once, clash_in_one_page
from hugepage_qa.cases.thp_memory import map_aligned, mapped_huge, pmd_size
from hugepage_qa.cases.thp_policy import advised, expect_huge_zeroes, give_on_advice, set_policy
from hugepage_qa.kernel.counters import read_vmstat
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MADV_COLLAPSE, MADV_HUGEPAGE, MADV_POPULATE_READ, MADV_POPULATE_WRITE
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor_threads import Action, Came

TOUCHED = Area("thp/touched-first", sizes=Sizes.ONCE)

ZEROES = (
    "Documentation/admin-guide/mm/transhuge.rst thp_zero_page_alloc; mm/huge_memory.c get_huge_zero_folio(),"
    " mm_get_huge_zero_folio(), do_huge_pmd_anonymous_page()"
)
PRIVATE = "mm/huge_memory.c __do_huge_pmd_anonymous_page(), do_huge_zero_wp_pmd()"
SHARED = "mm/shmem.c shmem_alloc_and_add_folio(); mm/memory.c finish_fault(), do_set_pmd()"
CALLS = "madvise(2) MADV_POPULATE_READ, MADV_POPULATE_WRITE, MADV_COLLAPSE; mm/khugepaged.c collapse_huge_page()"

#: as many as a throwaway machine has processors, of two threads each
_PROCESSES = 2
#: dozens of rounds on a machine that has nothing else to do
_SECONDS = 1.5
_VALUE = 5
_COUNTER = "thp_zero_page_alloc"
#: others have a hold of a page for a moment, or it is given back meanwhile
_NOT_COLLAPSED = (errno.EAGAIN, errno.EBUSY, errno.EINVAL, errno.ENOMEM)


@TOUCHED.case(
    "processes of two threads that read new memory at the same moment find zeroes, and have one huge page of zeroes for"
    " all: who comes second gives back the one that it took, and when nobody has it any more, it is given back, and"
    " taken anew by those that read next",
    ZEROES,
)
def zeroes_for_all(live: Live) -> None:
    _need_zeroes_given_back(live)
    memory = advised(live)
    shrinkers = live.open(memory.actor, "/proc/sys/vm/drop_caches", os.O_WRONLY)

    def read_at_once() -> None:
        taken = _count(live, _COUNTER)
        rounds, came = memory.actor.touch_first(_PROCESSES, _SECONDS, memory.address, fd=shrinkers)
        live.expect("what came of reading", Came.DONE, came)
        # shrinkers may be busy for a moment
        is_taken = _count(live, _COUNTER) - taken > rounds // 2
        if not is_taken:
            _expect_taken_by_nobody(live)
            expect_no_shortage(live, memory.size, 1)
        live.expect(f"{_COUNTER} rose in most rounds", True, is_taken)

    expect_nothing_kept(live, read_at_once)


@TOUCHED.case(
    "processes of two threads that read, or write, new memory that they share at the same moment have one huge page for"
    " all, with what each wrote: who comes second gives back the one that it took",
    SHARED,
)
def shared_by_all(live: Live) -> None:
    let_rest(live)
    give_on_advice(live)
    for value in (0, _VALUE):
        with live.about("writes" if value else "reads"):
            expect_nothing_kept(live, partial(_share_by_all, live, value))


def _share_by_all(live: Live, value: int) -> None:
    memory = map_aligned(live, 1, pmd_size(live), shared=True, advice=MADV_HUGEPAGE)
    words = {"value": value, "removed": memory.length}
    _rounds, came = memory.actor.touch_first(_PROCESSES, _SECONDS, memory.address, **words)
    live.expect("what came of each touch", Came.DONE, came)
    live.expect("what is there afterwards", value, memory.read())
    mapped = mapped_huge(memory)
    if not mapped:
        expect_no_shortage(live, memory.size, 1)
    live.expect("bytes mapped by huge pages", memory.length, mapped)
    memory.actor.end()


@TOUCHED.case(
    "threads that touch what is to be one huge page at the same moment, or read it first, find zeroes and then what all"
    " of them wrote: who comes second gives back the page and the page table that it took",
    f"{PRIVATE}; {SHARED}",
)
def by_threads(live: Live) -> None:
    let_rest(live)
    give_on_advice(live)
    set_policy(live, "always")
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "always")
    live.set_knob(f"{DIRECTORY}/use_zero_page", "1")
    for shared, counter in ((False, "thp_fault_alloc"), (True, "thp_file_alloc")):
        before = _count(live, counter)
        with live.about("shared" if shared else "private"):
            expect_nothing_kept(live, partial(_clash_in_each_way, live, shared=shared))
        is_taken = _count(live, counter) > before
        if not is_taken:
            expect_no_shortage(live, pmd_size(live), 1)
        live.expect(f"{counter} rose", True, is_taken)


def _clash_in_each_way(live: Live, *, shared: bool) -> None:
    """Have threads touch what is to be one huge page, or read it first: all of them, or one half each.

    All together, there are rounds enough to see that a page table is left of each.
    """
    for actions in ((Action.TOUCH,), (Action.READ_FIRST,), (Action.TOUCH, Action.READ_FIRST)):
        with live.about(" and ".join(action.name for action in actions)):
            clash_in_one_page(live, pmd_size(live), *actions * (RACERS // len(actions)), shared=shared)


@TOUCHED.case(
    "threads that have the same memory populated, to be read or written, or put together in huge pages, at the same"
    " moment, while it is given back again and again, leave none of the pages that one of them took in vain",
    CALLS,
    since="6.1",
)
def by_calls(live: Live) -> None:
    let_rest(live)
    give_on_advice(live)
    live.set_knob(f"{DIRECTORY}/use_zero_page", "1")
    advices = (MADV_POPULATE_READ, MADV_POPULATE_WRITE, MADV_COLLAPSE)
    for shared, advice in product((False, True), advices):
        with live.about(f"{'shared' if shared else 'private'}, advice {advice}"):
            expect_nothing_kept(live, partial(_advise_at_once, live, advice, shared=shared))


def _advise_at_once(live: Live, advice: int, *, shared: bool) -> None:
    memory = map_aligned(live, 2, pmd_size(live), shared=shared, advice=MADV_HUGEPAGE)
    give_back = mmap.MADV_REMOVE if shared else mmap.MADV_DONTNEED
    with at_once(live, memory.actor) as threads:
        for _thread in range(_PROCESSES):
            threads.call("madvise", memory.address, memory.length, advice, may_fail=_NOT_COLLAPSED)
        threads.watch(memory, 0)
        threads.call("madvise", memory.address, memory.length, give_back)
    memory.actor.end()


def _need_zeroes_given_back(live: Live) -> None:
    """Have who reads advised memory get the huge page of zeroes, until the case ends.

    Raises CannotRun where it is never given back."""
    if live.host.kernel_option("PERSISTENT_HUGE_ZERO_FOLIO"):
        raise CannotRun("this kernel keeps one huge page of zeroes for good (CONFIG_PERSISTENT_HUGE_ZERO_FOLIO)")
    let_rest(live)
    set_policy(live, "madvise")
    live.set_knob(f"{DIRECTORY}/use_zero_page", "1")
    live.make_room()
    before = _count(live, _COUNTER)
    other = advised(live)
    expect_huge_zeroes(live, other, 0)
    is_taken = _count(live, _COUNTER) > before
    other.actor.end()
    if not is_taken:
        _expect_taken_by_nobody(live)
    live.expect(f"{_COUNTER} rose when nobody had one", True, is_taken)


def _expect_taken_by_nobody(live: Live) -> None:
    """Raise CannotRun where others may have the huge page of zeroes, which is not taken anew then."""
    if live.host.has_others:
        raise CannotRun("others have the huge page of zeroes")


def _count(live: Live, counter: str) -> int:
    return read_vmstat(ObservedTree(live.host))[counter]


class TouchedFirst(LiveTest):
    def test_touched_first(self) -> None:
        self.run_area(TOUCHED)
