"""Huge pages whose writes a program forbids itself: userfaultfd(2), UFFDIO_WRITEPROTECT."""

import mmap
import signal
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.hugetlb_of_a_process import expect_hugetlb, forked
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import PRESENT, WORD, WRITE_PROTECTED, Memory, value_or_signal
from hugepage_qa.cases.memory_policy import move_page, node_of
from hugepage_qa.cases.pages_in_memory import in_memory
from hugepage_qa.cases.reached_from_outside import word_read_by
from hugepage_qa.cases.thp_memory import room_for
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault, protected_pages
from hugepage_qa.kernel.uapi import MADV_DONTNEED, PROT_NONE
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest

PROTECTION = Area("userfaultfd/write-protection")
DOC = "Documentation/admin-guide/mm/userfaultfd.rst"
#: a middle, and something on each side
_PAGES = 4


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
    "a page that is protected before it is there, a private one, too, is read as zero and not written, also when"
    " mprotect(2) has forbidden and allowed all of it meanwhile",
    f"{DOC} Write Protect Notifications; mprotect(2); mm/hugetlb.c hugetlb_change_protection()",
    since="5.19",
    pages=1,
)
def protected_before_it_is_there(live: Live) -> None:
    for shared in (False, True):
        memory = live.map(1, shared=shared)
        fault = Userfault(memory, Mode.WRITE_PROTECTED, Feature.WP_HUGETLBFS_SHMEM)
        fault.write_protect()
        for prot in (PROT_NONE, mmap.PROT_READ, READ_WRITE):
            expect_protected(live, memory)
            memory.protect(prot)
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
    file = new_memfd(live, pages=1)
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
    "a hole that is protected is no page, and nothing shows one: neither before there ever was a page nor when it has"
    " gone; it is one when it has been read",
    f"{DOC} Write Protect Notifications; mincore(2); Documentation/admin-guide/mm/pagemap.rst;"
    " Documentation/filesystems/proc.rst numa_maps, smaps, HugetlbPages; mm/mincore.c mincore_hugetlb()",
    since="5.19",
    pages=3,
)
def protected_holes_are_no_pages(live: Live) -> None:
    for shared in (True, False):
        file = new_memfd(live, pages=3)
        memory = file.map(3) if shared else live.map(3, file.actor, noreserve=True)
        _expect_there(live, memory)
        fault = Userfault(memory, Mode.WRITE_PROTECTED, Feature.WP_HUGETLBFS_SHMEM)
        for on in (True, False, True):
            fault.write_protect(on=on, length=memory.length)
            with live.about(f"shared {shared}, protected {on}"):
                _expect_there(live, memory)
        with live.about(f"shared {shared}, protected"):
            live.expect("what is read", 0, memory.read(1))
            _expect_there(live, memory, 1)
            live.expect("what is read", 0, memory.read(2))
            _expect_there(live, memory, 1, 2)
            file.punch(1, first=1) if shared else memory.advise(MADV_DONTNEED, 1, 1)
            _expect_there(live, memory, 2)
            live.expect_signal(signal.SIGBUS, memory.touch, 1)
            live.expect("what is read", 0, memory.read(1))
            _expect_there(live, memory, 1, 2)
        file.actor.end()
        live.expect_pool(nr=3, free=3)


def _expect_there(live: Live, memory: Memory, *pages: int) -> None:
    """Expect each interface that tells which pages there are, or how many, to tell of ``pages`` alone."""
    live.expect("pages in memory (mincore)", pages, in_memory(live, memory))
    entries = memory.pagemap(memory.at(page) for page in range(memory.pages))
    live.expect("pages present (pagemap)", pages, tuple(page for page, entry in enumerate(entries) if entry & PRESENT))
    expect_hugetlb(live, memory, private=len(pages))
    if live.nodes:
        found = memory.numa_maps().nodes
        live.expect("pages on nodes (numa_maps)", len(pages), sum(found.values()))


@PROTECTION.case(
    "pages are protected, and protected no more, from the first one to the last one, however many they are, and no"
    " other: those that are there and holes",
    f"{DOC} Write Protect Notifications; mm/hugetlb.c hugetlb_change_protection()",
    since="5.19",
    pages=_PAGES,
)
def ranges_are_protected(live: Live) -> None:
    for shared, is_hole in ((True, False), (False, False), (True, True))[: 1 if live.is_gigantic else 3]:
        memory = live.map(_PAGES, shared=shared)
        fault = Userfault(memory, Mode.WRITE_PROTECTED, Feature.WP_HUGETLBFS_SHMEM)
        for page in () if is_hole else range(_PAGES):
            memory.touch(page, page + 1)
        for on, first in product((True, False), range(_PAGES)):
            for pages in range(1, _PAGES - first + 1):
                fault.write_protect(on=not on, length=memory.length)
                fault.write_protect(first, on=on, length=pages * live.size)
                with live.about(f"shared {shared}, holes {is_hole}, {pages} pages from {first} on, protected {on}"):
                    expected = [(first <= page < first + pages) == on for page in range(_PAGES)]
                    entries = memory.pagemap(memory.at(page + 1) - live.base_page for page in range(_PAGES))
                    live.expect("protected pages", expected, [bool(entry & WRITE_PROTECTED) for entry in entries])
                    if not is_hole:
                        signals = [signal.SIGBUS.name if is_protected else None for is_protected in expected]
                        came = [value_or_signal(partial(memory.touch, page, page + 1)) for page in range(_PAGES)]
                        live.expect("signals of writes to each page", signals, came)
        memory.actor.end()
        live.expect_pool(nr=_PAGES, free=_PAGES)


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
        child = memory.fork() if shared else forked(live, memory)
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


@PROTECTION.case(
    "a page that parent and child have stays protected in the parent when that has a page of its own, for it is read by"
    " process_vm_readv(2)",
    f"{DOC} Write Protect Notifications; mm/hugetlb.c hugetlb_wp() (0f230bc24b6e)",
    since="6.4",
    pages=2,
)
def protected_page_read_from_outside(live: Live) -> None:
    for place in (0, live.size // 2, live.size - WORD):
        memory = live.map(1)
        memory.fill(3)
        Userfault(memory, Mode.WRITE_PROTECTED, Feature.WP_HUGETLBFS_SHMEM).write_protect()
        child = forked(live, memory)
        with live.about(f"read at {place}"):
            live.expect("what is read", 3 + place, word_read_by(live, memory.actor, memory, place))
            live.expect("frames that both have", set(), memory.frames() & child.frames())
            expect_protected(live, memory)
            live.expect_signal(signal.SIGBUS, memory.actor.write, memory.address + place, 9)
            memory.expect_filled(3)
        live.expect_pool(nr=2, free=0)
        memory.actor.end()
        live.expect_pool(nr=2, free=2)


@PROTECTION.case(
    "what was protected is so no more when the userfaultfd is closed, whether it is there or not, and can be written",
    f"{DOC} Write Protect Notifications; fs/userfaultfd.c userfaultfd_release()",
    since="6.0",  # before, it stayed so when it was unregistered, too (f369b07c8614); closed: since c88033efe9a3
    pages=2,
)
def closed(live: Live) -> None:
    for shared in (False, True):
        memory = live.map(2, shared=shared)
        memory.part(0).fill(3)
        fault = Userfault(memory, Mode.WRITE_PROTECTED, Feature.WP_HUGETLBFS_SHMEM)
        for page in range(2):
            fault.write_protect(page)
        every = live.size // live.base_page
        live.expect("base pages that are protected", 2 * every, len(protected_pages(memory)))
        memory.actor.call("close", fault.descriptor)
        found, known = len(protected_pages(memory)), {Quirk.CLOSED_USERFAULTFD_PROTECTS: 2 * every}
        live.expect("base pages that are protected when it is closed", 0, found, known)
        memory.expect_filled(3, pages=1)
        memory.fill(4)
        memory.expect_filled(4)
        memory.actor.end()
        live.expect_pool(nr=2, free=2)


def expect_protected(live: Live, memory: Memory, *, is_protected: bool = True) -> None:
    """Expect pagemap to say of all base pages of a page, or of none, that userfaultfd protects them."""
    expected = live.size // live.base_page if is_protected else 0
    live.expect("base pages that pagemap shows as protected", expected, len(protected_pages(memory)))


class WriteProtection(LiveTest):
    def test_write_protection(self) -> None:
        self.run_area(PROTECTION)
