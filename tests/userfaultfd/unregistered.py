"""Memory whose faults a program handles no longer (UFFDIO_UNREGISTER), and what cannot be registered at all."""

import errno
import mmap
import os
import signal

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import expect_no_shortage, with_blocks
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.madv_collapse import collapse_memory
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.thp_memory import anon_huge_pages, map_aligned, pmd_size
from hugepage_qa.cases.thp_policy import advised, base_pages, huge_pages, set_policy
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, shared_base_pages, shared_huge_pages
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault, protected_pages
from hugepage_qa.kernel.uapi import AT_FDCWD, MADV_DONTNEED
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor_threads import Came
from hugepage_qa.version import KernelVersion

UNREGISTERED = Area("userfaultfd/unregistered")

DOC = "Documentation/admin-guide/mm/userfaultfd.rst"
UNREGISTER = f"ioctl_userfaultfd(2) UFFDIO_UNREGISTER; {DOC}; fs/userfaultfd.c userfaultfd_unregister()"
REGISTER = "ioctl_userfaultfd(2) UFFDIO_REGISTER; fs/userfaultfd.c userfaultfd_register()"
#: 90e7e7f5ef3f: MADV_DONTNEED of memory from pools
_GIVEN_BACK_SINCE = KernelVersion(5, 18)
#: of protection in memory from pools and in shared memory
PROTECTED_SINCE = "5.19"
_VALUE, _NEW_VALUE = 7, 77
#: what smaps has among VmFlags of memory that is registered, for each mode
_FLAGS = frozenset(("um", "uw", "ui"))


@UNREGISTERED.case(
    "what a program fills no more is zero at the next touch, out of the reservation, private or shared; a page that it"
    " filled stays, and of the rest it is still asked",
    UNREGISTER,
    pages=4,
)
def missing(live: Live) -> None:
    for shared in (False, True):
        source = live.map(1)
        source.fill(_VALUE)
        memory = live.map(3, source.actor, shared=shared)
        fault = Userfault(memory, Mode.MISSING, Feature.MISSING_HUGETLBFS)
        fault.copy(source)
        fault.unregister(page=1, length=live.size)
        _expect_flags(live, memory, {0: {"um"}, 1: set(), 2: {"um"}})
        memory.expect_zero(1)
        live.expect_signal(signal.SIGBUS, memory.touch, 2)
        live.expect_pool(nr=4, free=1, resv=1)
        fault.unregister()
        _expect_flags(live, memory, {page: set() for page in range(3)})
        memory.expect_zero(2)
        live.expect_pool(nr=4, free=0)
        memory.expect_filled(_VALUE, 0, 1)
        if live.kernel_version >= _GIVEN_BACK_SINCE:
            # it is zero, too: nobody fills it
            memory.advise(MADV_DONTNEED, 0, 1)
            live.expect("what is there after MADV_DONTNEED", _VALUE if shared else 0, memory.read())
        memory.actor.end()
        live.expect_pool(nr=4, free=4)


@UNREGISTERED.case(
    "what a program protects no more is written, a page that was not there when it was protected, too, private or"
    " shared; what it still protects is not",
    f"{UNREGISTER}; mm/userfaultfd.c uffd_wp_range(); mm/hugetlb.c hugetlb_change_protection()",
    since=PROTECTED_SINCE,
    pages=3,
)
def protected(live: Live) -> None:
    for shared in (False, True):
        memory = live.map(3, shared=shared)
        for page in (0, 1):
            memory.touch(page, _VALUE)
        fault = Userfault(memory, Mode.WRITE_PROTECTED, Feature.WP_HUGETLBFS_SHMEM)
        for page in range(3):
            fault.write_protect(page)
        live.expect_signal(signal.SIGBUS, memory.touch, 1, _NEW_VALUE)
        fault.unregister(page=1)
        _expect_flags(live, memory, {0: {"uw"}, 1: set(), 2: set()})
        _expect_protected(live, memory, live.size)
        live.expect("what was there", _VALUE, memory.read(1))
        for page in (1, 2):
            memory.touch(page, _NEW_VALUE)
        live.expect_signal(signal.SIGBUS, memory.touch, 0, _NEW_VALUE)
        fault.unregister()
        _expect_protected(live, memory, 0)
        live.expect("what was there", _VALUE, memory.read(0))
        memory.touch(0, _NEW_VALUE)
        # registered anew, nothing is protected before the program says so
        fault.register(Mode.WRITE_PROTECTED)
        memory.fill(_NEW_VALUE)
        memory.expect_filled(_NEW_VALUE)
        live.expect_pool(nr=3, free=0)
        memory.actor.end()
        live.expect_pool(nr=3, free=3)


@UNREGISTERED.case(
    "a thread that waits for a program to fill a page goes on when the program fills it no more, and finds zero",
    f"{UNREGISTER}, wake_userfault()",
    sizes=Sizes.BUDDY,
    pages=1,
)
def waited_for(live: Live) -> None:
    for shared in (False, True):
        _expect_woken(live, live.map(1, shared=shared), Feature.MISSING_HUGETLBFS)
        live.expect_pool(nr=1, free=1)


@UNREGISTERED.case(
    "a thread that waits for a program to fill a huge page, or shared memory, goes on when the program fills it no"
    " more, and finds zero",
    f"{UNREGISTER}, wake_userfault()",
    sizes=Sizes.ONCE,
)
def waited_for_a_huge_page(live: Live) -> None:
    set_policy(live, "madvise")
    _expect_woken(live, advised(live), Feature(0))
    _expect_woken(live, map_aligned(live, 1, pmd_size(live), shared=True), Feature.MISSING_SHMEM)


@UNREGISTERED.case(
    "what cannot be unregistered is refused, and the rest stays protected: a part of a page, an address within one,"
    " what is not mapped; memory that is not registered is no error",
    f"{UNREGISTER}; ioctl_userfaultfd(2) EINVAL",
    since=PROTECTED_SINCE,
    pages=2,
)
def refused(live: Live) -> None:
    memory = live.map(2, shared=True)
    memory.fill(_VALUE)
    fault = Userfault(memory, Mode.WRITE_PROTECTED, Feature.WP_HUGETLBFS_SHMEM)
    for page in (0, 1):
        fault.write_protect(page)
    page = live.base_page
    for offset, length in ((page, live.size), (live.size // 2, live.size // 2), (1, live.size), (0, page - 1), (0, 0)):
        live.expect_errno(errno.EINVAL, fault.unregister, offset=offset, length=length)
        _expect_flags(live, memory, {0: {"uw"}, 1: {"uw"}})
        for number in (0, 1):
            live.expect_signal(signal.SIGBUS, memory.touch, number, _NEW_VALUE)
    memory.expect_filled(_VALUE)
    other = live.map(1, memory.actor, noreserve=True)
    fault.handling(other).unregister()
    other.unmap()
    live.expect_errno(errno.EINVAL, fault.handling(other).unregister)
    live.expect_pool(nr=2, free=0)


@UNREGISTERED.case(
    "a range that ends within a page is not unregistered, EINVAL, and the page stays protected, private or shared",
    f"{UNREGISTER}; ioctl_userfaultfd(2) EINVAL; mm/hugetlb.c hugetlb_vm_op_split()",
    since=PROTECTED_SINCE,
    pages=1,
)
def ends_within_a_page(live: Live) -> None:
    every = live.size // live.base_page
    known = {Quirk.UNREGISTER_ENDS_PROTECTION: list[int]()}
    for shared in (False, True):
        memory = live.map(1, shared=shared)
        memory.fill(_VALUE)
        fault = Userfault(memory, Mode.WRITE_PROTECTED, Feature.WP_HUGETLBFS_SHMEM)
        fault.write_protect()
        live.expect_errno(errno.EINVAL, fault.unregister, length=live.size // 2)
        live.expect("base pages that are protected", [*range(every)], protected_pages(memory), known)
        _expect_flags(live, memory, {0: {"uw"}})
        live.expect_signal(signal.SIGBUS, memory.touch, 0, _NEW_VALUE)
        memory.expect_filled(_VALUE)
        memory.actor.end()


@UNREGISTERED.case(
    "a huge page that a program protects no more is written and stays huge, and one of which a part is protected no"
    " more is written there alone",
    f"{UNREGISTER}; mm/huge_memory.c change_huge_pmd()",
    since=PROTECTED_SINCE,
    sizes=Sizes.ONCE,
)
def huge_page_protected(live: Live) -> None:
    let_only_pmd_inherit(live)
    for make in (huge_pages, base_pages, shared_huge_pages, shared_base_pages):
        with live.about(make.__name__.replace("_", " ")):
            memory = make(live, 3)
            fault = Userfault(memory, Mode.WRITE_PROTECTED, Feature.PAGEFAULT_FLAG_WP | Feature.WP_HUGETLBFS_SHMEM)
            for page in range(3):
                fault.write_protect(page)
            half = memory.size // 2
            fault.unregister(page=1, offset=half)
            left = memory.size + half
            _expect_protected(live, memory, left)
            for offset in (0, memory.size, left - WORD):
                live.expect_signal(signal.SIGBUS, memory.actor.write, memory.address + offset, _NEW_VALUE)
            memory.expect_filled()
            memory.actor.fill(memory.address + left, memory.length - left, WORD, _NEW_VALUE)
            fault.unregister()
            _expect_protected(live, memory, 0)
            live.expect("words that changed", 0, memory.wrong(0, left))
            memory.fill(_NEW_VALUE)
            memory.expect_filled(_NEW_VALUE)
            if make is huge_pages:
                # the one in the middle is mapped in parts; shared ones all are, as soon as they are protected
                live.expect("AnonHugePages", 2 * memory.size, anon_huge_pages(memory))
            memory.actor.end()


@UNREGISTERED.case(
    "memory that a program fills no more gets a huge page at the next touch, and MADV_COLLAPSE makes one of what it"
    " filled; what it still fills gets none",
    f"{UNREGISTER}; mm/huge_memory.c do_huge_pmd_anonymous_page(); madvise(2) MADV_COLLAPSE",
    since="6.1",
    sizes=Sizes.ONCE,
)
def huge_page_missing(live: Live) -> None:
    set_policy(live, "madvise")
    source = base_pages(live)
    memory = advised(live, 3, actor=source.actor)
    fault = Userfault(memory, Mode.MISSING, Feature(0))
    fault.copy(source)
    fault.unregister(page=0, length=2 * memory.size)
    memory.expect_huge(0, about="before")
    first = Memory(live, memory.actor, memory.address, 1, memory.size)
    collapse_memory(live, first)
    with_blocks(live, memory.size, 2)
    # a read would map the huge zero page
    memory.touch(1, 0)
    memory.expect_zero(1)
    _expect_huge(live, memory, 2)
    live.expect_signal(signal.SIGBUS, memory.touch, 2)
    fault.unregister()
    memory.touch(2, 0)
    memory.expect_zero(2)
    # nothing distinguishes them any more: they are one mapping again
    live.expect("start of the mapping that has the last page", memory.smaps(0).start, memory.smaps(2).start)
    _expect_huge(live, memory, 3)
    memory.expect_filled(1, 0, 1)


def _expect_huge(live: Live, memory: Memory, pages: int) -> None:
    """Expect ``pages`` of the first mapping to be huge. Raises CannotRun where memory is too fragmented for them."""
    found = memory.smaps().anon_huge_pages
    if found != pages * memory.size:
        expect_no_shortage(live, memory.size, pages)
    live.expect("AnonHugePages", pages * memory.size, found)


@UNREGISTERED.case(
    "a part of a mapping is registered alone: beside it pages come as always, and the whole of it can be registered"
    " then",
    REGISTER,
    pages=4,
)
def part_of_a_mapping(live: Live) -> None:
    source = live.map(1)
    source.fill(_VALUE)
    memory = live.map(3, source.actor)
    middle = memory.part(1)
    fault = Userfault(middle, Mode.MISSING, Feature.MISSING_HUGETLBFS)
    _expect_flags(live, memory, {0: set(), 1: {"um"}, 2: set()})
    memory.expect_zero(0)
    live.expect_signal(signal.SIGBUS, memory.touch, 1)
    live.expect_pool(nr=4, free=2, resv=2)
    # a page that is not registered cannot be filled
    live.expect_errno(errno.ENOENT, fault.handling(memory).copy, source, 2)
    # the same once more, and then all of it
    fault.register(Mode.MISSING)
    fault.handling(memory).register(Mode.MISSING)
    _expect_flags(live, memory, {page: {"um"} for page in range(3)})
    live.expect_signal(signal.SIGBUS, memory.touch, 2)
    fault.copy(source)
    live.expect("what was copied", 0, memory.actor.check(memory.at(1), live.size, memory.step, _VALUE))
    live.expect_pool(nr=4, free=1, resv=1)


@UNREGISTERED.case(
    "what cannot be registered is refused, and nothing of it is registered: no mode and an unknown one, memory that"
    " another userfaultfd has, a file that may not be written, a part of a page",
    f"{REGISTER}: EINVAL, EBUSY, EPERM",
    pages=2,
)
def not_registered(live: Live) -> None:
    file = new_memfd(live, pages=2)
    memory = file.map(2)
    actor = memory.actor
    fault = Userfault(memory, Mode.MISSING, Feature.MISSING_HUGETLBFS)
    fault.unregister(page=1)
    second = memory.part(1)
    for mode in (0, 8, 1 << 63, Mode.MISSING | 8):
        live.expect_errno(errno.EINVAL, fault.handling(second).register, mode)
    live.expect_errno(errno.EINVAL, fault.handling(_of_length(live, second, live.size // 2)).register, Mode.MISSING)
    inside = Memory(live, actor, memory.at(1) + live.base_page, 1, live.size - live.base_page)
    live.expect_errno(errno.EINVAL, fault.handling(inside).register, Mode.MISSING)
    # the first page of the two is another's
    live.expect_errno(errno.EBUSY, Userfault, memory, Mode.MISSING, Feature.MISSING_HUGETLBFS)
    reading = actor.call("openat", AT_FDCWD, f"/proc/self/fd/{file.descriptor}", os.O_RDONLY, 0)
    read_only = live.map(1, actor, shared=True, fd=reading, prot=mmap.PROT_READ)
    live.expect_errno(errno.EPERM, fault.handling(read_only).register, Mode.MISSING)
    for one, flags in ((memory, {"um"}), (second, set[str]()), (read_only, set[str]())):
        live.expect("flags of registered memory", flags, one.smaps().flags & _FLAGS)
    second.expect_zero()
    live.expect_pool(nr=2, free=1, resv=1)


def _of_length(live: Live, memory: Memory, length: int) -> Memory:
    return Memory(live, memory.actor, memory.address, 1, length)


def _expect_flags(live: Live, memory: Memory, wanted: dict[int, set[str]]) -> None:
    """Expect smaps to show these modes of the mapping that has each page."""
    live.expect("modes of each page", wanted, {page: set(memory.smaps(page).flags & _FLAGS) for page in wanted})


def _expect_protected(live: Live, memory: Memory, length: int) -> None:
    """Expect the first ``length`` bytes to be protected, and no more.

    Raises Failed: a write to what is protected, and no longer registered, would not end.
    """
    wanted, found = [*range(length // live.base_page)], protected_pages(memory)
    if found != wanted:
        live.fail("base pages that are protected", wanted, found)


def _expect_woken(live: Live, memory: Memory, features: Feature) -> None:
    """Expect a thread that waits in the middle of the first page to go on when ``memory`` is no longer registered."""
    fault = Userfault(memory, Mode.MISSING, features, waits=True)
    offset = memory.size // 2
    memory.actor.threads.watch(memory.address + offset, WORD, WORD, 0)
    fault.await_fault(live)
    fault.unregister()
    (access,) = memory.actor.threads.stop(0)
    if access.came != Came.DONE:
        # who waits on is waited for again each time, for a minute
        live.fail("what came of the access", Came.DONE, access.came)
    memory.expect_zero()
    memory.actor.end()


class Unregistered(LiveTest):
    def test_unregistered(self) -> None:
        self.run_area(UNREGISTERED)
