"""Huge pages that a program closes, to be told who reads or writes them: userfaultfd(2), UFFDIO_RWPROTECT."""

import errno
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.closed_memory import (
    ASYNCHRONOUS,
    DOC,
    SINCE,
    VALUE,
    begin_access,
    close,
    end_access,
    expect_access,
    expect_accessed,
    expect_closed,
    expect_every_access_told,
    expect_marked,
    expect_told,
    fill,
    filled_pages,
    new_pages,
)
from hugepage_qa.cases.faults_of_the_kernel import expect_kernel_to_fault
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.pagemap_scan import Is, Region, scan
from hugepage_qa.cases.process_counters import process_status
from hugepage_qa.cases.reached_from_outside import word_read_by
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault, answer_to_api, protected_pages
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor_threads import Came

CLOSED = Area("userfaultfd/read-write-protection")


@CLOSED.case(
    "an access of a closed page, a read or a write, is told and waits; when the page is opened it goes on, and finds"
    " what was there, in its frame; what is not there is not closed",
    f"{DOC}, Scope of protection, Fault Handling; mm/hugetlb.c hugetlb_change_protection(), hugetlb_fault()",
    since=SINCE,
    pages=2,
)
def told(live: Live) -> None:
    for shared in (False, True):
        with filled_pages(live, 2, shared=shared, filled=1) as memory:
            fault = close(memory, waits=True)
            expect_marked(live, memory, (0, live.size))
            _expect_there(live, memory, 1)
            expect_access(live, memory, live.size, writes=False, value=0)
            fault.expect_nothing_told(live)
            expect_marked(live, memory, (0, live.size))
            expect_every_access_told(live, memory.part(0), fault, live.size)
            _expect_there(live, memory, 2)


@CLOSED.case(
    "where faults are asynchronous an access opens its page and no other, and nobody is told of it; pagemap and its"
    " scans tell which pages were accessed, read or written, and which not, until they are closed again",
    f"{DOC}, Fault Handling, Working-set detection with PAGEMAP_SCAN; mm/hugetlb.c hugetlb_fault();"
    " fs/proc/task_mmu.c pagemap_hugetlb_category(); Documentation/admin-guide/mm/pagemap.rst PAGE_IS_ACCESSED, bit 57",
    since=SINCE,
    pages=3,
)
def opened_by_accesses(live: Live) -> None:
    size = live.size
    for shared, writes in product((False, True), (False, True)):
        with filled_pages(live, 3, shared=shared, filled=2) as memory, live.about(f"writes {writes}"):
            fault = close(memory, ASYNCHRONOUS, waits=True)
            expect_accessed(live, memory)
            expect_marked(live, memory, (0, 2 * size))
            expect_access(live, memory, size + size // 2, writes=writes)
            expect_marked(live, memory, (0, size))
            expect_accessed(live, memory, (size, 2 * size))
            expect_access(live, memory, 2 * size, writes=writes, value=0)
            expect_accessed(live, memory, (size, 3 * size))
            untouched = scan(live, memory, Is.PRESENT, Is.PRESENT, without=Is.ACCESSED).regions
            live.expect("what is there and was not accessed", [Region(0, size, Is.PRESENT)], untouched)
            fault.read_write_protect(length=memory.length)
            expect_accessed(live, memory)
            expect_marked(live, memory, (0, 3 * size))
            fault.read_write_protect(on=False, length=memory.length)
            expect_accessed(live, memory, (0, 3 * size))
            fault.expect_nothing_told(live)
            memory.part(0, 2).expect_filled(VALUE)


@CLOSED.case(
    "pages are closed, and opened again, from the first one to the last one, however many they are, and no other",
    f"{DOC}, Protecting and Unprotecting; mm/userfaultfd.c mrwprotect_range()",
    since=SINCE,
    sizes=Sizes.BUDDY,
    pages=4,
)
def ranges(live: Live) -> None:
    for shared in (False, True):
        with filled_pages(live, 4, shared=shared) as memory:
            fault = close(memory)
            for on, first in product((True, False), range(4)):
                for end in range(first + 1, 5):
                    fault.read_write_protect(on=not on, length=memory.length)
                    fault.read_write_protect(first, on=on, length=(end - first) * live.size)
                    part = first * live.size, end * live.size
                    rest = (0, part[0]), (part[1], memory.length)
                    with live.about(f"pages {first} to {end - 1} closed {on}"):
                        expect_closed(live, memory, *([part] if on else [one for one in rest if one[0] < one[1]]))


@CLOSED.case(
    "UFFDIO_SET_MODE has faults be asynchronous, and who waits already goes on, told of or not; from the next one on,"
    " accesses of what is closed are told again",
    f"{DOC}, Runtime Mode Switching; mm/userfaultfd.c userfaultfd_set_mode()",
    since=SINCE,
    sizes=Sizes.BUDDY,
    pages=2,
)
def switched(live: Live) -> None:
    for shared in (False, True):
        with filled_pages(live, 2, shared=shared) as memory:
            fault = close(memory, waits=True)
            expect_told(live, memory, fault, 0, live.size, writes=False)
            begin_access(memory, live.size, writes=False)
            waiting = live.host.last_look(partial(fault.waiting, live), (1, 2).__eq__)
            live.expect("threads that are not told of yet, and all that wait", (1, 2), waiting)
            fault.set_mode(Feature.RWP_ASYNC, 0)
            came = [done.came for done in memory.actor.threads.stop(0)]
            if came != 2 * [Came.DONE]:
                live.fail("what came of those who wait", 2 * [Came.DONE], came)
            expect_accessed(live, memory, (0, memory.length))
            fault.read_write_protect(length=memory.length)
            expect_access(live, memory, 0, writes=True)
            expect_marked(live, memory, (live.size, memory.length))
            fault.set_mode(0, Feature.RWP_ASYNC)
            expect_told(live, memory, fault, live.size, live.size, writes=True)
            fault.read_write_protect(1, on=False)
            live.expect("what came of it", Came.DONE, end_access(live, memory, live.size, writes=True))
            memory.expect_filled(VALUE)


@CLOSED.case(
    "a program is told of accesses by the kernel for a process if it may, and they are EFAULT otherwise; where faults"
    " are asynchronous a read by another process opens the page",
    f"{DOC}; include/linux/mm.h gup_can_follow_protnone(); userfaultfd(2) UFFD_USER_MODE_ONLY",
    since=SINCE,
    sizes=Sizes.BUDDY,
    pages=1,
)
def accessed_by_the_kernel(live: Live) -> None:
    for shared in (False, True):
        with live.about(f"shared {shared}"):
            make = partial(_new_and_filled, live, shared)
            expect_kernel_to_fault(live, make, Mode.READ_WRITE_PROTECTED, Feature.RWP)
        with filled_pages(live, 1, shared=shared) as memory:
            Userfault(memory, Mode.READ_WRITE_PROTECTED, ASYNCHRONOUS, waits=True, of_kernel=True).read_write_protect()
            live.expect("word that another process reads", VALUE, word_read_by(live, live.actor(), memory, 0))
            expect_accessed(live, memory, (0, live.size))


@CLOSED.case(
    "that faults of closed memory are asynchronous has no effect on memory that is protected against writes, and the"
    " other way round: who writes to the one, or accesses the other, is told and does not go on",
    f"{DOC}, Setup; mm/userfaultfd.c userfaultfd_wp_async(), userfaultfd_rwp_async()",
    since=SINCE,
    pages=1,
)
def asynchronous_for_one_kind(live: Live) -> None:
    protected, closed = Feature.PAGEFAULT_FLAG_WP | Feature.WP_HUGETLBFS_SHMEM, Feature.RWP
    for shared in (False, True):
        with filled_pages(live, 1, shared=shared) as memory, live.about("protected against writes"):
            fault = Userfault(memory, Mode.WRITE_PROTECTED, protected | ASYNCHRONOUS)
            fault.write_protect()
            for writes, came in ((True, Came.SIGBUS), (False, Came.DONE)):
                expect_access(live, memory, 0, came, writes=writes)
            every = live.size // live.base_page
            live.expect("base pages that pagemap shows as protected", every, len(protected_pages(memory)))
            memory.expect_filled(VALUE)
        with filled_pages(live, 1, shared=shared) as memory, live.about("closed"):
            close(memory, closed | protected | Feature.WP_UNPOPULATED | Feature.WP_ASYNC)
            expect_closed(live, memory, (0, live.size))


@CLOSED.case(
    "asynchronous faults without others, memory that is closed both ways, what is registered otherwise, a part of a"
    " page, and modes that there are not are refused, and nothing is closed for them",
    f"{DOC}, Setup; mm/userfaultfd.c userfaultfd_api(), userfaultfd_register(), userfaultfd_rwprotect(),"
    " userfaultfd_set_mode()",
    since=SINCE,
    sizes=Sizes.BUDDY,
    pages=3,
)
def refused(live: Live) -> None:
    with filled_pages(live, 3, shared=False) as memory:
        fault = Userfault(memory.part(0, 2), Mode.READ_WRITE_PROTECTED, Feature.RWP | Feature.WP_HUGETLBFS_SHMEM)
        live.expect("whether UFFDIO_RWPROTECT is promised", True, fault.promises("rwprotect"))
        size, base = live.size, live.base_page
        calls = (
            (errno.EINVAL, 0, size, 4),
            (errno.EINVAL, 0, size, 3),
            (errno.EINVAL, 0, 0, 1),
            (errno.EINVAL, base, size, 1),
            (errno.EINVAL, 0, size + base, 1),
            (errno.EINVAL, 1, size, 1),
            (errno.ENOENT, 0, 3 * size, 1),
            (errno.ENOENT, 2 * size, size, 1),
        )
        for number, start, length, mode in calls:
            with live.about(f"{length} bytes from {start} on, mode {mode}"):
                live.expect_errno(number, fault.rwprotect, memory.address + start, length, mode)
        live.expect_errno(errno.EINVAL, fault.register, Mode.READ_WRITE_PROTECTED | Mode.WRITE_PROTECTED)
        live.expect_errno(errno.EBUSY, fault.register, Mode.MISSING)
        for enable, disable in ((Feature.RWP_ASYNC, Feature.RWP_ASYNC), (Feature.RWP, 0), (0, Feature.SIGBUS)):
            live.expect_errno(errno.EINVAL, fault.set_mode, enable, disable)
        expect_closed(live, memory)
        _expect_refused_without(live, memory)
        memory.expect_filled(VALUE)


def _expect_refused_without(live: Live, memory: Memory) -> None:
    """Expect a userfaultfd without the feature to refuse it, and the feature to be refused without the other one."""
    actor = memory.actor
    descriptor = actor.call("userfaultfd", 1)
    live.expect_errno(errno.EINVAL, answer_to_api, actor, descriptor, 0xAA, Feature.RWP_ASYNC)
    other = Userfault(memory.part(2), Mode.MISSING, Feature(0))
    live.expect("whether UFFDIO_RWPROTECT is promised", False, other.promises("rwprotect"))
    live.expect_errno(errno.EINVAL, other.register, Mode.READ_WRITE_PROTECTED)
    live.expect_errno(errno.ENOENT, other.read_write_protect)
    live.expect_errno(errno.EINVAL, other.set_mode, Feature.RWP_ASYNC, 0)


def _expect_there(live: Live, memory: Memory, pages: int) -> None:
    mapping = memory.smaps()
    # which of the two it is may be wrong for gigantic pages
    of_mapping = mapping.hugetlb
    live.expect("Private_Hugetlb and Shared_Hugetlb", pages * live.size, of_mapping)
    live.expect("HugetlbPages", pages * live.size, process_status(live, memory.actor).hugetlb_pages)


def _new_and_filled(live: Live, shared: bool) -> Memory:
    return fill(new_pages(live, 1, shared=shared))


class ReadWriteProtection(LiveTest):
    def test_read_write_protection(self) -> None:
        self.run_area(CLOSED)
