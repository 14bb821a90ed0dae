"""How much khugepaged looks at before it sleeps, for how long it does, and what wakes it."""

from functools import partial
from typing import NoReturn

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import expect_no_node_short, with_blocks
from hugepage_qa.cases.khugepaged_clock import KHUGEPAGED, full_scans, quicken
from hugepage_qa.cases.khugepaged_sleep import await_sleep, is_starved
from hugepage_qa.cases.khugepaged_work import expect_collapse, put_to_sleep, put_to_work
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import base_pages
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

PACE = Area("thp/khugepaged-pace", sizes=Sizes.ONCE, uncleared=True)

DOC = f"{THP_DOC} Khugepaged controls"
_SLEEP_MILLISECONDS = 500
_PAGES = 12
#: made in rounds of one huge page, of four and of all, which is more than khugepaged looks at by default, and so much
#: more may be for what a process has besides
_ALL, _AT_A_TIME, _MORE_ROUNDS = 40, (4, 40), 2
#: others are looked at, too
_MOST_ROUNDS, _ROUND_SECONDS = 4 * _ALL, 10.0
#: one after the other in which nothing comes of ours, after which others have too much
_IDLE_ROUNDS = 12
#: where khugepaged has no processor for it, a round takes several
_TRIES = 3
_QUIET_SECONDS = 1.0


@PACE.case(
    "a shorter scan_sleep_millisecs wakes khugepaged at once, though it would have slept for minutes",
    f"{DOC} scan_sleep_millisecs; mm/khugepaged.c scan_sleep_millisecs_store()",
)
def woken_at_once(live: Live) -> None:
    put_to_work(live)
    put_to_sleep(live)
    memory = base_pages(live, 2)
    before = full_scans(live)
    live.host.pause(_QUIET_SECONDS)
    live.expect("full scans while it sleeps", before, full_scans(live))
    memory.expect_huge(0, about="while it sleeps")
    quicken(live)
    expect_collapse(live, memory, memory.length)
    memory.expect_filled()


@PACE.case(
    "with pages_to_scan=1 khugepaged looks at one huge page and sleeps: it makes no more of them than sleeps are over",
    f"{DOC} pages_to_scan, scan_sleep_millisecs; mm/khugepaged.c khugepaged_do_scan()",
)
def one_at_a_time(live: Live) -> None:
    put_to_work(live)
    put_to_sleep(live)
    memory = base_pages(live, _PAGES)
    with_blocks(live, memory.size, _PAGES)
    start = live.host.clock()
    live.host.write(f"{KHUGEPAGED}/scan_sleep_millisecs", str(_SLEEP_MILLISECONDS))
    live.host.wait_until(lambda: memory.smaps().anon_huge_pages >= 2 * memory.size, 60.0)
    made = memory.smaps().anon_huge_pages // memory.size
    if made < 2:
        _tell_why_no_more(live, memory)
    # it was woken when the number was written, and the last sleep may end now
    most = 2 + round((live.host.clock() - start) * 1000) // _SLEEP_MILLISECONDS
    live.expect(f"at most {most} huge pages of {_PAGES} were made, found {made}", True, made <= most)
    memory.expect_filled()


@PACE.case(
    "pages_to_scan is how much khugepaged looks at before it sleeps: with one it makes no more than a huge page, with"
    " the pages of four huge ones it need be woken a quarter as often until all are made, and with those of all, many"
    " more than by default, once",
    f"{DOC} pages_to_scan, pages_collapsed; mm/khugepaged.c khugepaged_do_scan(), khugepaged_wait_work()",
)
def more_at_a_time(live: Live) -> None:
    put_to_work(live)
    put_to_sleep(live)
    pages = pmd_size(live) // live.base_page
    one = _rounds_until_all_is_made(live, 1, at_least=1)
    live.expect(f"at least {_ALL} rounds with pages_to_scan=1, found {one}", True, one >= _ALL)
    for at_a_time in _AT_A_TIME:
        to_scan, least, most = at_a_time * pages, _ALL // at_a_time, one // at_a_time + _MORE_ROUNDS
        for _try in range(_TRIES):
            many = _rounds_until_all_is_made(live, to_scan, at_least=at_a_time)
            if many <= most:
                break
        rounds = f"from {least} to {most} rounds with pages_to_scan={to_scan}"
        live.expect(f"{rounds}, found {many}", True, least <= many <= most)


def _rounds_until_all_is_made(live: Live, to_scan: int, at_least: int) -> int:
    """Return how often khugepaged, which sleeps for minutes, had to be woken until it had made all huge pages.

    A round is over when it sleeps again, or has made ``at_least`` so many. Raises as ``_tell_why_no_more`` does where
    it does not come to that.
    """
    live.set_knob(f"{KHUGEPAGED}/pages_to_scan", str(to_scan))
    memory = base_pages(live, _ALL)
    with_blocks(live, memory.size, _ALL)
    path = f"{KHUGEPAGED}/scan_sleep_millisecs"
    minutes = (live.host.read(path) or "").strip()
    idle = 0
    for rounds in range(1, _MOST_ROUNDS):
        before = memory.smaps().anon_huge_pages
        wanted = min(before + at_least * memory.size, memory.length)
        live.host.write(path, minutes)  # who writes it wakes khugepaged
        await_sleep(live, _ROUND_SECONDS, partial(_has, memory, wanted))
        idle = 0 if memory.smaps().anon_huge_pages > before else idle + 1
        if idle == _IDLE_ROUNDS:
            break
        if _has(memory, memory.length):
            memory.expect_huge(about="when all is made")
            memory.expect_filled()
            memory.actor.end()
            return rounds
    return _tell_why_no_more(live, memory)


def _tell_why_no_more(live: Live, memory: Memory) -> NoReturn:
    """Raise CannotRun where memory is too fragmented, or others keep khugepaged from ours, and Failed otherwise."""
    expect_no_node_short(live, memory.size, memory.pages)
    if live.host.has_others or is_starved(live):
        raise CannotRun("others have so much advised memory, or keep the processors so busy, that nothing came of ours")
    made = memory.smaps().anon_huge_pages // memory.size
    live.fail(f"huge pages that khugepaged has made of {memory.pages}", "more and more", made)


def _has(memory: Memory, huge: int) -> bool:
    return memory.smaps().anon_huge_pages >= huge


class ThpKhugepagedPace(LiveTest):
    def test_khugepaged_pace(self) -> None:
        self.run_area(PACE)
