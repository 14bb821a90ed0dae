"""What a fault does to get a huge page, in each mode of defrag."""

from functools import partial

from hugepage_qa.kernel.vmstat import read_vmstat
from hugepage_qa.live.case import Area, Sizes
from hugepage_qa.live.fragmentation import expect_at_fault
from hugepage_qa.live.host import ObservedTree
from hugepage_qa.live.live import Live
from hugepage_qa.live.memory import Memory
from hugepage_qa.live.thp_policy import advised, set_policy
from hugepage_qa.live.transparent import MADV_HUGEPAGE, expect_change, pmd_size
from hugepage_qa.model.rules import THP_DOC
from hugepage_qa.plugins.live_test import LiveTest

DEFRAG = Area("thp/defrag", sizes=Sizes.ONCE)

DOC = f"{THP_DOC} defrag; mm/huge_memory.c vma_thp_gfp_mask()"
_MODES = ("always", "defer", "defer+madvise", "madvise", "never")
#: modes in which a fault may reclaim and compact itself, without advice and with it
_DIRECT = {None: ("always",), MADV_HUGEPAGE: ("always", "defer+madvise", "madvise")}
_PAGES = 4


@DEFRAG.case(
    "in each mode a fault gets a huge page, advised or not, as long as there are free blocks",
    DOC,
)
def huge_pages_in_each_mode(live: Live) -> None:
    for mode in _MODES:
        set_policy(live, "always", defrag=mode)
        for advice in _DIRECT:
            expect_at_fault(live, f"defrag={mode}, advice {advice}", True, partial(advised, live, _PAGES, advice))


@DEFRAG.case(
    "a fault compacts nothing itself with defer and never, nor without advice with madvise and defer+madvise",
    f"{DOC}; {THP_DOC} compact_stall",
)
def no_direct_compaction(live: Live) -> None:
    for mode in _MODES:
        set_policy(live, "always", defrag=mode)
        for advice, direct in _DIRECT.items():
            if mode not in direct:
                expect_change(live, {"compact_stall": 0}, partial(advised, live, _PAGES, advice), Memory.fill, _events)


@DEFRAG.case(
    "a fault that gets its huge page is counted as thp_fault_alloc in each mode, and falls back to nothing",
    f"{THP_DOC} thp_fault_alloc, thp_fault_fallback",
)
def counted_in_each_mode(live: Live) -> None:
    for mode in _MODES:
        set_policy(live, "madvise", defrag=mode)
        counted = {"thp_fault_alloc": _PAGES, "thp_fault_fallback": 0}
        memory = expect_change(live, counted, partial(advised, live, _PAGES), Memory.fill, _events)
        live.expect(f"AnonHugePages with defrag={mode}", _PAGES * pmd_size(live), memory.smaps().anon_huge_pages)


def _events(live: Live) -> dict[str, int]:
    # the counters of each CPU are added up now, not within the next second
    live.host.write("proc/sys/vm/stat_refresh", "1")
    counters = read_vmstat(ObservedTree(live.host))
    return {name: counters[name] for name in ("compact_stall", "thp_fault_alloc", "thp_fault_fallback")}


class ThpDefrag(LiveTest):
    """What a fault does to get a huge page.

    :avocado: enable
    :avocado: tags=thp
    """

    timeout = 600

    def test_defrag(self) -> None:
        """Every case, once for the machine."""
        self.run_area(DEFRAG)
