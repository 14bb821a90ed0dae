"""Locked memory that is made huge, by MADV_COLLAPSE and by khugepaged: it stays locked, and is counted so."""

from collections.abc import Callable
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.changed_counters import expect_change
from hugepage_qa.cases.khugepaged_clock import let_rest, quicken
from hugepage_qa.cases.khugepaged_work import expect_collapse, put_to_work
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.madv_collapse import collapse_memory
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_memory import mapped_huge, pmd_size
from hugepage_qa.cases.thp_policy import advised, base_pages, huge_pages
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, shared_base_pages
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest

LOCKED = Area("mlock/collapse-locked", sizes=Sizes.ONCE)

DOC = "mlock(2); Documentation/filesystems/proc.rst Mlocked, Locked"
SINCE = "6.1"


@LOCKED.case(
    "a huge page that is made of locked base pages, or of a single one, of a process's own or shared, by advice or by"
    " khugepaged, is locked and unevictable, all of it, and no longer when it is unlocked or goes",
    f"{DOC}; mm/khugepaged.c collapse_huge_page(), collapse_file()",
    since=SINCE,
)
def collapsed_when_locked(live: Live) -> None:
    let_only_pmd_inherit(live)
    put_to_work(live)
    let_rest(live)
    size, other = pmd_size(live), huge_pages(live)

    def locked(lock: Callable[[Live], Memory]) -> Memory:
        memory = lock(live)
        _add_up(live, other)
        return memory

    def act(make_huge: Callable[[Live, Memory], None], memory: Memory) -> None:
        make_huge(live, memory)
        _add_up(live, other)

    def collapsed(lock: Callable[[Live], Memory], make_huge: Callable[[Live, Memory], None]) -> Memory:
        memory = locked(lock)
        act(make_huge, memory)
        return memory

    ways = product((_by_advice, _by_khugepaged), (_lock_base_pages, _lock_a_base_page))
    # khugepaged leaves it to the next access to map shared memory that it made huge
    for make_huge, lock in (*ways, (_by_advice, _lock_shared_base_pages)):
        before = live.base_page if lock is _lock_a_base_page else size
        rise = {"Mlocked": size - before, "Unevictable": size - before}
        with live.about(f"{lock.__name__[1:]}, {make_huge.__name__[1:]}"):
            lost = {Quirk.MOVED_HUGE_PAGE_UNLOCKED: {"Mlocked": -size, "Unevictable": -size}}
            known = lost if lock is _lock_shared_base_pages else None
            memory = expect_change(live, rise, partial(locked, lock), partial(act, make_huge), known=known)
            live.expect("Locked, huge pages", (size, size), (memory.smaps().fields["Locked"], mapped_huge(memory)))
            live.expect("words that changed", 0, memory.wrong(0, before))
            for release in (Memory.unlock, Memory.unmap):
                fall = {"Mlocked": -size, "Unevictable": -size}
                expect_change(live, fall, partial(collapsed, lock, make_huge), release)


def _add_up(live: Live, huge: Memory) -> None:
    """Have the processors add up what was locked and unlocked: whoever gives this advice does (lru_add_drain_all())."""
    collapse_memory(live, huge)


def _lock_base_pages(live: Live) -> Memory:
    memory = base_pages(live)
    memory.lock()
    return memory


def _lock_shared_base_pages(live: Live) -> Memory:
    memory = shared_base_pages(live)
    memory.lock()
    return memory


def _lock_a_base_page(live: Live) -> Memory:
    memory = advised(live, advice=MADV_NOHUGEPAGE)
    memory.lock_on_fault()
    memory.fill_part(0, live.base_page)
    memory.advise(MADV_HUGEPAGE)
    return memory


def _by_advice(live: Live, memory: Memory) -> None:
    collapse_memory(live, memory)


def _by_khugepaged(live: Live, memory: Memory) -> None:
    quicken(live)
    expect_collapse(live, memory, memory.length)
    let_rest(live)


class ThpCollapseLocked(LiveTest):
    def test_collapse_locked(self) -> None:
        self.run_area(LOCKED)
