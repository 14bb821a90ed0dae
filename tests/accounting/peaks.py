"""The most that a process has had mapped, and resident: VmPeak and VmHWM of its status, for memory of each kind."""

from collections.abc import Callable
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.clear_refs import CLEAR_REFS_PEAK, clear_refs
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.process_counters import may_lack, process_status
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.cases.thp_policy import set_policy
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

PEAKS = Area("accounting/peaks")

PEAK = (
    "VmPeak of a process is the most that VmSize has been, at once when more is mapped, and still when it is unmapped;"
    " VmHWM is the most that VmRSS has been, {}, until 5 is written to clear_refs"
)
SOURCE = "Documentation/filesystems/proc.rst VmPeak, VmHWM; fs/proc/task_mmu.c task_mem(); mm/vma.c unmap_region()"
_PAGES, _SOME = 4, 1
#: VmRSS is the sum of these counters, each as exact as ``may_lack``
_KINDS = "RssAnon", "RssFile", "RssShmem"


@PEAKS.case(PEAK.format("which hugetlb pages do not count for"), SOURCE, pages=_PAGES)
def hugetlb_pages(live: Live) -> None:
    for shared in (False, True):
        with live.about(f"shared {shared}"):
            _expect_peaks(live, partial(live.map, shared=shared))
            live.expect_pool(nr=_PAGES, free=_PAGES)


@PEAKS.case(PEAK.format("huge pages and base pages"), SOURCE, sizes=Sizes.ONCE)
def other_pages(live: Live) -> None:
    let_rest(live)
    for policy in ("always", "never"):
        set_policy(live, policy)
        live.set_knob(f"{DIRECTORY}/shmem_enabled", policy)
        for shared in (False, True):
            with live.about(f"enabled and shmem_enabled {policy}, shared {shared}"):
                _expect_peaks(live, partial(_map_others, live, shared))


def _map_others(live: Live, shared: bool, pages: int, actor: Actor) -> Memory:
    return map_aligned(live, pages, pmd_size(live), shared=shared, actor=actor, advice=MADV_HUGEPAGE)


def _expect_peaks(live: Live, map_pages: Callable[[int, Actor], Memory]) -> None:
    """Expect the peaks of a process to go with what it maps, touches and unmaps."""
    actor = live.actor()
    peaks = _Peaks(live, actor)
    some = map_pages(_SOME, actor)
    peaks.expect("some is mapped", some.size)
    some.fill()
    peaks.expect("some is touched", some.size)
    before = peaks.mapped
    more = map_pages(_PAGES - _SOME, actor)
    peaks.expect("more is mapped", some.size)
    live.expect("whether VmSize has grown by all of that", True, peaks.mapped - before >= more.length)
    more.fill()
    peaks.expect("more is touched", some.size)
    more.unmap()
    peaks.expect("more is unmapped", some.size)
    clear_refs(live, some, CLEAR_REFS_PEAK)
    peaks.resident = 0
    peaks.expect("5 is written to clear_refs", some.size)
    some.unmap()
    peaks.expect("all is unmapped", some.size)
    map_pages(_SOME, actor).fill()
    peaks.expect("some is touched again", some.size)
    actor.end()


class _Peaks:
    """The most bytes that ``actor`` has been seen to have mapped, and resident."""

    def __init__(self, live: Live, actor: Actor) -> None:
        self._live = live
        self._actor = actor
        self._lack = may_lack(live)
        self.mapped = self.resident = 0

    def expect(self, when: str, size: int) -> None:
        """Expect VmPeak and VmHWM to be the most so far, to half a page of ``size`` bytes.

        VmHWM is left out where counters may be off by that.
        """
        found = process_status(self._live, self._actor).sizes
        self.mapped, self.resident = max(self.mapped, found["VmSize"]), max(self.resident, found["VmRSS"])
        self._live.expect(f"whether VmPeak is VmSize or more, {when}", True, found["VmPeak"] >= self.mapped)
        more = round((found["VmPeak"] - self.mapped) / size)
        self._live.expect(f"pages in VmPeak beyond the most in VmSize, {when}", 0, more)
        if len(_KINDS) * self._lack < size // 2:
            more = round((found["VmHWM"] - self.resident) / size)
            self._live.expect(f"pages in VmHWM beyond the most in VmRSS, {when}", 0, more)


class Peaks(LiveTest):
    def test_peaks(self) -> None:
        self.run_area(PEAKS)
