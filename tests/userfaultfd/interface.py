"""How a program asks for the faults of its memory: what comes first, what it may ask for, and what it is promised."""

import errno
import mmap
import signal
from collections.abc import Callable
from functools import partial
from itertools import product

from hugepage_qa.cases.capabilities import become_nobody
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_segments import Segment, get_segment
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import OF_A_FILE, WORD, Memory
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size, room_for
from hugepage_qa.cases.userfaultfd import (
    USER_MODE_ONLY,
    Feature,
    Mode,
    Userfault,
    answer_to_api,
    offered_features,
    register_range,
)
from hugepage_qa.cases.userfaultfd_messages import MESSAGE_SIZE
from hugepage_qa.kernel.uapi import MADV_NOHUGEPAGE, MAP_FIXED
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor, Refused

INTERFACE = Area("userfaultfd/interface")

DOC = "Documentation/admin-guide/mm/userfaultfd.rst"
PROMISED = (
    "UFFDIO_REGISTER promises what works on the memory for the faults that were asked for: to fill it, to end its"
    " protection if it may be protected, to go on with what its file has if these faults are told; zeroes and moves for"
    " no hugetlb page; the same when it is registered again for other faults; and what is promised is done"
)
PROMISES = "ioctl_userfaultfd(2) UFFDIO_REGISTER ioctls; fs/userfaultfd.c userfaultfd_register()"
SEGMENT = f"{HUGETLB_DOC} SHM_HUGETLB; ioctl_userfaultfd(2) UFFDIO_REGISTER, hugetlbfs ranges"
_VALUE = 7
_UNKNOWN_FEATURE, _OTHER_API, _API = 1 << 40, 0xAB, 0xAA
#: of a userfaultfd itself: UFFDIO_API, UFFDIO_REGISTER, UFFDIO_UNREGISTER
_OF_ITSELF = 1 << 0x3F | 1 << 0 | 1 << 1
_UNPRIVILEGED = "proc/sys/vm/unprivileged_userfaultfd"


@INTERFACE.case(
    "UFFDIO_API comes first, and once, with the version and features that there are: before it a userfaultfd can"
    " neither be read nor register memory, EINVAL, and so it is after one that was refused; it tells of all features"
    " and calls",
    f"ioctl_userfaultfd(2) UFFDIO_API, EINVAL; userfaultfd(2) EINVAL; {DOC}; fs/userfaultfd.c userfaultfd_api()",
    since="5.11",
    sizes=Sizes.ONCE,
)
def what_comes_first(live: Live) -> None:
    offered = offered_features(live)
    memory = map_aligned(live, 1, live.base_page)
    actor = memory.actor
    live.expect_errno(errno.EINVAL, actor.call, "userfaultfd", 1 << 5)
    descriptor = actor.call("userfaultfd", USER_MODE_ONLY)
    read = partial(actor.call_with_buffers, "read", descriptor, bytes(MESSAGE_SIZE), MESSAGE_SIZE)
    register = partial(register_range, memory, descriptor, Mode.MISSING)
    for api, features in ((_OTHER_API, 0), (_API, _UNKNOWN_FEATURE), (_API, Feature.SIGBUS | _UNKNOWN_FEATURE)):
        with live.about(f"before UFFDIO_API with version {api:#x}, features {features:#x}"):
            live.expect_errno(errno.EINVAL, read)
            live.expect_errno(errno.EINVAL, register)
            live.expect_errno(errno.EINVAL, answer_to_api, actor, descriptor, api, features)
    # no feature of a refused one is had
    found, calls = answer_to_api(actor, descriptor, _API, 0)
    live.expect("features that are told", offered, Feature(found))
    live.expect("calls of a userfaultfd that are not told", 0, _OF_ITSELF & ~calls)
    live.expect_errno(errno.EINVAL, answer_to_api, actor, descriptor, _API, Feature.SIGBUS)
    register()
    live.expect_errno(errno.EINVAL, answer_to_api, actor, descriptor, _API, 0)


@INTERFACE.case(
    "an unprivileged process may handle faults of its own in user mode, those of the kernel if"
    " vm.unprivileged_userfaultfd says so, else EPERM, and is never told of forks, EPERM; a privileged one is",
    "Documentation/admin-guide/sysctl/vm.rst unprivileged_userfaultfd; userfaultfd(2) EPERM, UFFD_USER_MODE_ONLY;"
    " ioctl_userfaultfd(2) UFFD_FEATURE_EVENT_FORK; fs/userfaultfd.c userfaultfd_syscall_allowed(), userfaultfd_api()",
    since="5.11",
    sizes=Sizes.ONCE,
)
def who_may_ask(live: Live) -> None:
    offered = offered_features(live)
    for allowed, privileged in product((0, 1), (False, True)):
        live.set_knob(_UNPRIVILEGED, str(allowed))
        with live.about(f"{_UNPRIVILEGED} {allowed}, privileged {privileged}"):
            actor = live.actor()
            if not privileged:
                become_nobody(actor)
            if allowed or privileged:
                live.expect_success(actor.call, "userfaultfd", 0)
            else:
                live.expect_errno(errno.EPERM, actor.call, "userfaultfd", 0)
            descriptor = actor.call("userfaultfd", USER_MODE_ONLY)
            told_of_forks = partial(answer_to_api, actor, descriptor, _API, Feature.EVENT_FORK)
            if privileged:
                live.expect_success(told_of_forks)
            else:
                live.expect_errno(errno.EPERM, told_of_forks)
                found, _calls = answer_to_api(actor, descriptor, _API, 0)
                live.expect("features that are told to who asks for none", offered, Feature(found))
            actor.end()


@INTERFACE.case(
    "with a userfaultfd of a process that has ended, or executes another program, nothing can be done to memory: it is"
    " neither registered nor unregistered, ENOMEM, nor filled, protected, gone on with or poisoned, ESRCH, and that of"
    " another process is never moved, EINVAL; nobody waits, and to wake nobody is no error; what its parent has is"
    " handled as before",
    f"ioctl_userfaultfd(2) ESRCH, UFFDIO_MOVE EINVAL; {DOC} Non-cooperative userfaultfd; fs/userfaultfd.c"
    " userfaultfd_register(), userfaultfd_unregister(), userfaultfd_copy(), userfaultfd_move()",
    since="5.13",  # UFFDIO_CONTINUE
    sizes=Sizes.ONCE,
)
def process_that_is_gone(live: Live) -> None:
    offered = offered_features(live)
    # who waits executes nothing
    for goes, waits in ((Actor.end, False), (Actor.end, True), (Actor.exec, False)):
        memory = map_aligned(live, 2, live.base_page)
        fault = Userfault(memory, Mode.MISSING, Feature.EVENT_FORK, waits=True)
        child, faults = fault.fork(live)
        if waits:
            child.actor.threads.watch(child.at(1), WORD, WORD, 0)
            faults.await_fault(live)
        goes(child.actor)
        with live.about(f"{goes.__name__}, while a thread waits: {waits}"):
            _expect_nothing_done(live, faults, child, offered)
            source = map_aligned(live, 1, live.base_page, actor=memory.actor)
            source.fill(_VALUE)
            live.expect("bytes copied for the parent", live.base_page, fault.copy(source))
            memory.expect_filled(_VALUE, pages=1)
            fault.unregister()
            memory.expect_zero(1)
        memory.actor.end()


def _expect_nothing_done(live: Live, fault: Userfault, memory: Memory, offered: Feature) -> None:
    """Expect all that is asked of ``fault`` to be refused when the process that had ``memory`` is gone."""

    def is_gone() -> bool:
        try:
            fault.zero()
        except Refused as refusal:
            return refusal.errno == errno.ESRCH
        return False

    # who reads /proc may have a hold of its memory for a moment
    live.host.wait_until(is_gone)
    modes = [Mode.MISSING]
    modes += [Mode.WRITE_PROTECTED] if Feature.PAGEFAULT_FLAG_WP in offered else []
    modes += [Mode.MINOR] if Feature.MINOR_SHMEM in offered else []
    for part in (memory, memory.part(1), memory.part(memory.pages)):
        for mode in modes:
            live.expect_errno(errno.ENOMEM, fault.handling(part).register, mode)
        live.expect_errno(errno.ENOMEM, fault.handling(part).unregister)
        fault.handling(part).wake()
    acts: list[Callable[[], object]] = [partial(fault.copy, memory), fault.zero, fault.go_on]
    acts += [fault.write_protect, partial(fault.write_protect, on=False)]
    acts += [fault.poison] if Feature.POISON in offered else []
    acts += [fault.read_write_protect] if Feature.RWP in offered else []
    for act in acts:
        live.expect_errno(errno.ESRCH, act)
    if Feature.MOVE in offered:
        live.expect_errno(errno.EINVAL, fault.move, memory.part(1))
    if Feature.RWP_ASYNC in offered:
        live.expect_errno(errno.ESRCH, fault.set_mode, 0, Feature.RWP_ASYNC)
    fault.expect_nothing_told(live)
    live.expect("whether there is a message", False, fault.is_readable())


@INTERFACE.case(PROMISED, PROMISES, since="5.19", sizes=Sizes.BUDDY, pages=2)
def promised_for_hugetlb_pages(live: Live) -> None:
    for shared in (False, True):
        with live.about(f"shared {shared}"):
            make = partial(live.map, 1, shared=shared, noreserve=True)
            _expect_promised(live, make, Feature.MINOR_HUGETLBFS if shared else Feature(0), is_pool=True)


@INTERFACE.case(PROMISED, PROMISES, since="5.19", sizes=Sizes.ONCE)
def promised_for_other_memory(live: Live) -> None:
    for shared in (False, True):
        with live.about(f"shared {shared}"):
            make = partial(map_aligned, live, 1, pmd_size(live), shared=shared, advice=MADV_NOHUGEPAGE)
            _expect_promised(live, make, Feature.MINOR_SHMEM if shared else Feature(0), is_pool=False)


@INTERFACE.case(
    "a segment of huge pages (SHM_HUGETLB) is registered for faults of each kind, as other memory of them is; what is"
    " promised is done; it is filled, gone on with and write-protected for the process alone whose userfaultfd it is",
    f"{SEGMENT}; {DOC} IPCSHM, UFFD_FEATURE_MISSING_HUGETLBFS, UFFD_FEATURE_MINOR_HUGETLBFS; mm/hugetlb.c"
    " hugetlb_vm_ops, what is added there is considered for shm_vm_ops",
    since="5.19",
    sizes=Sizes.BUDDY,
    pages=2,
)
def segment_of_huge_pages(live: Live) -> None:
    offered = offered_features(live)
    modes = {Mode.MISSING: Feature.MISSING_HUGETLBFS, Mode.WRITE_PROTECTED: Feature.WP_HUGETLBFS_SHMEM}
    modes |= {Mode.MINOR: Feature.MINOR_HUGETLBFS, Mode.READ_WRITE_PROTECTED: Feature.RWP}
    for mode, feature in modes.items():
        if feature in offered:
            with live.about(f"registered for {mode!r}"):
                memory = get_segment(live, live.size).attach_for_good()
                known = {Quirk.SEGMENT_NOT_REGISTERED: errno.EINVAL}
                live.expect("errno of UFFDIO_REGISTER", 0, _errno_of_registering(memory, mode, feature), known)
                memory.actor.end()
    _expect_promised(
        live, lambda: get_segment(live, live.size).attach_for_good(), Feature.MINOR_HUGETLBFS, is_pool=True
    )
    live.expect_pool(nr=2, free=2)
    _expect_handled(live, get_segment(live, live.size), offered)


def _errno_of_registering(memory: Memory, mode: Mode, feature: Feature) -> int | None:
    try:
        Userfault(memory, mode, feature)
    except Refused as refusal:
        return refusal.errno
    return 0


def _expect_handled(live: Live, segment: Segment, offered: Feature) -> None:
    """Expect faults of each kind of one who has ``segment`` to be its own, and those of another one the kernel's."""
    memory, other = segment.attach(), segment.attach(live.actor())
    source = live.map(1, memory.actor)
    source.fill(_VALUE)
    fault = Userfault(memory, Mode.MISSING, Feature.MISSING_HUGETLBFS)
    live.expect_signal(signal.SIGBUS, memory.touch)
    live.expect_pool(nr=2, free=1, resv=1)
    live.expect("bytes copied", live.size, fault.copy(source))
    memory.expect_filled(_VALUE)
    other.expect_filled(_VALUE)
    live.expect_pool(nr=2, free=0)
    fault.unregister()
    if Feature.MINOR_HUGETLBFS in offered:
        memory.advise(mmap.MADV_DONTNEED)
        fault = Userfault(memory, Mode.MINOR, Feature.MINOR_HUGETLBFS)
        live.expect_signal(signal.SIGBUS, memory.read)
        fault.go_on()
        memory.expect_filled(_VALUE)
        fault.unregister()
    if Feature.WP_HUGETLBFS_SHMEM in offered:
        fault = Userfault(memory, Mode.WRITE_PROTECTED, Feature.WP_HUGETLBFS_SHMEM)
        fault.write_protect()
        live.expect_signal(signal.SIGBUS, memory.touch)
        other.fill(_VALUE + 1)
        memory.expect_filled(_VALUE + 1)
        fault.write_protect(on=False)
        memory.fill(_VALUE)
        other.expect_filled(_VALUE)
    live.expect_pool(nr=2, free=0)


@INTERFACE.case(
    "of memory that is of hugetlb pages in part, at its start, in the middle or at its end, no more is promised than"
    " works on all of it: it is not filled with zeroes",
    PROMISES,
    since="5.19",
    sizes=Sizes.BUDDY,
)
def promised_for_both(live: Live) -> None:
    for kinds in product((False, True), repeat=3):
        actor = live.actor()
        memory = Memory(live, actor, room_for(actor, len(kinds), live.size), len(kinds), live.size)
        for page, is_hugetlb in enumerate(kinds):
            if is_hugetlb:
                live.map(1, actor, noreserve=True, at=memory.at(page), flags=MAP_FIXED)
            else:
                flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED
                actor.mmap(live.size, READ_WRITE, flags, address=memory.at(page))
        fault = Userfault(memory, Mode.MISSING, Feature(0))
        found = {name: fault.promises(name) for name in ("copy", "wake", "zeropage")}
        with live.about(f"hugetlb pages: {kinds}"):
            live.expect("what is promised", {"copy": True, "wake": True, "zeropage": not any(kinds)}, found)
            for page in range(len(kinds)):
                live.expect_signal(signal.SIGBUS, memory.touch, page, at=memory.at(page))
        actor.end()


def _expect_promised(live: Live, make: Callable[[], Memory], minor: Feature, *, is_pool: bool) -> None:
    """Expect what is promised for memory in each mode, of which ``minor`` is the feature of minor faults, if any."""
    offered = offered_features(live)
    can_protect = Feature.WP_HUGETLBFS_SHMEM in offered
    modes = [Mode.MISSING, Mode.WRITE_PROTECTED, Mode.MISSING | Mode.WRITE_PROTECTED]
    if minor and minor in offered:
        modes += [Mode.MINOR, Mode.MISSING | Mode.MINOR, Mode.WRITE_PROTECTED | Mode.MINOR]
    modes = [mode for mode in modes if can_protect or Mode.WRITE_PROTECTED not in mode]
    features = (minor | (Feature.WP_HUGETLBFS_SHMEM if can_protect else Feature(0))) & offered
    for first, then in zip(modes, [*modes[1:], modes[0]], strict=True):
        memory = make()
        fault = Userfault(memory, first, features)
        for mode in (first, then):
            if mode is then:
                # of memory that is registered for other faults, too
                fault.unregister()
                fault.register(mode)
            wanted = {
                "copy": True,
                "wake": True,
                "zeropage": not is_pool,
                "writeprotect": Mode.WRITE_PROTECTED in mode,
                "continue": Mode.MINOR in mode,
            }
            if is_pool:
                wanted["move"] = False
            if Feature.POISON in offered:
                wanted["poison"] = True
            with live.about(f"registered for {mode!r}"):
                live.expect("what is promised", wanted, {name: fault.promises(name) for name in wanted})
                if Mode.MISSING in mode:
                    _expect_filled(live, memory, fault, zeroes=not is_pool)
        memory.actor.end()


def _expect_filled(live: Live, memory: Memory, fault: Userfault, *, zeroes: bool) -> None:
    """Expect missing memory to be filled by a copy and, if that was promised, with zeroes; it is missing again then."""
    source = map_aligned(live, 1, memory.size, actor=memory.actor)
    source.fill(_VALUE)
    live.expect("bytes copied", memory.size, fault.copy(source))
    memory.expect_filled(_VALUE)
    # of a file it would stay there, and of private memory it is not for that
    is_shared = memory.pagemap([memory.address])[0] & OF_A_FILE
    give_back = mmap.MADV_REMOVE if is_shared else mmap.MADV_DONTNEED
    memory.advise(give_back)
    if zeroes:
        fault.zero()
        memory.expect_zero()
        memory.advise(give_back)
    source.unmap()


class UserfaultInterface(LiveTest):
    def test_userfault_interface(self) -> None:
        self.run_area(INTERFACE)
