"""Wait for khugepaged by its own clock: full_scans rises when it has looked at every process on its list."""

from collections.abc import Callable

from hugepage_qa.cases.khugepaged_sleep import await_sleep, is_starved
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.thp_memory import keep_min_free, map_aligned, pmd_size
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.kernel.uapi import MADV_DONTNEED, MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.machine.host import CannotRun, ObservedTree

KHUGEPAGED = f"{DIRECTORY}/khugepaged"

#: a scan may be under way when the wait begins, the next one sees all, and one more finds pages that were busy
SCANS = 3
#: for what has to come: page cache may be busy for longer, and a wait ends when it is there
PATIENT_SCANS = 10
_PAGES_TO_SCAN = 65536
_SLEEP_MILLISECONDS = 10
_REST_MILLISECONDS = 600_000
_PAUSE = 0.05
#: how long a round of _PAGES_TO_SCAN may take beside its sleep: khugepaged has the lowest priority
_ROUND_SECONDS = 0.5
#: for what it has begun: a round, or a look at the first process on its list
_ROUND_UNDER_WAY_SECONDS = 10.0
#: without the end of a scan it is taken to rest, and so long is waited for that
_QUIET_SECONDS, _REST_SECONDS = 1.0, 60.0


def quicken(live: Live) -> None:
    """Have khugepaged rest for 10 ms instead of 10 s between two rounds, until the case ends."""
    for name in ("scan_sleep_millisecs", "alloc_sleep_millisecs"):
        live.set_knob(f"{KHUGEPAGED}/{name}", str(_SLEEP_MILLISECONDS))
    live.set_knob(f"{KHUGEPAGED}/pages_to_scan", str(_PAGES_TO_SCAN))


def let_rest(live: Live) -> None:
    """Have khugepaged look at nothing for ten minutes, or until the case ends.

    The first process on an empty list it looks at all the same, and at once (khugepaged_wait_work()): that is one of
    ours that has nothing to look at. Advice puts a process there once its memory was touched (khugepaged_enter_vma()).
    """
    if "[never]" in (live.host.read(f"{DIRECTORY}/enabled") or ""):
        # nobody is on its list then
        keep_min_free(live)
        live.set_knob(f"{DIRECTORY}/enabled", "madvise")
    live.set_knob(f"{KHUGEPAGED}/scan_sleep_millisecs", str(_REST_MILLISECONDS))
    memory = map_aligned(live, 1, pmd_size(live), advice=MADV_NOHUGEPAGE)
    memory.touch()
    for advice in (MADV_DONTNEED, MADV_HUGEPAGE):
        memory.advise(advice)
    await_sleep(live, _ROUND_UNDER_WAY_SECONDS)


def let_nobody_else_act(live: Live) -> None:
    """Have khugepaged rest, and shared memory be in huge pages where a case says so alone, until the case ends.

    Raises CannotRun on a kernel without shared memory in huge pages.
    """
    let_rest(live)
    let_only_pmd_inherit(live, is_used=False)


def allow_absent(live: Live, pages: int) -> None:
    """Have khugepaged collapse where up to ``pages`` base pages of a huge page are absent, until the case ends."""
    live.set_knob(f"{KHUGEPAGED}/max_ptes_none", str(pages))


def pages_collapsed(live: Live) -> int:
    """Return how many huge pages khugepaged has made. Raises CannotRun where it does not tell."""
    return _number(live, "pages_collapsed")


def await_khugepaged(live: Live, is_done: Callable[[], bool], scans: int = SCANS) -> bool:
    """Wait until ``is_done``, or until ``scans`` full scans are over; return whether it is done.

    Raises Failed when khugepaged ends no scan, or too few, in the time that its own knobs give it for all, and
    CannotRun when it ends too few where others may keep the processors busy: it has the lowest priority. One that ends
    none there is seen to wait for a processor.
    """
    first = full_scans(live)
    seconds = _seconds(live, scans)
    end = live.host.clock() + seconds
    while live.host.clock() < end:
        if is_done():
            return True
        if full_scans(live) - first >= scans:
            return is_done()
        live.host.pause(_PAUSE)
    ended = full_scans(live) - first
    if live.host.has_others and (ended or is_starved(live)):
        raise CannotRun(
            f"khugepaged ended {ended} of {scans} scans in {seconds:.0f} s: this machine is too busy for it"
        )
    return live.fail(f"{KHUGEPAGED}/full_scans", f"{scans} scans more", f"{ended} in {seconds:.0f} s")


def await_scans(live: Live) -> None:
    """Wait until khugepaged has had its chance: until SCANS full scans are over. Raises as above."""
    await_khugepaged(live, lambda: False)


def await_rest(live: Live) -> int:
    """Wait until khugepaged has ended what is under way, and return its full scans; whether it rests is to be seen.

    It has the lowest priority, and on a busy machine a scan takes its time.
    """
    live.host.wait_until(lambda: _ends_no_scan(live), _REST_SECONDS)
    return full_scans(live)


def _ends_no_scan(live: Live) -> bool:
    before = full_scans(live)
    live.host.pause(_QUIET_SECONDS)
    return full_scans(live) == before


def full_scans(live: Live) -> int:
    """Return how often khugepaged has been through its list. Raises CannotRun where it does not tell."""
    return _number(live, "full_scans")


def _seconds(live: Live, scans: int) -> float:
    """Return the seconds in which ``scans`` full scans are over, even if all memory was to be looked at."""
    pages = live.memory_total // live.base_page
    rounds = pages // _number(live, "pages_to_scan") + 1
    sleep = (_number(live, "scan_sleep_millisecs") + _number(live, "alloc_sleep_millisecs")) / 1000
    return scans * rounds * (sleep + _ROUND_SECONDS)


def _number(live: Live, name: str) -> int:
    number = read_integer(ObservedTree(live.host), f"{KHUGEPAGED}/{name}")
    if number is None:
        raise CannotRun(f"this kernel has no /{KHUGEPAGED}/{name}")
    return number
