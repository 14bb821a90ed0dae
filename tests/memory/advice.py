"""madvise(2) on huge pages."""

import errno
import mmap
import signal
from itertools import product

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.hugetlb_of_a_process import forked
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.locked_bytes import LOCKED
from hugepage_qa.kernel.ksm import has_ksm
from hugepage_qa.kernel.uapi import (
    MADV_COLD,
    MADV_COLLAPSE,
    MADV_DONTNEED,
    MADV_DONTNEED_LOCKED,
    MADV_GUARD_INSTALL,
    MADV_MERGEABLE,
    MADV_PAGEOUT,
    MADV_POPULATE_READ,
    MADV_POPULATE_WRITE,
    MADV_WILLNEED,
    MADV_WIPEONFORK,
    MLOCK_ONFAULT,
    PROT_NONE,
)
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.version import KernelVersion

ADVICE = Area("memory/advice")
DONTNEED = "madvise(2) MADV_DONTNEED, MADV_DONTNEED_LOCKED; mm/madvise.c madvise_dontneed_free_valid_vma()"
REMOVE = "madvise(2) MADV_REMOVE; mm/madvise.c madvise_remove()"
POPULATE = "madvise(2) MADV_POPULATE_READ, MADV_POPULATE_WRITE"
#: 90e7e7f5ef3f, 9457056ac426
DONTNEED_SINCE = "5.18"
#: 5.10 does not take it of another process, 6.1 does
_WILLNEED_OF_OTHERS_SINCE = KernelVersion(6, 1)
#: which do the same to pages that are not locked, and pages of hugetlb never are (mm/mlock.c mlock_fixup())
_GIVE_BACK = (MADV_DONTNEED, MADV_DONTNEED_LOCKED)


@ADVICE.case("MADV_DONTNEED gives private pages back, they are zero next time", DONTNEED, since=DONTNEED_SINCE, pages=2)
def dontneed_of_private_pages(live: Live) -> None:
    for advice in _GIVE_BACK:
        memory = live.map(2)
        memory.touch(0, 1)
        memory.touch(1, 2)
        memory.advise(advice, 1, 1)
        live.expect("free pages", 1, live.pool().free)
        memory.expect_zero(1)
        live.expect_pool(nr=2, free=0)
        live.expect("the page beside it", 1, memory.read(0))
        memory.unmap()
        live.expect_pool(nr=2, free=2)


@ADVICE.case(
    "MADV_DONTNEED gives pages back and not the reservation: nobody else can have them",
    f"{DONTNEED}; mm/hugetlb.c __unmap_hugepage_range() (df7a6d1f6405)",
    since="6.10",
    pages=2,
)
def dontneed_keeps_the_reservation(live: Live) -> None:
    memory = live.map(2)
    memory.touch(0)
    memory.touch(1)
    memory.advise(mmap.MADV_DONTNEED)
    live.expect_pool(nr=2, free=2, resv=2)
    live.expect_errno(errno.ENOMEM, live.map, 1)
    memory.touch(0)
    live.expect_pool(nr=2, free=1, resv=1)
    memory.unmap()
    live.expect_pool(nr=2, free=2)


@ADVICE.case(
    "MADV_DONTNEED gives private copies of a file back: what the file holds is seen again, and it holds what it held",
    DONTNEED,
    since=DONTNEED_SINCE,
    pages=4,
)
def dontneed_of_private_copies(live: Live) -> None:
    file = new_memfd(live)
    shared = file.map(2)
    shared.fill(5)
    private = file.map(2, shared=False)
    private.expect_filled(5)
    live.expect_pool(nr=4, free=2, resv=2)
    # no copies yet: there is nothing to give back
    private.advise(mmap.MADV_DONTNEED)
    live.expect_pool(nr=4, free=2, resv=2)
    private.fill(7)
    live.expect_pool(nr=4, free=0)
    shared.advise(mmap.MADV_DONTNEED)
    live.expect_pool(nr=4, free=0)
    private.advise(mmap.MADV_DONTNEED, 1, 1)
    live.expect("free pages", 1, live.pool().free)
    private.expect_filled(7, pages=1)
    private.expect_filled(5, first=1)
    live.expect("free pages when the page of the file is seen", 1, live.pool().free)
    private.touch(1, 8)
    live.expect_pool(nr=4, free=0)
    shared.expect_filled(5)


@ADVICE.case(
    "MADV_REMOVE and a hole give the pages of a file back, and the private copies of them: both are zero next time",
    # right it is not: private copies of other files stay
    f"{REMOVE}; fs/hugetlbfs/inode.c hugetlbfs_punch_hole(); tools/testing/selftests/mm/hugetlb-madvise.c",
    pages=4,
)
def removed_with_private_copies(live: Live) -> None:
    file = new_memfd(live)
    shared = file.map(2)
    shared.fill(5)
    private = file.map(2, shared=False)
    private.fill(7)
    live.expect_errno(errno.EACCES, private.advise, mmap.MADV_REMOVE)
    live.expect_pool(nr=4, free=0)
    shared.advise(mmap.MADV_REMOVE, 0, 1)
    live.expect("free pages", 2, live.pool().free)
    private.expect_filled(7, first=1)
    shared.expect_filled(5, first=1)
    file.punch(1, 1)
    live.expect("free pages", 4, live.pool().free)
    shared.expect_zero(pages=2)
    private.expect_zero(pages=2)
    live.expect("free pages", 2, live.pool().free)
    private.unmap()
    shared.unmap()
    file.close()
    live.expect_pool(nr=4, free=4)


@ADVICE.case("MADV_DONTNEED leaves shared pages in their file", DONTNEED, since=DONTNEED_SINCE, pages=1)
def dontneed_of_shared_pages(live: Live) -> None:
    for advice in _GIVE_BACK:
        memory = live.map(1, shared=True)
        memory.touch(value=5)
        memory.advise(advice)
        live.expect_pool(nr=1, free=0)
        live.expect("what the page holds", 5, memory.read())
        live.expect_pool(nr=1, free=0)
        memory.unmap()
        live.expect_pool(nr=1, free=1)


@ADVICE.case(
    "MADV_DONTNEED rounds the length down to whole pages, and refuses other addresses",
    f"{DONTNEED} (8ebe0a5eaaeb)",
    since="6.1",
    pages=2,
)
def dontneed_of_parts(live: Live) -> None:
    for advice in _GIVE_BACK:
        memory = live.map(2)
        memory.touch(0, 1)
        memory.touch(1, 2)
        part, call = live.base_page, memory.actor.call
        live.expect_errno(errno.EINVAL, call, "madvise", memory.address + part, live.size, advice)
        call("madvise", memory.address, live.size - part, advice)
        live.expect_pool(nr=2, free=0)
        live.expect("what the pages hold", (1, 2), (memory.read(0), memory.read(1)))
        call("madvise", memory.address, live.size + part, advice)
        live.expect("free pages", 1, live.pool().free)
        live.expect("the page of which a part was meant", 2, memory.read(1))
        memory.unmap()
        live.expect_pool(nr=2, free=2)


@ADVICE.case(
    "MADV_DONTNEED of a range that reaches into what is not mapped is ENOMEM, and gives the whole pages in it back",
    f"{DONTNEED}; madvise(2) ENOMEM",
    since="6.1",
    pages=3,
)
def dontneed_beyond_the_mapping(live: Live) -> None:
    for advice in _GIVE_BACK:
        memory = live.map(3)
        for page in (0, 2):
            memory.unmap(page, 1)
        memory.touch(1, 5)
        live.expect_pool(nr=3, free=2)
        start, part, call = memory.at(1), live.base_page, memory.actor.call
        live.expect_errno(errno.ENOMEM, call, "madvise", start - part, live.size, advice)
        live.expect_pool(nr=3, free=2)
        live.expect("what the page holds", 5, memory.read(1))
        live.expect_errno(errno.ENOMEM, call, "madvise", start, live.size + part, advice)
        live.expect("free pages", 3, live.pool().free)
        memory.expect_zero(1)
        live.expect_pool(nr=3, free=2)
        memory.unmap(1, 1)
        live.expect_pool(nr=3, free=3)


@ADVICE.case(
    "MADV_DONTNEED_LOCKED and MADV_DONTNEED give back pages of mappings that were locked in whichever way, which counts"
    " none of them as locked; advice to free, to age, to swap, and to remove private ones, is refused as ever",
    f"{DONTNEED}; mm/mlock.c mlock_fixup(); mm/mmap.c mmap_region()",
    since=DONTNEED_SINCE,
    pages=2,
)
def given_back_though_locked(live: Live) -> None:
    uapi = live.host.uapi
    never = mmap.MADV_FREE, MADV_COLD, MADV_PAGEOUT
    ways = ("mlock", 0), ("mlock2", MLOCK_ONFAULT), ("mlockall", uapi.mcl_current), ("MAP_LOCKED", uapi.map_locked)
    # gigantic pages take seconds each time
    for (way, flag), shared, advice in product(ways[: 1 if live.is_gigantic else None], (False, True), _GIVE_BACK):
        memory = live.map(2, shared=shared, flags=flag if way == "MAP_LOCKED" else 0)
        memory.touch(0, 5)
        memory.touch(1, 6)
        if way == "mlockall":
            memory.actor.call(way, flag)
        elif way != "MAP_LOCKED":
            memory.actor.call(way, memory.address, memory.length, flag)
        with live.about(f"{way}, shared {shared}, advice {advice}"):
            live.expect("whether VmFlags have lo", False, LOCKED in memory.smaps().flags)
            for other in never:
                live.expect_errno(errno.EINVAL, memory.advise, other)
            if not shared:
                live.expect_errno(errno.EACCES, memory.advise, mmap.MADV_REMOVE)
            live.expect_pool(nr=2, free=0)
            memory.advise(advice, 1, 1)
            live.expect("free pages", 0 if shared else 1, live.pool().free)
            live.expect("what the pages hold", (5, 6 if shared else 0), (memory.read(0), memory.read(1)))
            live.expect_pool(nr=2, free=0)
        memory.actor.end()
        live.expect_pool(nr=2, free=2)


@ADVICE.case(
    "MADV_DONTNEED does not go through other mappings of the page",
    DONTNEED,
    since=DONTNEED_SINCE,
    pages=1,
)
def dontneed_among_processes(live: Live) -> None:
    memory = live.map(1)
    memory.touch(value=5)
    child = forked(live, memory)
    live.expect("what the child reads", 5, child.read())
    child.advise(mmap.MADV_DONTNEED)
    live.expect("what the parent reads", 5, memory.read())
    live.expect_pool(nr=1, free=0)


@ADVICE.case("MADV_REMOVE makes a hole in the file: its page goes, for all that have it mapped", REMOVE, pages=2)
def remove_of_shared_pages(live: Live) -> None:
    file = new_memfd(live)
    memory, other = file.map(2), file.map(2)
    memory.touch(0, 1)
    memory.touch(1, 2)
    memory.advise(mmap.MADV_REMOVE, 1, 1)
    live.expect_pool(nr=2, free=1)
    other.expect_zero(1)
    live.expect_pool(nr=2, free=0)
    live.expect("the page beside it", 1, other.read(0))
    live.expect("the size of the file", 2 * live.size, file.size)


@ADVICE.case(
    "MADV_REMOVE makes a hole in a file through a mapping that may not be written just then, and may be allowed to be",
    f"{REMOVE}; include/linux/mm.h vma_is_shared_maywrite() (e8e17ee90eaf)",
    since="6.7",
    pages=1,
)
def remove_through_a_read_only_mapping(live: Live) -> None:
    file = new_memfd(live)
    memory, other = file.map(1), file.map(1)
    for prot in (mmap.PROT_READ, PROT_NONE):
        memory.protect(READ_WRITE)
        memory.fill(5)
        memory.protect(prot)
        memory.advise(mmap.MADV_REMOVE)
        live.expect_pool(nr=1, free=1)
        other.expect_zero()


@ADVICE.case("MADV_REMOVE is for shared mappings", REMOVE, pages=1)
def remove_is_refused(live: Live) -> None:
    memory = live.map(1)
    memory.touch(value=5)
    live.expect_errno(errno.EACCES, memory.advise, mmap.MADV_REMOVE)
    live.expect_pool(nr=1, free=0)
    live.expect("what the page holds", 5, memory.read())


@ADVICE.case("MADV_POPULATE_* takes the pages at once", POPULATE, since="5.14", pages=2)
def populate(live: Live) -> None:
    for advice in (MADV_POPULATE_READ, MADV_POPULATE_WRITE):
        for shared in (False, True):
            memory = live.map(2, shared=shared)
            memory.advise(advice, 1, 1)
            live.expect_pool(nr=2, free=1, resv=1)
            memory.touch(1, 5)
            memory.advise(advice)
            live.expect_pool(nr=2, free=0)
            live.expect("what was there", 5, memory.read(1))
            memory.unmap()
            live.expect_pool(nr=2, free=2)


@ADVICE.case("MADV_POPULATE_* without enough pages is EFAULT, and no SIGBUS", POPULATE, since="5.14", pages=1)
def populate_without_pages(live: Live) -> None:
    for advice in (MADV_POPULATE_READ, MADV_POPULATE_WRITE):
        memory = live.map(2, noreserve=True)
        live.expect_errno(errno.EFAULT, memory.advise, advice)
        live.expect_pool(nr=1, free=0)
        live.expect_signal(signal.SIGBUS, memory.touch, 1)
        memory.unmap()
        live.expect_pool(nr=1, free=1)


@ADVICE.case("MADV_POPULATE_* obeys the protection of the mapping", POPULATE, since="5.14", pages=1)
def populate_what_is_protected(live: Live) -> None:
    memory = live.map(1, prot=mmap.PROT_READ)
    live.expect_errno(errno.EINVAL, memory.advise, MADV_POPULATE_WRITE)
    live.expect_pool(nr=1, free=1, resv=1)
    memory.advise(MADV_POPULATE_READ)
    live.expect_pool(nr=1, free=0)


@ADVICE.case("advice that huge pages do not take is refused and does nothing", "madvise(2) EINVAL", pages=1)
def refused_advice(live: Live) -> None:
    memory = live.map(1)
    memory.touch(value=5)
    for advice in (mmap.MADV_FREE, MADV_COLD, MADV_GUARD_INSTALL):
        live.expect_errno(errno.EINVAL, memory.advise, advice)
        live.expect_pool(nr=1, free=0)
    live.expect("what the page holds", 5, memory.read())


@ADVICE.case(
    "MADV_MERGEABLE is ignored: no huge page may be merged, and smaps does not say so",
    "madvise(2) MADV_MERGEABLE; mm/ksm.c ksm_madvise()",
    pages=1,
)
def advice_to_merge(live: Live) -> None:
    if not has_ksm(live.host):
        raise CannotRun("this kernel has no CONFIG_KSM")
    for shared in (False, True):
        memory = live.map(1, shared=shared)
        memory.fill()
        before = memory.smaps().flags
        memory.advise(MADV_MERGEABLE)
        live.expect("VmFlags", before, memory.smaps().flags)
        memory.expect_filled()
        memory.unmap()
        live.expect_pool(nr=1, free=1)


@ADVICE.case(
    "MADV_DONTFORK keeps pages from forked processes, and MADV_WIPEONFORK is refused",
    "madvise(2) MADV_DONTFORK; MADV_WIPEONFORK is for private anonymous memory",
    pages=1,
)
def advice_for_a_fork(live: Live) -> None:
    memory = live.map(1)
    memory.touch(value=5)
    live.expect_errno(errno.EINVAL, memory.advise, MADV_WIPEONFORK)
    memory.advise(mmap.MADV_DONTFORK)
    child = memory.fork()
    live.expect_signal(signal.SIGSEGV, child.read)
    memory.touch(value=6)
    live.expect_pool(nr=1, free=0)
    live.expect("what the parent reads", 6, memory.read())


@ADVICE.case(
    "MADV_REMOVE through a mapping of a part of a file makes the hole at that part, and nowhere else", REMOVE, pages=3
)
def remove_through_a_part_of_the_file(live: Live) -> None:
    file = new_memfd(live)
    memory = file.map(3)
    memory.fill()
    part = file.map(2, first=1)
    part.advise(mmap.MADV_REMOVE, 1, 1)
    live.expect_pool(nr=3, free=1)
    memory.expect_filled(pages=2)
    memory.expect_zero(2)
    live.expect_pool(nr=3, free=0)


@ADVICE.case(
    "advice on huge pages of another process is EINVAL where it would take them from it, and changes nothing",
    "process_madvise(2); mm/madvise.c process_madvise_behavior_valid(), can_madv_lru_vma()",
    since="5.10",
    pages=1,
)
def advice_by_another(live: Live) -> None:
    other = live.actor()
    for shared in (False, True):
        memory = live.map(1, shared=shared)
        memory.touch(value=5)
        for advice in (MADV_DONTNEED, MADV_COLD, MADV_PAGEOUT, MADV_COLLAPSE):
            with live.about(f"shared {shared}, advice {advice}"):
                live.expect_errno(errno.EINVAL, memory.advised_by, other, advice)
        if live.kernel_version >= _WILLNEED_OF_OTHERS_SINCE:
            # a call takes no more (MAX_RW_COUNT)
            most = (1 << 31) - live.base_page
            live.expect("bytes of MADV_WILLNEED", min(memory.length, most), memory.advised_by(other, MADV_WILLNEED))
        live.expect_pool(nr=1, free=0)
        live.expect("what the page holds", 5, memory.read())
        memory.unmap()
        live.expect_pool(nr=1, free=1)


class Advice(LiveTest):
    def test_advice(self) -> None:
        self.run_area(ADVICE)
