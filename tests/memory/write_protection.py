"""Huge pages whose writes a program forbids itself: userfaultfd(2), UFFDIO_WRITEPROTECT."""

import signal
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import forked, new_memfd
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import move_page, node_of
from hugepage_qa.cases.thp_memory import room_for
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault, protected_pages
from hugepage_qa.kernel.uapi import MADV_DONTNEED
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest

PROTECTION = Area("write-protection")
DOC = "Documentation/admin-guide/mm/userfaultfd.rst"


@PROTECTION.case(
    "a protected page can be read and not written, and written again later",
    f"{DOC} Write Protect Notifications",
    since="5.19",
    pages=1,
)
def write_protected_page(live: Live) -> None:
    memory = live.map(1, shared=True)
    memory.fill(3)
    fault = Userfault(memory, Mode.WRITE_PROTECTED, Feature.WP_HUGETLBFS_SHMEM)
    for _time in range(2):
        fault.write_protect()
        expect_protected(live, memory)
        live.expect_signal(signal.SIGBUS, memory.touch, 0, 9)
        memory.expect_filled(3)
        fault.write_protect(on=False)
        expect_protected(live, memory, is_protected=False)
        memory.fill(3)
    memory.expect_filled(3)
    live.expect_pool(nr=1, free=0)


@PROTECTION.case(
    "a page that moves to another node and back stays protected, and pagemap says so",
    f"{DOC} Write Protect Notifications; move_pages(2); mm/migrate.c remove_migration_pte()",
    sizes=Sizes.BUDDY,
    since="5.19",
    pages=1,
    nodes=2,
)
def protected_while_it_moves(live: Live) -> None:
    for node in live.nodes[:2]:
        live.reserve(2, node)
    memory = live.map(1, shared=True)
    memory.fill(3)
    fault = Userfault(memory, Mode.WRITE_PROTECTED, Feature.WP_HUGETLBFS_SHMEM)
    fault.write_protect()
    here = node_of(memory)
    for node in (*(node for node in live.nodes[:2] if node != here), here):
        live.expect("status of move_pages", node, move_page(memory, 0, node))
        expect_protected(live, memory)
        live.expect_signal(signal.SIGBUS, memory.touch, 0, 9)
        memory.expect_filled(3)
    fault.write_protect(on=False)
    memory.fill(4)
    memory.expect_filled(4)


@PROTECTION.case(
    "a page that is protected before it is there, a private one, too, is read as zero and not written",
    f"{DOC} Write Protect Notifications; mm/hugetlb.c hugetlb_change_protection()",
    since="5.19",
    pages=1,
)
def protected_before_it_is_there(live: Live) -> None:
    for shared in (False, True):
        memory = live.map(1, shared=shared)
        fault = Userfault(memory, Mode.WRITE_PROTECTED, Feature.WP_HUGETLBFS_SHMEM)
        fault.write_protect()
        expect_protected(live, memory)
        live.expect_signal(signal.SIGBUS, memory.touch)
        memory.expect_zero()
        expect_protected(live, memory)
        live.expect_signal(signal.SIGBUS, memory.touch)
        fault.write_protect(on=False)
        expect_protected(live, memory, is_protected=False)
        memory.fill(4)
        memory.expect_filled(4)
        memory.actor.end()
        live.expect_pool(nr=1, free=1)


@PROTECTION.case(
    "a protected page of a file stays protected when it is unmapped and when its file has it no more, there or not, and"
    " pagemap says so; what is in it stays, and behind a shorter end nothing is protected",
    f"{DOC} Write Protect Notifications; mm/hugetlb.c __unmap_hugepage_range(), ZAP_FLAG_DROP_MARKER",
    since="5.19",
    pages=1,
)
def protected_page_unmapped(live: Live) -> None:
    file = new_memfd(live)
    file.truncate(1)
    memory = file.map(1)
    memory.fill(3)
    fault = Userfault(memory, Mode.WRITE_PROTECTED, Feature.WP_HUGETLBFS_SHMEM)
    fault.write_protect()
    memory.advise(MADV_DONTNEED)
    live.expect_pool(nr=1, free=0)
    _expect_still_protected(live, memory)
    memory.expect_filled(3)
    _expect_still_protected(live, memory)
    # each write that is refused maps a page first: holes where one is mapped, where the file alone has one, and at last
    # where there is none
    punch, discard = partial(file.punch, 1), partial(memory.advise, MADV_DONTNEED)
    for steps in ((punch,), (discard, punch), (punch, punch), (punch, discard)):
        for step in steps:
            step()
        live.expect_pool(nr=1, free=1)
        _expect_still_protected(live, memory)
    memory.expect_zero()
    _expect_still_protected(live, memory)
    file.truncate(0)
    file.truncate(1)
    expect_protected(live, memory, is_protected=False)
    memory.fill(4)
    memory.expect_filled(4)
    live.expect_pool(nr=1, free=0)


def _expect_still_protected(live: Live, memory: Memory) -> None:
    """Expect a page to be protected, and a write to fail, which leaves it as it is."""
    expect_protected(live, memory)
    live.expect_signal(signal.SIGBUS, memory.touch, 0, 9)
    expect_protected(live, memory)


@PROTECTION.case(
    "a page that was protected can be written where mremap() has moved it",
    f"{DOC} UFFD_FEATURE_EVENT_REMAP; mm/hugetlb.c move_huge_pte() (0cef0bb836e3)",
    since="5.19",
    pages=1,
)
def protected_page_moved(live: Live) -> None:
    for shared in (False, True):
        memory = live.map(1, shared=shared)
        memory.fill(3)
        Userfault(memory, Mode.WRITE_PROTECTED, Feature.WP_HUGETLBFS_SHMEM).write_protect()
        live.expect_signal(signal.SIGBUS, memory.touch)
        there = memory.moved_to(room_for(memory.actor, 1, live.size))
        found = len(protected_pages(there))
        known = {Quirk.MOVED_PAGE_STAYS_PROTECTED: live.size // live.base_page}
        live.expect("base pages that pagemap shows as protected", 0, found, known)
        if found:
            return  # a write would not end
        there.expect_filled(3)
        there.fill(4)
        there.expect_filled(4)
        live.expect_pool(nr=1, free=0)
        memory.actor.end()
        live.expect_pool(nr=1, free=1)


@PROTECTION.case(
    "after fork() a child writes what its parent has protected; in the parent it stays protected",
    f"{DOC} UFFD_FEATURE_EVENT_FORK; mm/hugetlb.c copy_hugetlb_page_range() (5a2f8d22ace4)",
    since="5.19",
    pages=2,
)
def protected_page_forked(live: Live) -> None:
    # a known bug of private pages ends the case
    for shared in (True, False):
        memory = live.map(1, shared=shared)
        memory.fill(3)
        Userfault(memory, Mode.WRITE_PROTECTED, Feature.WP_HUGETLBFS_SHMEM).write_protect()
        # a shared page is mapped for the child when it is written
        child = memory.seen_by(memory.actor.fork()) if shared else forked(live, memory)
        every = live.size // live.base_page
        known = {} if shared else {Quirk.FORKED_PAGE_STAYS_PROTECTED: every}
        live.expect("base pages that are protected in the child", 0, len(protected_pages(child)), known)
        child.fill(4)
        child.expect_filled(4)
        live.expect("base pages that are protected in the parent", every, len(protected_pages(memory)))
        live.expect_signal(signal.SIGBUS, memory.touch, 0, 9)
        memory.expect_filled(4 if shared else 3)
        live.expect_pool(nr=2, free=1 if shared else 0)
        memory.actor.end()
        live.expect_pool(nr=2, free=2)


def expect_protected(live: Live, memory: Memory, *, is_protected: bool = True) -> None:
    """Expect pagemap to say of all base pages of a page, or of none, that userfaultfd protects them."""
    expected = live.size // live.base_page if is_protected else 0
    live.expect("base pages that pagemap shows as protected", expected, len(protected_pages(memory)))


class WriteProtection(LiveTest):
    """Huge pages that a program protects from writes.

    :avocado: enable
    """

    def test_write_protection(self) -> None:
        """Every case for every page size."""
        self.run_area(PROTECTION)
