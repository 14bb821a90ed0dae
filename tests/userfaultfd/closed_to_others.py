"""Huge pages that a program has closed, while others act: children, who moves them, who reaches them from outside."""

import errno
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.closed_memory import (
    DOC,
    SINCE,
    close,
    expect_closed,
    fill,
    filled_pages,
    places,
)
from hugepage_qa.cases.closed_while_others_act import (
    DEBUGGERS,
    PINS,
    copy_into_hole,
    expect_child_closed,
    expect_closed_where_moved,
    expect_hole_filled,
    expect_own_copy,
    expect_reached,
    expect_woken_later,
)
from hugepage_qa.cases.forced_writes import need_forced_writes
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.pinned_pages import pinned
from hugepage_qa.cases.places import ordinary_memory
from hugepage_qa.cases.reached_from_outside import read_of_another
from hugepage_qa.cases.thp_memory import room_for
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault
from hugepage_qa.kernel.uapi import MADV_DONTNEED, PROT_NONE
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused
from hugepage_qa.sizes import GIB

CLOSED_TO_OTHERS = Area("userfaultfd/closed-to-others")


@CLOSED_TO_OTHERS.case(
    "what is closed at fork() is closed for a child, too, if its program asks to be told of the child, and so is the"
    " copy of what is pinned; each access is told on a descriptor of its own, and each is opened alone",
    f"{DOC}; UFFD_FEATURE_EVENT_FORK; mm/userfaultfd.c dup_userfaultfd(); mm/hugetlb.c copy_hugetlb_page_range(),"
    " hugetlb_install_folio()",
    since=SINCE,
    sizes=Sizes.BUDDY,
    pages=4,
)
def with_a_child_told_of(live: Live) -> None:
    for shared in (False, True):
        with filled_pages(live, 2, shared=shared, pool=4) as memory:
            expect_child_closed(live, memory, live.size, shared=shared)
    with filled_pages(live, 2, shared=False, pool=4) as memory, live.about("pinned"), pinned(live, memory):
        expect_child_closed(live, memory, live.size, shared=False)


@CLOSED_TO_OTHERS.case(
    "what is closed stays so where mremap(2) moves it, if its program asks to be told of that, and an access is told"
    " there",
    f"{DOC}; UFFD_FEATURE_EVENT_REMAP; mm/hugetlb.c move_huge_pte()",
    since=SINCE,
    pages=2,
)
def moved_and_told_of(live: Live) -> None:
    for shared in (False, True):
        with filled_pages(live, 2, shared=shared) as memory:
            expect_closed_where_moved(live, memory, room_for(memory.actor, 2, live.size), live.size)


@CLOSED_TO_OTHERS.case(
    "who waits for a closed page sleeps on when it is opened with UFFDIO_RWPROTECT_MODE_DONTWAKE, until it is woken",
    f"{DOC}, Protecting and Unprotecting; mm/userfaultfd.c userfaultfd_rwprotect()",
    since=SINCE,
    pages=2,
)
def woken_later(live: Live) -> None:
    for shared in (False, True):
        with filled_pages(live, 2, shared=shared) as memory:
            expect_woken_later(live, memory, live.size)


@CLOSED_TO_OTHERS.case(
    "what a program fills a hole of closed memory with is open, a copy or what the file has, and an access of a hole is"
    " told as one of a missing page, if of anything; what is beside it stays closed",
    f"{DOC}, Scope of protection; ioctl_userfaultfd(2) UFFDIO_COPY, UFFDIO_CONTINUE; mm/hugetlb.c"
    " hugetlb_mfill_atomic_pte()",
    since=SINCE,
    sizes=Sizes.BUDDY,
    pages=2,
)
def filled_holes(live: Live) -> None:
    for shared, goes_on in ((False, False), (True, False), (True, True)):
        with filled_pages(live, 2, shared=shared, filled=1) as memory, live.about(f"UFFDIO_CONTINUE {goes_on}"):
            if goes_on:
                fill(memory).advise(MADV_DONTNEED, 1, 1)
            asked = Mode.MINOR if goes_on else Mode.MISSING
            features = Feature.RWP | (Feature.MINOR_HUGETLBFS if goes_on else Feature.MISSING_HUGETLBFS)
            fault = Userfault(memory, asked | Mode.READ_WRITE_PROTECTED, features)
            copied = partial(copy_into_hole, live, memory, fault)
            fill_hole = fault.handling(memory.part(1)).go_on if goes_on else copied
            expect_hole_filled(live, memory, fault, fill_hole)


@CLOSED_TO_OTHERS.case(
    "what pins a closed page, O_DIRECT, vmsplice(2) or io_uring(7), is EFAULT for it if the program is told of accesses"
    " by the process itself alone; where faults are asynchronous the page is opened, and what is carried is right",
    f"{DOC}; include/linux/mm.h gup_can_follow_protnone(); mm/gup.c follow_huge_pmd(), gup_fast_pmd_leaf()",
    since=SINCE,
    sizes=Sizes.BUDDY,
    pages=2,
)
def pinned_while_closed(live: Live) -> None:
    for shared, way in product((False, True), PINS):
        with filled_pages(live, 2, shared=shared) as memory, live.about(way.name):
            expect_reached(live, memory, way, live.size)


@CLOSED_TO_OTHERS.case(
    "what a debugger reads or writes by /proc/PID/mem is EIO for a closed page if the program is told of accesses by"
    " the process itself alone; where faults are asynchronous it opens the page, and has what is there",
    f"{DOC}; fs/proc/base.c mem_rw(); include/linux/mm.h gup_can_follow_protnone()",
    since=SINCE,
    sizes=Sizes.BUDDY,
    pages=2,
)
def debugged_while_closed(live: Live) -> None:
    need_forced_writes(live)
    for shared, way in product((False, True), DEBUGGERS):
        with filled_pages(live, 2, shared=shared) as memory, live.about(way.name):
            expect_reached(live, memory, way, live.size)


@CLOSED_TO_OTHERS.case(
    "who reads the memory of another process by process_vm_readv(2) gets nothing of a closed page, EFAULT, if the"
    " program is told of accesses by the process itself alone, and what is there once it is open",
    f"{DOC}; process_vm_readv(2) EFAULT; mm/gup.c follow_huge_pud(), follow_huge_pmd()",
    since=SINCE,
    pages=1,
)
def read_by_another_process(live: Live) -> None:
    for shared in (False, True):
        with filled_pages(live, 1, shared=shared) as memory:
            fault = close(memory)
            # a PUD has it
            known = {Quirk.CLOSED_GIGANTIC_PAGE_READ: (WORD, None)} if live.size == GIB else {}
            for place in places(live.size):
                found = _read_by_another(live, memory, place)
                live.expect(f"bytes read at {place:#x}, and its error", (0, errno.EFAULT), found, known)
            expect_closed(live, memory, (0, live.size))
            fault.read_write_protect(on=False)
            for place in places(live.size):
                found = _read_by_another(live, memory, place)
                live.expect(f"bytes read at {place:#x}, and its error", (WORD, None), found)


@CLOSED_TO_OTHERS.case(
    "what is written into closed pages of a private mapping of a file, once they are open, is its own copy, and what"
    " the file has stays; such copies are closed as any page; what nobody may access is not registered to be closed",
    f"{DOC}, Setup; mmap(2) MAP_PRIVATE; mm/hugetlb.c hugetlb_fault(), hugetlb_wp(); mm/userfaultfd.c"
    " userfaultfd_register()",
    since=SINCE,
    sizes=Sizes.BUDDY,
    pages=4,
)
def private_mapping(live: Live) -> None:
    file = new_memfd(live, pages=2)
    shared = fill(file.map(2))
    private = file.map(2, shared=False)
    private.protect(PROT_NONE)
    live.expect_errno(errno.EINVAL, Userfault, private, Mode.READ_WRITE_PROTECTED, Feature.RWP)
    private.protect(READ_WRITE)
    expect_own_copy(live, shared, private)
    file.actor.end()
    live.expect_pool(nr=4, free=4)


def _read_by_another(live: Live, memory: Memory, place: int) -> tuple[int, int | None]:
    """Return how many bytes of a word another process reads, and the error of that."""
    reader = live.actor()
    buffer = ordinary_memory(live, reader, 1).address
    local, remote = (live.host.uapi.pack("2Q", at, WORD) for at in (buffer, memory.address + place))
    try:
        return read_of_another(live, reader, memory.actor.pid, local, remote), None
    except Refused as refusal:
        return 0, refusal.errno
    finally:
        reader.end()


class ClosedToOthers(LiveTest):
    def test_closed_to_others(self) -> None:
        self.run_area(CLOSED_TO_OTHERS)
