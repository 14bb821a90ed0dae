"""System V shared memory of huge pages: how long a segment lives, what it reserves, and who may have one."""

import errno
import signal

from hugepage_qa.cases.capabilities import become_nobody
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_segments import (
    IPC_CREAT,
    IPC_EXCL,
    IPC_PRIVATE,
    IPC_RMID,
    SHM_HUGETLB,
    SHM_LOCK,
    SHM_NORESERVE,
    get_segment,
    get_segment_of_no_size,
    segment_number,
)
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.locked_bytes import limit_locked_memory
from hugepage_qa.kernel.proc_tables import read_segment_sizes
from hugepage_qa.kernel.uapi import HUGE_MASK, HUGE_SHIFT, RLIMIT_MEMLOCK
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused
from hugepage_qa.process.marks import KEY_PREFIX

SEGMENTS = Area("memory/segments")
GET = f"{HUGETLB_DOC} SHM_HUGETLB; shmget(2); ipc/shm.c newseg()"
GROUP = f"{HUGETLB_DOC} /proc/sys/vm/hugetlb_shm_group; fs/hugetlbfs/inode.c can_do_hugetlb_shm()"
#: goes with what a run that was killed has left
KEY = KEY_PREFIX << 16 | 1
GROUP_ID = 54321


@SEGMENTS.case("a segment reserves its pages when it is made, keeps them, and gives them back at its end", GET, pages=2)
def life_of_a_segment(live: Live) -> None:
    segment = get_segment(live, 2 * live.size)
    live.expect_pool(nr=2, free=2, resv=2)
    memory = segment.attach()
    live.expect("alignment of the address", 0, memory.address % live.size)
    memory.expect_zero(0)
    memory.actor.fill(memory.address, live.size, memory.step, 5)
    memory.expect_filled(5, pages=1)
    live.expect("KernelPageSize", live.size, memory.smaps().kernel_page_size)
    live.expect_pool(nr=2, free=1, resv=1)
    segment.detach(memory)
    live.expect_signal(signal.SIGSEGV, memory.read)
    live.expect_signal(signal.SIGSEGV, memory.touch)
    live.expect_pool(nr=2, free=1, resv=1)
    segment.attach(live.actor()).expect_filled(5, pages=1)
    segment.actor.end()
    live.expect_pool(nr=2, free=1, resv=1)
    segment.remove(live.actor())
    live.expect_pool(nr=2, free=1, resv=1)


@SEGMENTS.case(
    "/proc/sysvipc/shm shows the size of a segment as it was asked for, and its touched pages as resident",
    "shmctl(2); ipc/shm.c sysvipc_shm_proc_show(), shm_add_rss_swap()",
    pages=2,
)
def touched_pages_are_resident(live: Live) -> None:
    length = 2 * live.size - live.base_page
    segment = get_segment(live, length)
    memory = segment.attach()
    for touched in (0, 1, 2):
        if touched:
            memory.touch(touched - 1)
        shown = read_segment_sizes(ObservedTree(live.host)).get(segment.identifier)
        # where nothing is in memory, that is shown right
        wrong = {Quirk.SEGMENT_RSS_MULTIPLIED: (length, touched * live.size * (live.size // live.base_page))}
        live.expect("size, rss", (length, touched * live.size), shown, wrong if touched else {})
        live.expect_pool(nr=2, free=2 - touched, resv=2 - touched)


@SEGMENTS.case(
    "a removed segment is for all who have it attached, sees what each of them writes, and goes with the last of them:"
    " then nobody can attach it, ask for it, change or remove it",
    f"{GET}; shmat(2), shmctl(2) EINVAL",
    pages=1,
)
def removed_while_attached(live: Live) -> None:
    segment = get_segment(live, live.size)
    memory = segment.attach()
    children = [memory.fork() for _child in range(3)]
    segment.remove()
    for value, writer in enumerate((*children, memory)):
        writer.fill(value)
        for reader in (memory, *children):
            reader.expect_filled(value)
    segment.detach(memory)
    for child in children:
        live.expect_pool(nr=1, free=0)
        child.actor.end()
    live.expect_pool(nr=1, free=1)
    for use in (segment.attach, segment.status, segment.remove):
        live.expect_errno(errno.EINVAL, use)
    live.expect_errno(errno.EINVAL, segment.change, 0, 0o600)


@SEGMENTS.case("a size is rounded up to whole pages", GET, pages=2)
def sizes_are_rounded_up(live: Live) -> None:
    for length, pages in ((1, 1), (live.size + 1, 2)):
        segment = get_segment(live, length)
        live.expect_pool(nr=2, free=2, resv=pages)
        memory = segment.attach()
        memory.actor.write(memory.address + pages * live.size - 8, 1)
        segment.detach(memory)
        segment.remove()
        live.expect_pool(nr=2, free=2)


@SEGMENTS.case("SHM_HUGETLB alone makes a segment of the default size", GET, sizes=Sizes.DEFAULT, pages=1)
def segment_of_the_default_size(live: Live) -> None:
    segment = get_segment_of_no_size(live)
    memory = segment.attach()
    # it goes with the actor
    segment.remove()
    live.expect_pool(nr=1, free=1, resv=1)
    memory.touch()
    live.expect_pool(nr=1, free=0)


@SEGMENTS.case("a segment larger than the pool is refused, and reserves nothing", GET, pages=1)
def larger_than_the_pool(live: Live) -> None:
    live.expect_errno(errno.ENOMEM, get_segment, live, 2 * live.size)
    live.expect_pool(nr=1, free=1)


@SEGMENTS.case(
    "SHM_NORESERVE reserves nothing, made or attached, and a touch gets SIGBUS where nothing is free",
    f"{GET}; fs/hugetlbfs/inode.c hugetlbfs_file_mmap()",
    pages=1,
)
def without_reservation(live: Live) -> None:
    segment = get_segment(live, 2 * live.size, flags=0o600 | IPC_CREAT | SHM_NORESERVE)
    live.expect_pool(nr=1, free=1)
    try:
        memory = segment.attach()
    except Refused as refusal:
        known = {Quirk.ATTACHMENT_RESERVES: errno.ENOMEM}
        live.expect("errno of shmat(2)", 0, refusal.errno, known)
        return
    live.expect_pool(nr=1, free=1)
    memory.touch(0)
    live.expect_signal(signal.SIGBUS, memory.touch, 1)
    live.expect_pool(nr=1, free=0)


@SEGMENTS.case("a key names one segment", GET, pages=2)
def keys(live: Live) -> None:
    create = 0o600 | IPC_CREAT
    live.expect_errno(errno.ENOENT, get_segment, live, live.size, key=KEY, flags=0)
    segment = get_segment(live, live.size, key=KEY, flags=create | IPC_EXCL)
    live.expect_errno(errno.EEXIST, get_segment, live, live.size, key=KEY, flags=create | IPC_EXCL)
    live.expect_errno(errno.EINVAL, get_segment, live, 2 * live.size, key=KEY, flags=create)
    for length in (live.size, 0):
        live.expect("the segment", segment.identifier, get_segment(live, length, key=KEY, flags=create).identifier)
    live.expect_errno(errno.EINVAL, get_segment, live, 0)
    live.expect_pool(nr=2, free=2, resv=1)


@SEGMENTS.case("a page size that the machine does not have is refused", GET)
def sizes_that_are_none(live: Live) -> None:
    actor = live.actor()
    for shift in range(1, HUGE_MASK + 1):
        if 1 << shift not in live.sizes:
            flags = SHM_HUGETLB | shift << HUGE_SHIFT | IPC_CREAT | 0o600
            live.expect_errno(errno.EINVAL, segment_number, live, actor, live.size, flags)


@SEGMENTS.case("the mode of a segment is obeyed, and only its owner removes it", "shmat(2) EACCES; shmctl(2)", pages=1)
def permissions(live: Live) -> None:
    segment = get_segment(live, live.size)
    stranger = live.actor()
    become_nobody(stranger)
    live.expect_errno(errno.EACCES, segment.attach, stranger)
    live.expect_errno(errno.EPERM, segment.remove, stranger)
    live.expect_pool(nr=1, free=1, resv=1)


@SEGMENTS.case("who is neither privileged nor in hugetlb_shm_group gets no segment", GROUP, pages=1)
def group_that_may(live: Live) -> None:
    live.set_knob("proc/sys/vm/hugetlb_shm_group", f"{GROUP_ID}")
    stranger, member = live.actor(), live.actor()
    # before Linux 5.16 (83c1fd763b32) a segment within the limit of locked memory was for everyone
    stranger.call("setrlimit", RLIMIT_MEMLOCK, live.host.uapi.pack("2Q", 0, 0))
    become_nobody(stranger)
    become_nobody(member, GROUP_ID)
    live.expect_errno(errno.EPERM, get_segment, live, live.size, stranger)
    live.expect_pool(nr=1, free=1)
    memory = get_segment(live, live.size, member).attach()
    live.expect_pool(nr=1, free=1, resv=1)
    memory.touch()
    live.expect_pool(nr=1, free=0)


@SEGMENTS.case(
    "a limit of locked memory does not make up for the group, and who is refused has locked nothing: the limit is there"
    " for a segment of base pages",
    f"{GROUP}, hugetlb_file_setup() (83c1fd763b32); shmctl(2) SHM_LOCK",
    since="5.16",
    pages=1,
)
def limit_of_locked_memory(live: Live) -> None:
    live.set_knob("proc/sys/vm/hugetlb_shm_group", f"{GROUP_ID}")
    stranger = live.actor()
    # the user may have locked something before
    limit_locked_memory(live, stranger, 2 * live.size, 2 * live.size)
    become_nobody(stranger)
    for _time in range(2):
        live.expect_errno(errno.EPERM, get_segment, live, live.size, stranger)
        live.expect_pool(nr=1, free=1)
    # what was locked for two refused ones would leave no room for a page
    identifier = stranger.call("shmget", IPC_PRIVATE, live.base_page, IPC_CREAT | 0o600)
    stranger.call("shmat", identifier, 0, 0)
    # it goes with who has it attached
    stranger.call("shmctl", identifier, IPC_RMID, 0)
    try:
        stranger.call("shmctl", identifier, SHM_LOCK, 0)
    except Refused as refusal:
        live.expect("errno of SHM_LOCK of a segment of base pages", 0, refusal.errno)


class Segments(LiveTest):
    def test_segments(self) -> None:
        self.run_area(SEGMENTS)
