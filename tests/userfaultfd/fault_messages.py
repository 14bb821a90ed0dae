"""What a program is told of a fault that it handles itself: what it was, and where; and what the kernel offers."""

import errno
import mmap
from collections.abc import Callable
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.faults_of_the_kernel import expect_kernel_to_fault
from hugepage_qa.cases.handled_pages import told_address
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.thp_memory import need_blocks
from hugepage_qa.cases.thp_policy import huge_pages
from hugepage_qa.cases.thp_shared_memory import advised_shared_memory
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault, offered_features
from hugepage_qa.cases.userfaultfd_messages import PageFault, Told
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor_threads import Came
from hugepage_qa.version import KernelVersion

FAULT_MESSAGES = Area("userfaultfd/fault-messages")

DOC = "Documentation/admin-guide/mm/userfaultfd.rst"
TOLD = (
    f"{DOC} UFFD_EVENT_PAGEFAULT; ioctl_userfaultfd(2) UFFD_FEATURE_EXACT_ADDRESS; userfaultfd(2) UFFD_PAGEFAULT_FLAG_*"
)
WAKES = f"{DOC}; ioctl_userfaultfd(2) UFFDIO_WAKE; fs/userfaultfd.c wake_userfault()"
OF_KERNEL = (
    "a system call that touches memory whose faults a program handles is EFAULT with UFFD_USER_MODE_ONLY and with"
    " UFFD_FEATURE_SIGBUS, tells nobody and brings no page; without them the program is told, as of a fault of the"
    " process, and the call goes on when it is handled: read(2), write(2), process_vm_readv(2), madvise(2)"
)
KERNEL_DOC = (
    f"userfaultfd(2) UFFD_USER_MODE_ONLY; {DOC} UFFD_USER_MODE_ONLY, UFFD_FEATURE_SIGBUS; fs/userfaultfd.c"
    " handle_userfault()"
)
#: since commit 824ddc601adc; before, the address was exact on some architectures and for some kinds of memory
EXACT_SINCE = "5.18"
_VALUE = 7
#: what every kernel with userfaultfd offers, and since when
_OFFERED = {
    Feature.EVENT_FORK: "4.11",
    Feature.EVENT_REMAP: "4.11",
    Feature.EVENT_REMOVE: "4.11",
    Feature.MISSING_HUGETLBFS: "4.11",
    Feature.MISSING_SHMEM: "4.11",
    Feature.EVENT_UNMAP: "4.11",
    Feature.SIGBUS: "4.14",
    Feature.THREAD_ID: "4.14",
    Feature.EXACT_ADDRESS: EXACT_SINCE,
    Feature.POISON: "6.6",
}
#: what x86_64 and aarch64 offer besides
_MINOR = {Feature.MINOR_HUGETLBFS: "5.13", Feature.MINOR_SHMEM: "5.14"}
_WITH_MINOR_FAULTS = ("x86_64", "aarch64")


@FAULT_MESSAGES.case(
    "of a missing page it is told whether it is read or written, and where: its start, or the very address with"
    " UFFD_FEATURE_EXACT_ADDRESS",
    TOLD,
    since=EXACT_SINCE,
    sizes=Sizes.BUDDY,
    pages=2,
)
def missing(live: Live) -> None:
    for shared in (False, True):
        for exact in (False, True):
            for writes in (False, True):
                memory = live.map(1, shared=shared)
                source = live.map(1, memory.actor)
                source.fill(_VALUE)
                features = Feature.MISSING_HUGETLBFS | (Feature.EXACT_ADDRESS if exact else Feature(0))
                fault = Userfault(memory, Mode.MISSING, features, waits=True)
                offset = _access(live, memory, writes=writes)
                _expect_told(live, fault, Told.WRITE if writes else Told(0), memory.address + offset * exact)
                live.expect("bytes copied", live.size, fault.copy(source))
                _expect_done(live, memory)
                memory.actor.end()


@FAULT_MESSAGES.case(
    "of a write to a protected page it is told that it is one, and where",
    TOLD,
    since="5.19",
    sizes=Sizes.BUDDY,
    pages=1,
)
def protected(live: Live) -> None:
    for shared in (False, True):
        for exact in (False, True):
            memory = live.map(1, shared=shared)
            memory.fill(_VALUE)
            features = Feature.WP_HUGETLBFS_SHMEM | (Feature.EXACT_ADDRESS if exact else Feature(0))
            fault = Userfault(memory, Mode.WRITE_PROTECTED, features, waits=True)
            fault.write_protect()
            offset = _access(live, memory, writes=True)
            _expect_told(live, fault, Told.WRITE | Told.WRITE_PROTECTED, memory.address + offset * exact)
            fault.write_protect(on=False)
            _expect_done(live, memory)
            memory.actor.end()


@FAULT_MESSAGES.case(
    "of a page that the file has it is told that the fault is a minor one, whether it is a write, and where",
    TOLD,
    since=EXACT_SINCE,
    sizes=Sizes.BUDDY,
    pages=1,
)
def minor(live: Live) -> None:
    for exact in (False, True):
        for writes in (False, True):
            memory = _of_a_file(live, 1, 1)
            features = Feature.MINOR_HUGETLBFS | (Feature.EXACT_ADDRESS if exact else Feature(0))
            fault = Userfault(memory, Mode.MINOR, features, waits=True)
            offset = _access(live, memory, writes=writes)
            told = Told.MINOR | (Told.WRITE if writes else Told(0))
            _expect_told(live, fault, told, memory.address + offset * exact)
            fault.go_on()
            _expect_done(live, memory)
            memory.actor.end()


@FAULT_MESSAGES.case(
    "several pages are filled at once for who waits for any of them, also where not all can be; who is only woken waits"
    " for the same page again",
    f"{WAKES}; UFFDIO_COPY",
    since=EXACT_SINCE,
    sizes=Sizes.BUDDY,
    pages=6,
)
def several_are_filled(live: Live) -> None:
    for shared, missing in product((False, True), (3, 2)):
        source = live.map(3)
        source.fill(_VALUE)
        memory = live.map(3, source.actor, shared=shared)
        for page in range(missing, 3):
            memory.touch(page)
        fault = Userfault(memory, Mode.MISSING, Feature.MISSING_HUGETLBFS, waits=True)
        copy = partial(fault.copy, source, length=memory.length)
        _expect_all_woken(live, memory, fault, copy, Told(0), missing)


@FAULT_MESSAGES.case(
    "several pages that the file has are mapped at once for who waits for any of them, also where not all can be",
    f"{WAKES}; UFFDIO_CONTINUE",
    since=EXACT_SINCE,
    sizes=Sizes.BUDDY,
    pages=3,
)
def several_are_mapped(live: Live) -> None:
    for there in (3, 2):
        memory = _of_a_file(live, 3, there)
        fault = Userfault(memory, Mode.MINOR, Feature.MINOR_HUGETLBFS, waits=True)
        _expect_all_woken(live, memory, fault, partial(fault.go_on, length=memory.length), Told.MINOR, there)


@FAULT_MESSAGES.case(
    "several pages are protected no more at once for who waits to write to any of them",
    f"{WAKES}; UFFDIO_WRITEPROTECT",
    since="5.19",
    sizes=Sizes.BUDDY,
    pages=3,
)
def several_are_protected_no_more(live: Live) -> None:
    for shared in (False, True):
        memory = live.map(3, shared=shared)
        memory.fill(_VALUE)
        fault = Userfault(memory, Mode.WRITE_PROTECTED, Feature.WP_HUGETLBFS_SHMEM, waits=True)
        fault.write_protect(length=memory.length)
        end = partial(fault.write_protect, on=False, length=memory.length)
        _expect_all_woken(live, memory, fault, end, Told.WRITE | Told.WRITE_PROTECTED, 3)


@FAULT_MESSAGES.case(
    OF_KERNEL,
    KERNEL_DOC,
    since="5.19",
    sizes=Sizes.BUDDY,
    pages=2,
)
def faults_of_the_kernel(live: Live) -> None:
    def filled(*, shared: bool) -> Memory:
        memory = live.map(1, shared=shared)
        memory.fill(_VALUE)
        return memory

    for shared in (False, True):
        with live.about(f"missing, shared {shared}"):
            make = partial(live.map, 1, shared=shared)
            expect_kernel_to_fault(live, make, Mode.MISSING, Feature.MISSING_HUGETLBFS)
            live.expect_pool(nr=2, free=2)
        with live.about(f"protected, shared {shared}"):
            make = partial(filled, shared=shared)
            expect_kernel_to_fault(live, make, Mode.WRITE_PROTECTED, Feature.WP_HUGETLBFS_SHMEM)
            live.expect_pool(nr=2, free=2)
    if live.host.architecture in _WITH_MINOR_FAULTS:
        with live.about("in the file"):
            expect_kernel_to_fault(live, partial(_of_a_file, live, 1, 1), Mode.MINOR, Feature.MINOR_HUGETLBFS)


@FAULT_MESSAGES.case(
    OF_KERNEL,
    KERNEL_DOC,
    since="5.19",
    sizes=Sizes.ONCE,
)
def faults_of_the_kernel_on_transparent_pages(live: Live) -> None:
    def missing() -> Memory:
        # of a mapping that has huge pages, and could get one here
        memory = huge_pages(live, 2)
        memory.advise(mmap.MADV_DONTNEED, 1, 1)
        return memory.part(1)

    def shared(*, fills: bool) -> Memory:
        memory = advised_shared_memory(live, 1)
        if fills:
            memory.fill(_VALUE)
            need_blocks(live, memory)
        return memory

    for name, make, mode, feature in (
        ("missing", missing, Mode.MISSING, Feature(0)),
        ("missing, shared", partial(shared, fills=False), Mode.MISSING, Feature.MISSING_SHMEM),
        ("protected", partial(huge_pages, live), Mode.WRITE_PROTECTED, Feature.PAGEFAULT_FLAG_WP),
        ("protected, shared", partial(shared, fills=True), Mode.WRITE_PROTECTED, Feature.WP_HUGETLBFS_SHMEM),
    ):
        with live.about(name):
            expect_kernel_to_fault(live, make, mode, feature)


@FAULT_MESSAGES.case(
    "UFFDIO_API offers what there is since the version of the kernel",
    f"{DOC} UFFDIO_API; ioctl_userfaultfd(2) UFFD_FEATURE_*",
    sizes=Sizes.ONCE,
)
def offered(live: Live) -> None:
    found = offered_features(live)
    wanted = _OFFERED | (_MINOR if live.host.architecture in _WITH_MINOR_FAULTS else {})
    owed = [feature for feature, since in wanted.items() if live.kernel_version >= KernelVersion.parse(since)]
    live.expect("features that are not offered", [], [feature.name for feature in owed if feature not in found])


def _of_a_file(live: Live, pages: int, there: int) -> Memory:
    """Map ``pages`` pages of a file, which has so many of them ``there``: the first faults of these are minor ones."""
    file = new_memfd(live, pages=pages)
    file.map(there).fill(_VALUE)
    return file.map(pages)


def _expect_all_woken(
    live: Live, memory: Memory, fault: Userfault, handle: Callable[[], object], told: Told, pages: int
) -> None:
    """Expect an access to each of the first ``pages`` pages to wait, and to end when the faults are handled.

    That is EAGAIN where it comes to an end before the memory does. The actor ends then, too.
    """
    for page in range(pages):
        _access(live, memory, page, writes=Told.WRITE in told)
    waiting = {PageFault(told, memory.at(page)) for page in range(pages)}
    for _time in range(2):
        live.expect("what is told of the faults", waiting, {fault.await_fault(live) for _page in range(pages)})
        fault.wake()
    live.expect("what is told of the faults", waiting, {fault.await_fault(live) for _page in range(pages)})
    if pages == memory.pages:
        handle()
    else:
        live.expect_errno(errno.EAGAIN, handle)
    came = [done.came for done in memory.actor.threads.stop(0)]
    if came != pages * [Came.DONE]:
        live.fail("what came of the accesses", pages * [Came.DONE], came)  # each that is stuck takes its time
    memory.actor.end()


def _access(live: Live, memory: Memory, page: int = 0, *, writes: bool) -> int:
    """Have a thread read or write one word in the middle of a page, which waits; return how far in it is."""
    offset = page * live.size + live.size // 2 + live.base_page + 3 * WORD
    if not writes:
        memory.actor.threads.watch(memory.address + offset, WORD, WORD, _VALUE + offset)
        return offset
    memory.actor.threads.use(memory.address + offset, WORD, WORD)
    # the word behind its own is what it stores first (use_again() in repeaters.c)
    return offset + WORD


def _expect_told(live: Live, fault: Userfault, told: Told, address: int) -> None:
    wanted = PageFault(told, told_address(live, address))
    live.expect("what is told of the fault", wanted, fault.await_fault(live))


def _expect_done(live: Live, memory: Memory) -> None:
    """Expect the access to have come to its end, once the fault was handled."""
    live.expect("what came of the access", [Came.DONE], [done.came for done in memory.actor.threads.stop(0)])


class FaultMessages(LiveTest):
    def test_fault_messages(self) -> None:
        self.run_area(FAULT_MESSAGES)
