"""Memory that a program has poisoned (userfaultfd(2), UFFDIO_POISON) stays so, whatever else is done with it."""

import mmap
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act, let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.madv_collapse import collapse_memory
from hugepage_qa.cases.mapped_memory import WORD, Memory, value_or_signal
from hugepage_qa.cases.pagemap_scan import Is, protect
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.cases.thp_policy import base_pages, set_policy
from hugepage_qa.cases.thp_shared_memory import shared_base_pages
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault
from hugepage_qa.kernel.uapi import MADV_DONTNEED
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused

KEPT_POISONED = Area("userfaultfd/kept-poisoned")
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
    let_nobody_else_act(live)
    set_policy(live, "madvise")
    for shared, feature in ((False, Feature(0)), (True, Feature.WP_HUGETLBFS_SHMEM)):
        with live.about(f"shared {shared}"):
            whole = map_aligned(live, 1, pmd_size(live), shared=shared)
            memory = Memory(live, whole.actor, whole.address + whole.size // 2, 2, live.base_page)
            _expect_kept(live, memory, _FEATURES | feature)
            memory.actor.end()


@KEPT_POISONED.case(
    "so does a base page, of shared memory that a file has as before, too, whether its own process or a child asks for"
    " a collapse (MADV_COLLAPSE), and what is beside it is what it was",
    f"{POISON}; madvise(2) MADV_COLLAPSE; mm/khugepaged.c retract_page_tables(), file_backed_vma_is_retractable()",
    sizes=Sizes.ONCE,
    since="6.6",  # UFFDIO_POISON
)
def collapsed(live: Live) -> None:
    let_rest(live)
    for make, by_child in product((base_pages, shared_base_pages), (False, True)):
        memory, place = make(live), live.base_page * 2
        with live.about(f"{make.__name__}, asked for by a child {by_child}"):
            _poison_what_is_there(live, memory, place)
            asks = memory.fork() if by_child else memory
            # nobody says that memory with a poisoned page is collapsed, or that it is not
            with suppress(Refused):
                collapse_memory(live, asks)
            _expect_poisoned(live, memory, place)
        memory.actor.end()


@KEPT_POISONED.case(
    "a child, and its child, have the base pages that were poisoned, of shared memory, too, and what is beside them",
    f"{POISON}; fork(2); mm/memory.c vma_needs_copy(); include/linux/mm_inline.h copy_pte_marker()",
    sizes=Sizes.ONCE,
    since="6.6",
)
def inherited(live: Live) -> None:
    let_rest(live)
    for make in (base_pages, shared_base_pages):
        memory, place = make(live), live.base_page * 2
        with live.about(make.__name__):
            _poison_what_is_there(live, memory, place)
            child = memory.fork()
            for each in (memory, child, child.fork()):
                _expect_poisoned(live, each, place)
        memory.actor.end()


def _poison_what_is_there(live: Live, memory: Memory, place: int) -> None:
    """Poison a base page that the mapping has no more; the file of shared memory has it."""
    memory.actor.call("madvise", memory.address + place, live.base_page, MADV_DONTNEED)
    Userfault(memory, Mode.MISSING, Feature.POISON | Feature.MISSING_SHMEM).poison(offset=place, length=live.base_page)


def _expect_poisoned(live: Live, memory: Memory, place: int) -> None:
    """Expect SIGBUS at ``place``, and the rest to be what it was filled with."""
    found = value_or_signal(partial(memory.actor.read, memory.address + place))
    known = {Quirk.POISON_OF_SHARED_LOST: 1 + place}
    live.expect("what a read of what was poisoned gives", signal.SIGBUS.name, found, known)
    behind = place + live.base_page
    live.expect_signal(signal.SIGBUS, memory.actor.write, memory.address + behind - WORD, _VALUE)
    wrong = memory.wrong_beside(place, behind)
    live.expect("words beside it that changed", 0, wrong)


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
