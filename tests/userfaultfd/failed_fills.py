"""userfaultfd(2) that cannot fill a page after it has begun: no count changes, and what is right goes on afterwards."""

import errno
import mmap
import signal
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault
from hugepage_qa.kernel.uapi import MAP_FIXED_NOREPLACE
from hugepage_qa.oracle.pool.pool_kernel import PoolKernel
from hugepage_qa.plugins.avocado_test import LiveTest

USERFAULT_ERRORS = Area("userfaultfd/failed-fills")
COPY = "Documentation/admin-guide/mm/userfaultfd.rst UFFDIO_COPY; mm/hugetlb.c hugetlb_mfill_atomic_pte()"
#: huge pages of a file
_OF_FILE = 3


@USERFAULT_ERRORS.case(
    "memory that was not touched before is held by another page while it is copied: where the pool's last one holds it"
    " nothing is filled, ENOMEM, and no count changes; from the same memory it is, once touched",
    COPY,
    since="5.14",  # 8cc5fcbb5be8: before, the page itself held it
    pages=2,
)
def last_page_holds_what_is_copied(live: Live) -> None:
    written = new_memfd(live)
    written.map(1).fill(7)
    for shared in (False, True):
        source = written.map(1)
        memory = live.map(1, written.actor, shared=shared, noreserve=True)
        fault = Userfault(memory, Mode.MISSING, Feature.MISSING_HUGETLBFS)
        live.expect_errno(errno.ENOMEM, fault.copy, source)
        live.expect_pool(nr=2, free=1)
        live.expect_signal(signal.SIGBUS, memory.read)
        source.expect_filled(7)
        _expect_filled_from(live, fault, memory, source)


def _expect_filled_from(live: Live, fault: Userfault, memory: Memory, source: Memory) -> None:
    """Expect ``source`` to be copied to the last page of two, and both mappings to leave what is not the file's."""
    live.expect("bytes copied", live.size, fault.copy(source))
    live.expect_pool(nr=2, free=0)
    memory.expect_filled(7)
    memory.unmap()
    source.unmap()
    live.expect_pool(nr=2, free=1)


@USERFAULT_ERRORS.case(
    "memory that was not touched before fills the last page of a pool, which is reserved: what holds it meanwhile is no"
    " page of the pool, and goes",
    f"{COPY}, alloc_huge_page_vma(), alloc_migrate_huge_page()",
    sizes=Sizes.BUDDY,
    since="5.14",  # before, the reservation of private memory was given up on purpose
    pages=2,
)
def reserved_page_is_not_held(live: Live) -> None:
    # the memory for one more is there
    live.reserve(3)
    live.set_nr(2)
    written = new_memfd(live)
    written.map(1).fill(7)
    for shared in (False, True):
        source = written.map(1)
        memory = live.map(1, written.actor, shared=shared)
        live.expect_pool(nr=2, free=1, resv=1)
        fault = Userfault(memory, Mode.MISSING, Feature.MISSING_HUGETLBFS)
        _expect_filled_from(live, fault, memory, source)


@USERFAULT_ERRORS.case(
    "a copy that cannot read its source, EFAULT, leaves as much reserved as before it, however often it fails: nothing"
    " where the page that used the reservation was given back, or where none was made; the page that is filled then,"
    " by a copy or a write, takes what is reserved and no more",
    f"{COPY}, restore_reserve_on_error()",
    since="5.18",  # MADV_DONTNEED of huge pages
    pages=3,
)
def fails_where_nothing_is_reserved(live: Live) -> None:
    source = live.map(1)
    source.fill(7)
    for shared, noreserve, copies in product((False, True), (False, True), (False, True)):
        file = new_memfd(live, source.actor, pages=1)
        memory = file.map(1, shared=shared, noreserve=noreserve)
        memory.touch()
        if shared:
            file.punch(1)
        else:
            memory.advise(mmap.MADV_DONTNEED)
        restored = not shared and not noreserve and PoolKernel(live.kernel_version).unmapping_restores_reservation
        with live.about(f"shared {shared}, MAP_NORESERVE {noreserve}, filled by a copy {copies}"):
            _fail_and_fill(live, source, memory, copies=copies, reserved=int(restored))
        memory.unmap()
        file.truncate(0)
        live.expect_pool(nr=3, free=2)


def _fail_and_fill(live: Live, source: Memory, memory: Memory, *, copies: bool, reserved: int) -> None:
    """Expect copies to ``memory`` to fail and change nothing of the pool of 3, and a page of it to be used then."""
    fault = Userfault(memory, Mode.MISSING, Feature.MISSING_HUGETLBFS)
    source.protect(0)
    for _time in range(2):
        live.expect_errno(errno.EFAULT, fault.copy, source)
        live.expect_pool(nr=3, free=2, resv=reserved)
    source.protect(READ_WRITE)
    if copies:
        live.expect("bytes copied", live.size, fault.copy(source))
    else:
        fault.unregister()
        memory.fill(7)
    memory.expect_filled(7)
    live.expect_pool(nr=3, free=1)


@USERFAULT_ERRORS.case(
    "what goes beyond the memory that is registered, and memory in its place since, is not filled: ENOENT, and no count"
    " changes; what is left of it is",
    f"{COPY}; ioctl_userfaultfd(2) ENOENT; mm/userfaultfd.c find_dst_vma()",
    pages=4,
)
def copy_beyond_the_memory(live: Live) -> None:
    source = live.map(1)
    source.fill(7)
    for shared in (False, True):
        memory = live.map(3, source.actor, shared=shared)
        fault = Userfault(memory, Mode.MISSING, Feature.MISSING_HUGETLBFS)
        memory.unmap(1, 2)
        live.map(1, source.actor, noreserve=True, at=memory.at(2), flags=MAP_FIXED_NOREPLACE)
        kept = 2 if shared else 0  # a file keeps what is reserved in it
        for page, length in ((0, 2 * live.size), (1, live.size), (2, live.size)):
            live.expect_errno(errno.ENOENT, fault.copy, source, page, length=length)
        live.expect_pool(nr=4, free=3, resv=1 + kept)
        live.expect("bytes copied", live.size, fault.copy(source))
        memory.expect_filled(7, pages=1)
        live.expect_pool(nr=4, free=2, resv=kept)
        memory.unmap(0, 1)
        live.expect_pool(nr=4, free=3)


@USERFAULT_ERRORS.case(
    "what has a page is not filled once more by a copy, EEXIST: no count changes, nor what is in it, and when it is"
    " gone nothing is reserved",
    f"{COPY}; ioctl_userfaultfd(2) EEXIST; mm/hugetlb.c hugetlb_mfill_atomic_pte()",
    pages=3,
)
def filled_once_more(live: Live) -> None:
    file = new_memfd(live)
    source = live.map(1, file.actor)
    source.fill(7)
    for shared in (True, False):
        with live.about("shared" if shared else "private"):
            file.truncate(1)
            memory = file.map(1) if shared else live.map(1, file.actor)
            memory.fill(8)
            fault = Userfault(memory, Mode.MISSING, Feature.MISSING_HUGETLBFS)
            for _time in range(2):
                live.expect_errno(errno.EEXIST, fault.copy, source)
            memory.expect_filled(8)
            live.expect_pool(nr=3, free=1)
            memory.unmap()
            file.truncate(0)
            live.expect_pool(nr=3, free=2)


@USERFAULT_ERRORS.case(
    "which page of its file a shared mapping fills is counted from where the mapping begins: where the file has that"
    " page it is not filled, EEXIST, and where it has not, it is, whatever other pages the file has",
    f"{COPY}, hugetlbfs_pagecache_present()",
    pages=_OF_FILE + 1,
)
def filled_from_within_the_file(live: Live) -> None:
    source = live.map(1)
    source.fill(7)
    for first, present in product((1,) if live.is_gigantic else range(_OF_FILE), range(_OF_FILE)):
        file = new_memfd(live, source.actor, pages=_OF_FILE)
        whole = file.map(_OF_FILE)
        whole.touch(present, 5)
        memory = file.map(_OF_FILE - first, first=first)
        fault = Userfault(memory, Mode.MISSING, Feature.MISSING_HUGETLBFS)
        for page in range(_OF_FILE - first):
            with live.about(f"a mapping from page {first} on, page {present} is there: page {page} of it"):
                if first + page == present:
                    live.expect_errno(errno.EEXIST, fault.copy, source, page)
                else:
                    live.expect_success(fault.copy, source, page)
                    live.expect("what the file has there", source.read(), whole.read(first + page))
        live.expect("the page that was there", 5, whole.read(present))
        used = len({present, *range(first, _OF_FILE)})
        live.expect_pool(nr=_OF_FILE + 1, free=_OF_FILE - used, resv=_OF_FILE - used)
        file.truncate(0)
        live.expect_pool(nr=_OF_FILE + 1, free=_OF_FILE)


@USERFAULT_ERRORS.case(
    "what has a page is not given the page of its file once more, EEXIST: no count changes, nor what is in it, and when"
    " it is gone nothing is reserved",
    "Documentation/admin-guide/mm/userfaultfd.rst UFFDIO_CONTINUE; ioctl_userfaultfd(2) EEXIST; mm/hugetlb.c"
    " hugetlb_mfill_atomic_pte()",
    since="5.13",  # UFFD_FEATURE_MINOR_HUGETLBFS
    pages=1,
)
def gone_on_once_more(live: Live) -> None:
    file = new_memfd(live, pages=1)
    memory = file.map(1)
    memory.fill(8)
    fault = Userfault(memory, Mode.MINOR, Feature.MINOR_HUGETLBFS)
    for _time in range(2):
        live.expect_errno(errno.EEXIST, fault.go_on)
    memory.expect_filled(8)
    live.expect_pool(nr=1, free=0)
    memory.unmap()
    file.truncate(0)
    live.expect_pool(nr=1, free=1)


class UserfaultErrors(LiveTest):
    def test_errors(self) -> None:
        self.run_area(USERFAULT_ERRORS)
