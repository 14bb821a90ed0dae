"""Memory that a program has poisoned (userfaultfd(2), UFFDIO_POISON) stays so, whatever else is done with it."""

import mmap
import signal
from collections.abc import Callable
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.pagemap_scan import Is, protect
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.cases.thp_policy import set_policy
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault
from hugepage_qa.plugins.avocado_test import LiveTest

KEPT_POISONED = Area("memory/kept-poisoned")
POISON = "ioctl_userfaultfd(2) UFFDIO_POISON; Documentation/admin-guide/mm/userfaultfd.rst Memory Poisoning Emulation"
_FEATURES = Feature.POISON | Feature.WP_ASYNC | Feature.WP_UNPOPULATED | Feature.PAGEFAULT_FLAG_WP
_VALUE = 7


@KEPT_POISONED.case(
    "a poisoned page of a pool stays so, and the page beside it what it was, when both are protected by a scan or by"
    " UFFDIO_WRITEPROTECT, or by mprotect(2), and opened again",
    f"{POISON}; fs/proc/task_mmu.c make_uffd_wp_huge_pte(); mm/hugetlb.c hugetlb_change_protection()",
    pages=2,
    since="6.7",  # PAGEMAP_SCAN
)
def hugetlb_page(live: Live) -> None:
    for shared in (False, True):
        with live.about(f"shared {shared}"):
            memory = live.map(2, shared=shared)
            _expect_kept(live, memory, _FEATURES | Feature.WP_HUGETLBFS_SHMEM)
            live.expect_pool(nr=2, free=1, resv=1)
            memory.actor.end()
            live.expect_pool(nr=2, free=2)


@KEPT_POISONED.case(
    "so does a poisoned base page",
    f"{POISON}; fs/proc/task_mmu.c make_uffd_wp_pte(); mm/mprotect.c change_pte_range()",
    sizes=Sizes.ONCE,
    since="6.7",
)
def base_page(live: Live) -> None:
    let_rest(live)
    set_policy(live, "madvise")
    for shared, feature in ((False, Feature(0)), (True, Feature.WP_HUGETLBFS_SHMEM)):
        with live.about(f"shared {shared}"):
            whole = map_aligned(live, 1, pmd_size(live), shared=shared)
            memory = Memory(live, whole.actor, whole.address + whole.size // 2, 2, live.base_page)
            _expect_kept(live, memory, _FEATURES | feature)
            memory.actor.end()


def _expect_kept(live: Live, memory: Memory, features: Feature) -> None:
    """Expect the second of two pages to be poisoned, and to stay so."""
    memory.touch(0, _VALUE)
    # missing pages stay the kernel's: who gets one for what was poisoned sees zeroes
    fault = Userfault(memory, Mode.WRITE_PROTECTED, features)
    fault.poison(1)
    steps: tuple[tuple[str, Callable[[], object]], ...] = (
        ("poisoned", lambda: None),
        ("protected by a scan", partial(protect, live, memory, Is(0))),
        ("protected by a scan for what is written", partial(protect, live, memory, Is.WRITTEN)),
        ("protected", partial(fault.write_protect, length=memory.length)),
        ("opened", partial(fault.write_protect, on=False, length=memory.length)),
        ("read alone for a time", partial(_forbid_writes_for_a_time, memory)),
        ("unregistered", partial(fault.unregister, length=memory.length)),
    )
    for about, act in steps:
        act()
        with live.about(about):
            live.expect("the word beside it", _VALUE, memory.read(0))
            for access in (memory.read, memory.touch):
                live.expect_signal(signal.SIGBUS, access, 1)


def _forbid_writes_for_a_time(memory: Memory) -> None:
    memory.protect(mmap.PROT_READ)
    memory.protect(READ_WRITE)


class KeptPoisoned(LiveTest):
    def test_kept_poisoned(self) -> None:
        self.run_area(KEPT_POISONED)
