"""khugepaged at work for a case, or asleep: quick, allowed to fill what is absent, and what it must have made."""

from hugepage_qa.cases.fragmentation import expect_no_node_short, tell, with_blocks
from hugepage_qa.cases.khugepaged_clock import (
    KHUGEPAGED,
    PATIENT_SCANS,
    allow_absent,
    await_khugepaged,
    let_rest,
    quicken,
)
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import base_pages, set_policy
from hugepage_qa.kernel.counters import read_vmstat
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.version import KernelVersion

#: MADV_COLLAPSE makes huge pages, as khugepaged does
COLLAPSE_SINCE = KernelVersion(6, 1)
_LIMITS_COUNTED_SINCE = KernelVersion(5, 17)


def put_to_work(live: Live, *, pmd: str = "inherit") -> None:
    """Have khugepaged make huge pages of advised memory, soon, one present page being enough, until the case ends.

    ``pmd`` is the policy of PMD-sized pages (``set_policy``).
    """
    set_policy(live, "madvise", pmd=pmd)
    quicken(live)
    allow_absent(live, pmd_size(live) // live.base_page - 1)
    live.set_knob(f"{KHUGEPAGED}/defrag", "1")


def put_to_sleep(live: Live) -> None:
    """Have khugepaged sleep for minutes, and wait until it does."""
    # without a process on its list it does not sleep but waits for one
    base_pages(live)
    # of what is under way when it is to rest as little as can be
    live.set_knob(f"{KHUGEPAGED}/pages_to_scan", "1")
    let_rest(live)


def expect_collapse(live: Live, memory: Memory, expected: int) -> None:
    """Expect khugepaged to make huge pages of ``expected`` bytes of anonymous ``memory``.

    Raises CannotRun where memory is too fragmented for them.
    """
    now = with_blocks(live, memory.size, memory.pages)
    tell(live, now)
    if not await_khugepaged(live, lambda: memory.smaps().anon_huge_pages == expected, PATIENT_SCANS):
        expect_no_node_short(live, memory.size, memory.pages)
    live.expect(f"AnonHugePages ({now})", expected, memory.smaps().anon_huge_pages)


def beyond_limit(live: Live, limit: str) -> int:
    """Return how often a page was left for its absent, shared or swapped base pages; ``limit`` is none, share or swap.

    It is 0 before Linux 5.17, which does not count that.
    """
    return read_vmstat(ObservedTree(live.host)).get(_counter(limit), 0)


def expect_beyond_limit(live: Live, limit: str, before: int, where: str) -> None:
    """Expect pages to have been left for their ``limit`` since ``before``, where the kernel counts that."""
    if live.kernel_version >= _LIMITS_COUNTED_SINCE:
        live.expect(f"{_counter(limit)} rose, {where}", True, beyond_limit(live, limit) > before)


def _counter(limit: str) -> str:
    return f"thp_scan_exceed_{limit}_pte"
