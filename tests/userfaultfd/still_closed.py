"""Huge pages that a program has closed, and what becomes of them then: what stays closed, and what is open again."""

import mmap
from collections.abc import Callable
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.closed_memory import (
    DOC,
    SINCE,
    VALUE,
    close,
    close_first,
    expect_access,
    expect_accessed,
    expect_closed,
    expect_marked,
    expect_open_at_last,
    fill,
    filled_pages,
)
from hugepage_qa.cases.hugetlb_files import HugeFile, new_memfd
from hugepage_qa.cases.hugetlb_of_a_process import forked
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import move_page, node_of
from hugepage_qa.cases.thp_memory import room_for
from hugepage_qa.kernel.uapi import MADV_DONTNEED, PROT_NONE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor_threads import Came

STILL_CLOSED = Area("userfaultfd/still-closed")

_NEW_VALUE = 1 << 41


@STILL_CLOSED.case(
    "what is closed stays so when mprotect(2) forbids to write or to access it, or a page of it, and allows it again,"
    " and so is what is closed meanwhile; what is opened meanwhile can be accessed then",
    f"{DOC}; mm/hugetlb.c hugetlb_change_protection()",
    since=SINCE,
    pages=3,
)
def protected_by_others(live: Live) -> None:
    came = {mmap.PROT_READ: (Came.SIGBUS, Came.SIGSEGV), PROT_NONE: (Came.SIGSEGV, Came.SIGSEGV)}
    for shared in (False, True):
        with filled_pages(live, 3, shared=shared) as memory:
            fault = close(memory)
            for prot, (first, pages), before in product(came, ((0, 3), (1, 1)), (True, False)):
                with live.about(f"protection {prot:#x}, {pages} pages from {first} on, closed before it {before}"):
                    fault.read_write_protect(on=before, length=memory.length)
                    memory.protect(prot, first, pages)
                    fault.read_write_protect(length=memory.length)
                    for writes in (False, True):
                        expect_access(live, memory, live.size, came[prot][writes], writes=writes)
                    memory.protect(READ_WRITE, first, pages)
                    expect_closed(live, memory, (0, memory.length))
                    memory.protect(prot, first, pages)
                    fault.read_write_protect(on=False, length=memory.length)
                    memory.protect(READ_WRITE, first, pages)
                    expect_closed(live, memory)
            memory.expect_filled(VALUE)


@STILL_CLOSED.case(
    "a closed page that moves to another node and back stays closed, and is told there as accessed no more than here",
    f"{DOC}, Scope of protection: migration entries; mm/migrate.c remove_migration_pte()",
    sizes=Sizes.BUDDY,
    since=SINCE,
    pages=1,
    nodes=2,
)
def moved_to_another_node(live: Live) -> None:
    for node in live.nodes[:2]:
        live.reserve(2, node)
    for shared in (False, True):
        with filled_pages(live, 1, shared=shared, pool=None) as memory:
            fault = close(memory)
            here = node_of(memory)
            for node in (*(node for node in live.nodes[:2] if node != here), here):
                live.expect("status of move_pages", node, move_page(memory, 0, node))
                expect_accessed(live, memory)
                expect_closed(live, memory, (0, live.size))
            fault.read_write_protect(on=False)
            expect_closed(live, memory)
            memory.expect_filled(VALUE)


@STILL_CLOSED.case(
    "after fork() what a child has is open: it reads and writes it; in the parent what was closed stays so, and of what"
    " was open none writes what the other one has",
    f"{DOC}; mm/hugetlb.c copy_hugetlb_page_range(); UFFD_FEATURE_EVENT_FORK",
    since=SINCE,
    sizes=Sizes.BUDDY,
    pages=4,
)
def with_a_child(live: Live) -> None:
    for shared in (False, True):
        with filled_pages(live, 2, shared=shared, pool=4) as memory:
            fault = close_first(memory)
            child = memory.fork() if shared else forked(live, memory, 2)
            memory.touch(1, _NEW_VALUE)
            found = child.read(1)
            live.expect("what a child has", _NEW_VALUE if shared else VALUE + live.size, found)
            memory.touch(1, VALUE + live.size)
            expect_closed(live, child)
            child.fill(_NEW_VALUE)
            expect_marked(live, memory, (0, live.size))
            for writes in (False, True):
                expect_access(live, memory, 0, Came.SIGBUS, writes=writes)
            fault.read_write_protect(on=False)
            memory.expect_filled(_NEW_VALUE if shared else VALUE)


@STILL_CLOSED.case(
    "what is given back is not closed any more: a private page is zero, one of a file what the file has, and of a hole"
    " or behind an end that was there for a time zero; the page beside it stays closed",
    f"{DOC}, Scope of protection: MADV_DONTNEED, hole-punch, truncation; mm/hugetlb.c __unmap_hugepage_range()",
    since=SINCE,
    pages=2,
)
def given_back(live: Live) -> None:
    def cut(file: HugeFile, _memory: Memory) -> None:
        file.truncate(1)
        file.truncate(2)

    def drop(_file: HugeFile, memory: Memory) -> None:
        memory.advise(MADV_DONTNEED, 1, 1)

    ways: tuple[tuple[str, bool, int, Callable[[HugeFile, Memory], None]], ...] = (
        ("private, dropped", False, 0, drop),
        ("shared, dropped", True, VALUE + live.size, drop),
        ("a hole", True, 0, lambda file, _memory: file.punch(1, 1)),
        ("cut", True, 0, cut),
    )
    for name, shared, value, give_back in ways:
        file = new_memfd(live, pages=2)
        memory = fill(file.map(2) if shared else live.map(2, file.actor, noreserve=True))
        close(memory)
        give_back(file, memory)
        with live.about(name):
            expect_marked(live, memory, (0, live.size))
            expect_access(live, memory, live.size, writes=False, value=value)
            expect_access(live, memory, live.size, writes=True)
            expect_marked(live, memory, (0, live.size))
            expect_access(live, memory, 0, Came.SIGBUS, writes=False)
        file.actor.end()
        live.expect_pool(nr=2, free=2)


@STILL_CLOSED.case(
    "what a program is told of no more is open, each access of it is done: a page that is unregistered alone, all of"
    " them, and those of a userfaultfd that is closed; registered anew it is open still",
    f"{DOC}, Cleanup; mm/userfaultfd.c userfaultfd_clear_vma()",
    since=SINCE,
    pages=2,
)
def told_no_more(live: Live) -> None:
    for shared in (False, True):
        with filled_pages(live, 2, shared=shared) as memory:
            fault = close(memory)
            fault.unregister(1)
            expect_closed(live, memory, (0, live.size))
            expect_open_at_last(live, memory, fault)


@STILL_CLOSED.case(
    "what was closed is open where mremap(2) has moved it, each access of it is done, and finds what was there; the"
    " program was not asked to be told of it",
    f"{DOC}; mm/hugetlb.c move_huge_pte(); UFFD_FEATURE_EVENT_REMAP",
    since=SINCE,
    pages=2,
)
def moved(live: Live) -> None:
    for shared, closed in product((False, True), (1, 2)):
        with filled_pages(live, 2, shared=shared) as memory, live.about(f"{closed} closed"):
            close(memory).read_write_protect(on=closed == 2)
            there = memory.moved_to(room_for(memory.actor, 2, live.size))
            expect_closed(live, there)
            there.expect_filled(VALUE)


class StillClosed(LiveTest):
    def test_still_closed(self) -> None:
        self.run_area(STILL_CLOSED)
