"""userfaultfd(2) on huge pages: a program fills, maps and poisons them itself."""

import errno
import signal

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault, need_signal_for_poison, protected_pages
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Fault

USERFAULT = Area("userfaultfd/hugetlb-pages", uncleared=True)
DOC = "Documentation/admin-guide/mm/userfaultfd.rst"
COPY = f"{DOC} UFFDIO_COPY; mm/hugetlb.c hugetlb_mfill_atomic_pte()"
# include/uapi/asm-generic/siginfo.h
BUS_ADRERR = 2
BUS_MCEERR_AR = 4


@USERFAULT.case("a missing page is filled with what it is given, out of the reservation", COPY, pages=3)
def copy_fills_a_missing_page(live: Live) -> None:
    source = live.map(1)
    source.fill(7)
    memory = live.map(2, source.actor)
    fault = Userfault(memory, Mode.MISSING, Feature.MISSING_HUGETLBFS)
    live.expect_pool(nr=3, free=2, resv=2)
    live.expect("bytes copied", live.size, fault.copy(source, page=1))
    live.expect_pool(nr=3, free=1, resv=1)
    memory.expect_filled(7 - live.size, first=1)
    live.expect_signal(signal.SIGBUS, memory.touch, 0)
    memory.unmap()
    live.expect_pool(nr=3, free=2)


@USERFAULT.case("a fault that nobody handles ends in SIGBUS and takes no page", f"{DOC} UFFD_FEATURE_SIGBUS", pages=1)
def unhandled_fault(live: Live) -> None:
    memory = live.map(1)
    Userfault(memory, Mode.MISSING, Feature.MISSING_HUGETLBFS)
    for access in (memory.touch, memory.read):
        live.expect_signal(signal.SIGBUS, access)
        live.expect_pool(nr=1, free=1, resv=1)


@USERFAULT.case("a page that is there is not filled again", COPY, pages=2)
def copy_onto_a_page(live: Live) -> None:
    source = live.map(1)
    source.fill(7)
    memory = live.map(1, source.actor)
    fault = Userfault(memory, Mode.MISSING, Feature.MISSING_HUGETLBFS)
    fault.copy(source)
    memory.touch(value=5)
    live.expect_errno(errno.EEXIST, fault.copy, source)
    live.expect_pool(nr=2, free=0)
    live.expect("what the page holds", 5, memory.read())


@USERFAULT.case("parts of pages are not filled, and no zero page is mapped", COPY, pages=2)
def parts_and_zero_pages(live: Live) -> None:
    source = live.map(1)
    source.touch()
    fault = Userfault(live.map(1, source.actor), Mode.MISSING, Feature.MISSING_HUGETLBFS)
    live.expect("calls that are promised", (True, False), (fault.promises("copy"), fault.promises("zeropage")))
    half = live.size // 2
    live.expect_errno(errno.EINVAL, fault.copy, source, length=half)
    live.expect_errno(errno.EINVAL, fault.copy, source, offset=half, length=half)
    live.expect_errno(errno.EINVAL, fault.zero)
    live.expect_pool(nr=2, free=1, resv=1)


@USERFAULT.case("without a page nothing is filled, and no count changes", COPY, pages=2)
def copy_without_a_page(live: Live) -> None:
    source = live.map(1)
    source.touch()
    fault = Userfault(live.map(1, source.actor, noreserve=True), Mode.MISSING, Feature.MISSING_HUGETLBFS)
    reserved = live.map(1)
    live.expect_errno(errno.ENOMEM, fault.copy, source, known={Quirk.UFFD_COPY_EXISTS: errno.EEXIST})
    live.expect_pool(nr=2, free=1, resv=1)
    reserved.unmap()
    live.expect("bytes copied", live.size, fault.copy(source))
    live.expect_pool(nr=2, free=0)


@USERFAULT.case(
    "from memory that cannot be read nothing is filled, and no count changes",
    COPY,
    pages=3,
    since="5.14",  # before, the reservation of private memory was given up on purpose
)
def copy_of_what_cannot_be_read(live: Live) -> None:
    source = live.map(1)
    source.fill(7)
    for shared in (False, True):
        memory = live.map(1, source.actor, shared=shared)
        fault = Userfault(memory, Mode.MISSING, Feature.MISSING_HUGETLBFS)
        source.protect(0)
        live.expect_errno(errno.EFAULT, fault.copy, source)
        live.expect_pool(nr=3, free=2, resv=1)
        source.protect(READ_WRITE)
        live.expect("bytes copied", live.size, fault.copy(source))
        live.expect_pool(nr=3, free=1)
        memory.expect_filled(7)
        memory.unmap()
        live.expect_pool(nr=3, free=2)


@USERFAULT.case("a page of a shared file is filled once, for all", COPY, pages=2)
def copy_into_a_file(live: Live) -> None:
    source = live.map(1)
    source.fill(7)
    file = new_memfd(live, source.actor, pages=1)
    memory = file.map(1)
    fault = Userfault(memory, Mode.MISSING, Feature.MISSING_HUGETLBFS)
    fault.copy(source)
    live.expect_pool(nr=2, free=0)
    file.map(1).expect_filled(7)
    live.expect_errno(errno.EEXIST, fault.copy, source)
    live.expect_pool(nr=2, free=0)


@USERFAULT.case("a page of a file is filled before one that is there, and behind one", COPY, pages=5)
def copy_beside_a_page(live: Live) -> None:
    source = live.map(1)
    source.fill(7)
    for present, absent, free in ((0, 1, 2), (1, 0, 0)):
        file = new_memfd(live, source.actor, pages=2)
        memory = file.map(2)
        memory.touch(present, 5)
        fault = Userfault(memory, Mode.MISSING, Feature.MISSING_HUGETLBFS)
        live.expect(f"bytes copied to page {absent}", live.size, fault.copy(source, absent))
        live.expect("the page that was there", 5, memory.read(present))
        live.expect("the page that was filled", source.read(), memory.read(absent))
        live.expect_errno(errno.EEXIST, fault.copy, source, present)
        live.expect_pool(nr=5, free=free)


@USERFAULT.case(
    "behind the end of a file nothing is filled, EFAULT, and no count changes: grown again, it has no page there",
    COPY,
    since="5.14",  # 8cc5fcbb5be8: before, resv_hugepages goes below zero
    pages=3,
)
def copy_behind_the_end_of_a_file(live: Live) -> None:
    source = live.map(1)
    source.fill(7)
    file = new_memfd(live, source.actor, pages=2)
    memory = file.map(2)
    fault = Userfault(memory, Mode.MISSING, Feature.MISSING_HUGETLBFS)
    file.truncate(1)
    live.expect_errno(errno.EFAULT, fault.copy, source, page=1)
    live.expect_pool(nr=3, free=2, resv=1)
    live.expect("bytes copied in front of it", live.size, fault.copy(source))
    file.truncate(2)
    live.expect("what the file occupies", live.size, file.blocks)
    live.expect_pool(nr=3, free=1)


@USERFAULT.case(
    "no part of a page is watched, protected or mapped by the program: EINVAL, and all is as it was",
    f"{DOC} UFFDIO_REGISTER, UFFDIO_WRITEPROTECT, UFFDIO_CONTINUE; mm/userfaultfd.c mwriteprotect_range()",
    since="5.19",
    pages=1,
)
def parts_of_pages(live: Live) -> None:
    half = live.size // 2
    file = new_memfd(live, pages=1)
    memory, other = file.map(1), file.map(1)
    memory.fill(3)
    part = Memory(live, file.actor, other.address, 1, half)
    live.expect_errno(errno.EINVAL, Userfault, part, Mode.MISSING, Feature.MISSING_HUGETLBFS)
    protecting = Userfault(memory, Mode.WRITE_PROTECTED, Feature.WP_HUGETLBFS_SHMEM)
    for offset, length in ((0, half), (half, half), (0, live.base_page)):
        live.expect_errno(errno.EINVAL, protecting.write_protect, offset=offset, length=length)
    live.expect("base pages that are protected", [], protected_pages(memory))
    mapping = Userfault(other, Mode.MINOR, Feature.MINOR_HUGETLBFS)
    live.expect_errno(errno.EINVAL, mapping.go_on, length=half)
    live.expect_signal(signal.SIGBUS, other.read)
    mapping.go_on()
    other.expect_filled(3)
    memory.fill(4)
    other.expect_filled(4)
    live.expect_pool(nr=1, free=0)


@USERFAULT.case(
    "a page that is filled protected can be read, and written when the program says so",
    f"{COPY}; UFFDIO_COPY_MODE_WP",
    since="5.19",
    pages=2,
)
def copy_that_is_protected(live: Live) -> None:
    source = live.map(1)
    source.fill(7)
    for shared in (False, True):
        memory = live.map(1, source.actor, shared=shared)
        features = Feature.MISSING_HUGETLBFS | Feature.WP_HUGETLBFS_SHMEM
        fault = Userfault(memory, Mode.MISSING | Mode.WRITE_PROTECTED, features)
        live.expect("bytes copied", live.size, fault.copy(source, protected=True))
        live.expect_pool(nr=2, free=0)
        memory.expect_filled(7)
        live.expect_signal(signal.SIGBUS, memory.touch, 0, 9)
        memory.expect_filled(7)
        fault.write_protect(on=False)
        memory.fill(8)
        memory.expect_filled(8)
        memory.unmap()
        live.expect_pool(nr=2, free=1)


@USERFAULT.case(
    "a page that the file has is mapped when the program says so, and not before",
    f"{DOC} UFFDIO_CONTINUE; mm/hugetlb.c hugetlb_no_page()",
    since="5.13",
    pages=1,
)
def minor_fault(live: Live) -> None:
    file = new_memfd(live, pages=1)
    owner, other = file.map(1), file.map(1)
    fault = Userfault(other, Mode.MINOR, Feature.MINOR_HUGETLBFS)
    live.expect_errno(errno.EFAULT, fault.go_on)
    live.expect_pool(nr=1, free=1, resv=1)
    owner.fill(5)
    live.expect_signal(signal.SIGBUS, other.read)
    fault.go_on()
    other.expect_filled(5)
    live.expect_errno(errno.EEXIST, fault.go_on)
    live.expect_pool(nr=1, free=0)
    # a page that the file has lost is none to go on with
    file.punch(1)
    live.expect_errno(errno.EFAULT, fault.go_on)
    file.truncate(0)
    live.expect_errno(errno.EFAULT, fault.go_on)
    live.expect_pool(nr=1, free=1)


@USERFAULT.case(
    "what a private mapping writes to a page that UFFDIO_CONTINUE mapped stays its own, and what others write to the"
    " file shows until then",
    f"{DOC} UFFDIO_CONTINUE; mmap(2) MAP_PRIVATE; mm/hugetlb.c hugetlb_mfill_atomic_pte()",
    since="5.13",
    pages=2,
)
def minor_fault_of_a_private_mapping(live: Live) -> None:
    file = new_memfd(live, pages=1)
    owner = file.map(1)
    owner.fill(5)
    private = file.map(1, shared=False)
    fault = Userfault(private, Mode.MINOR, Feature.MINOR_HUGETLBFS)
    live.expect_signal(signal.SIGBUS, private.touch)
    fault.go_on()
    private.expect_filled(5)
    owner.fill(6)
    private.expect_filled(6)
    live.expect_pool(nr=2, free=1, resv=1)
    private.fill(7)
    owner.expect_filled(6)
    live.expect_pool(nr=2, free=0)
    owner.fill(8)
    private.expect_filled(7)
    private.unmap()
    live.expect_pool(nr=2, free=1)


@USERFAULT.case(
    "of several pages those are filled that come before one that is there, or that cannot be had: EAGAIN",
    f"{COPY}; ioctl_userfaultfd(2) EAGAIN",
    sizes=Sizes.BUDDY,
    pages=6,
)
def copy_that_ends_half_way(live: Live) -> None:
    source = live.map(3)
    source.fill(7)
    for shared in (False, True):
        memory = live.map(3, source.actor, shared=shared, noreserve=True)
        memory.touch(1, 5)
        fault = Userfault(memory, Mode.MISSING, Feature.MISSING_HUGETLBFS)
        live.expect_errno(errno.EAGAIN, fault.copy, source, length=memory.length)
        live.expect_pool(nr=6, free=1)
        memory.expect_filled(7, pages=1)
        live.expect("the page that was there", 5, memory.read(1))
        live.expect_signal(signal.SIGBUS, memory.read, 2)
        live.expect_errno(errno.EEXIST, fault.copy, source, length=memory.length)
        live.expect_pool(nr=6, free=1)
        memory.unmap()
        live.expect_pool(nr=6, free=3)
    # of the three that it has two are to be had
    memory = live.map(3, source.actor, noreserve=True)
    live.map(1, source.actor)
    fault = Userfault(memory, Mode.MISSING, Feature.MISSING_HUGETLBFS)
    live.expect_errno(errno.EAGAIN, fault.copy, source, length=memory.length)
    live.expect_pool(nr=6, free=1, resv=1)
    memory.expect_filled(7, pages=2)


@USERFAULT.case(
    "a poisoned page takes none from the pool, and an access to it ends as that to a broken one",
    f"{DOC} ioctl_userfaultfd(2) UFFDIO_POISON",
    since="6.6",
    pages=1,
)
def poisoned_page(live: Live) -> None:
    need_signal_for_poison(live)
    memory = live.map(1, shared=True)
    Userfault(memory, Mode.MISSING, Feature.MISSING_HUGETLBFS | Feature.POISON).poison()
    live.expect_pool(nr=1, free=1, resv=1)
    # a kernel without CONFIG_MEMORY_FAILURE knows no broken memory, but do_page_fault() of arm64 asks for no option
    knows_broken = "HardwareCorrupted" in read_meminfo(live.host) or live.host.architecture == "aarch64"
    code = BUS_MCEERR_AR if knows_broken else BUS_ADRERR
    try:
        memory.touch()
    except Fault as fault:
        live.expect("signal and code", (signal.SIGBUS, code), (fault.signal, fault.code))
    else:
        live.expect("signal and code", (signal.SIGBUS, code), None)
    live.expect_pool(nr=1, free=1, resv=1)


@USERFAULT.case(
    "pages are filled from memory that the program has not touched before, a private page and one of a file",
    f"{COPY}; mm/hugetlb.c hugetlb_mfill_atomic_pte()",
    # a page that nobody reserved holds what is copied until it can be where it belongs
    pages=4,
)
def copy_of_what_was_not_touched(live: Live) -> None:
    written = new_memfd(live)
    written.map(1).fill(7)
    for shared in (False, True):
        source = written.map(1)
        memory = live.map(1, written.actor, shared=shared)
        fault = Userfault(memory, Mode.MISSING, Feature.MISSING_HUGETLBFS)
        live.expect("bytes copied", live.size, fault.copy(source))
        live.expect_pool(nr=4, free=2)
        memory.expect_filled(7)
        memory.unmap()
        source.unmap()
        live.expect_pool(nr=4, free=3)


class UserfaultTest(LiveTest):
    def test_userfault(self) -> None:
        self.run_area(USERFAULT)
