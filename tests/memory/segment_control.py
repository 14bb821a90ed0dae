"""What shmctl(2) tells and changes of segments of huge pages, and the limits of the machine on segments."""

import errno
from contextlib import ExitStack
from dataclasses import replace
from itertools import product

from hugepage_qa.cases.capabilities import IPC_LOCK, become_nobody, become_user_with, without_capability
from hugepage_qa.cases.case import Area
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.hugetlb_segments import (
    IPC_CREAT,
    IPC_EXCL,
    IPC_PRIVATE,
    IPC_RMID,
    IPC_SET,
    IPC_STAT,
    SHM_HUGETLB,
    SHM_LOCK,
    SHM_NORESERVE,
    SHM_UNLOCK,
    Segment,
    get_segment,
    segment_number,
)
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.process_counters import process_status
from hugepage_qa.cases.segment_namespace import in_own_namespace, new_segment, write_limit
from hugepage_qa.kernel.uapi import NOBODY, RLIMIT_MEMLOCK
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor
from hugepage_qa.process.marks import KEY_PREFIX
from hugepage_qa.sizes import MIB

SEGMENT_CONTROL = Area("memory/segment-control")
STATUS = "shmctl(2) IPC_STAT; ipc/shm.c shmctl_stat()"
CHANGE = "shmctl(2) IPC_SET; ipc/shm.c shmctl_down()"
LIMITS = "shmget(2) ENOSPC; ipc/shm.c newseg(), shm_destroy()"
#: goes with what a run that was killed has left
KEY = KEY_PREFIX << 16 | 2
GROUP_ID = 54321
#: times of segments are whole seconds
_TICK_SECONDS = 1.0
#: the size of the longest segments of base pages, which are committed as a whole, and need not be huge
_LARGE = 32 * MIB
#: a number is that of a place (include/linux/ipc_namespace.h IPCMNI), and of how often such were taken; they are taken
#: in turn, at least 64 (ipc/util.h ipc_min_cycle)
_PLACES, _MOST_PLACES = 1 << 15, 300


@SEGMENT_CONTROL.case("IPC_STAT tells size, owner, mode, processes and times of a segment", STATUS, pages=2)
def status(live: Live) -> None:
    length = 2 * live.size - live.base_page
    segment = get_segment(live, length, flags=0o640 | IPC_CREAT)
    new = segment.status()
    live.expect("size, mode, owner, creator", (length, 0o640, 0, 0), (new.size, new.mode, new.owner, new.creator))
    live.expect("creator, last process", (segment.actor.pid, 0), (new.creator_pid, new.last_pid))
    live.expect("attachments, attached, detached", (0, 0, 0), (new.attachments, new.attached_at, new.detached_at))
    other = segment.attach(live.actor())
    memory = segment.attach()
    used = segment.status()
    live.expect("attachments, detached", (2, 0), (used.attachments, used.detached_at))
    live.expect("last process", segment.actor.pid, used.last_pid)
    live.expect("whether it was made before it was attached", True, 0 < used.changed_at <= used.attached_at)
    child = memory.actor.fork()
    live.expect("attachments with a child", 3, segment.status().attachments)
    child.end()
    live.expect("attachments without the child", 2, segment.status().attachments)
    segment.detach(other)
    left = segment.status()
    live.expect("attachments, last process", (1, other.actor.pid), (left.attachments, left.last_pid))
    live.expect("whether it was attached before it was detached", True, left.attached_at <= left.detached_at)
    memory.actor.end()
    live.expect("attachments", 0, segment.status(live.actor()).attachments)
    live.expect_pool(nr=2, free=2, resv=2)


@SEGMENT_CONTROL.case("IPC_SET changes owner and mode and nothing else, and they are obeyed", CHANGE, pages=1)
def change(live: Live) -> None:
    segment = get_segment(live, live.size, flags=0o600 | IPC_CREAT)
    stranger = live.actor()
    become_nobody(stranger)
    live.expect_errno(errno.EACCES, segment.attach, stranger)
    before = segment.status()
    live.host.pause(_TICK_SECONDS)
    segment.change(NOBODY, 0o400)
    after = segment.status()
    live.expect("what IPC_STAT tells", replace(before, owner=NOBODY, mode=0o400, changed_at=after.changed_at), after)
    live.expect("whether it was changed after it was made", True, after.changed_at > before.changed_at)
    live.expect_errno(errno.EACCES, segment.attach, stranger)
    segment.change(NOBODY, 0o600, stranger)
    segment.attach(stranger).touch()
    live.expect_pool(nr=1, free=0)
    segment.remove(stranger)
    stranger.end()
    live.expect_pool(nr=1, free=1)


@SEGMENT_CONTROL.case("what another user may not, and what nobody can, is refused and changes nothing", CHANGE, pages=1)
def refused(live: Live) -> None:
    segment = get_segment(live, live.size, key=KEY, flags=0o600 | IPC_CREAT)
    before = segment.status()
    stranger = live.actor()
    become_nobody(stranger)
    live.expect_errno(errno.EACCES, segment.status, stranger)
    live.expect_errno(errno.EPERM, segment.change, NOBODY, 0o666, stranger)
    live.expect_errno(errno.EPERM, segment.remove, stranger)
    live.expect_errno(errno.EACCES, get_segment, live, live.size, stranger, key=KEY, flags=0o600)
    call, identifier = segment.actor.call, segment.identifier
    for command in (IPC_STAT, IPC_SET):
        # the last address of all
        live.expect_errno(errno.EFAULT, call, "shmctl", identifier, command, (1 << 64) - 1)
        live.expect_errno(errno.EINVAL, call, "shmctl", -1, command, bytes(112))
    live.expect_errno(errno.EINVAL, call, "shmctl", identifier, -1, bytes(112))
    live.expect("what IPC_STAT tells", before, segment.status())
    live.expect_pool(nr=1, free=1, resv=1)


@SEGMENT_CONTROL.case(
    "SHM_LOCK and SHM_UNLOCK lock nothing of a segment of huge pages, which are never swapped out, and are no error;"
    " its owner needs a limit to lock, and others may neither",
    "shmctl(2) SHM_LOCK, EPERM; ipc/shm.c shmctl_do_lock()",
    pages=2,
)
def lock(live: Live) -> None:
    segment = get_segment(live, 2 * live.size, flags=0o600 | IPC_CREAT)
    memory = segment.attach()
    memory.touch(0, 5)
    owner, stranger = live.actor(), live.actor()
    owner.call("setrlimit", RLIMIT_MEMLOCK, live.host.uapi.pack("2Q", 0, 0))
    become_nobody(owner)
    become_nobody(stranger)
    for command in (SHM_LOCK, SHM_UNLOCK, SHM_UNLOCK, SHM_LOCK):
        before = segment.status()
        live.expect_errno(errno.EPERM, stranger.call, "shmctl", segment.identifier, command, 0)
        segment.actor.call("shmctl", segment.identifier, command, 0)
        live.expect("what IPC_STAT tells", before, segment.status())
        live.expect("VmLck", 0, process_status(live, segment.actor).locked)
        live.expect("Locked of the mapping", 0, memory.smaps().fields.get("Locked", 0))
        live.expect_pool(nr=2, free=1, resv=1)
    segment.change(NOBODY, 0o600)
    live.expect_errno(errno.EPERM, owner.call, "shmctl", segment.identifier, SHM_LOCK, 0)
    owner.call("shmctl", segment.identifier, SHM_UNLOCK, 0)
    live.expect_errno(errno.EINVAL, owner.call, "shmctl", -1, SHM_LOCK, 0)
    live.expect("what the page holds", 5, memory.read())
    segment.detach(memory)
    segment.remove()
    live.expect_pool(nr=2, free=2)


@SEGMENT_CONTROL.case(
    "the number of a segment that was removed is that of none, EINVAL, although another segment has its place since: it"
    " is neither attached nor told of, changed, locked or removed by that",
    "shmctl(2) EINVAL, shmat(2) EINVAL; ipc/util.c ipc_obtain_object_check(), ipc_checkid()",
)
def number_of_a_removed_segment(live: Live) -> None:
    actor, flags = live.actor(), 0o600 | IPC_CREAT | SHM_NORESERVE
    old = get_segment(live, live.size, actor, flags=flags)
    old.remove()
    for _segment in range(_MOST_PLACES):
        now = get_segment(live, live.size, actor, flags=flags)
        if (now.identifier - old.identifier) % _PLACES == 0:
            break
        now.remove()
    else:
        raise CannotRun(f"none of {_MOST_PLACES} segments came to the place of the first one")
    before = now.status()
    live.expect("whether its number is another one", True, now.identifier != old.identifier)
    status = bytes(112)
    for command, argument in ((IPC_STAT, status), (IPC_SET, status), (SHM_LOCK, 0), (SHM_UNLOCK, 0), (IPC_RMID, 0)):
        with live.about(f"command {command}"):
            live.expect_errno(errno.EINVAL, actor.call, "shmctl", old.identifier, command, argument)
    live.expect_errno(errno.EINVAL, old.attach)
    live.expect("what IPC_STAT tells", before, now.status())


@SEGMENT_CONTROL.case(
    "a key finds its segment, of huge pages or of base pages, for each size up to the one that it was made with, to the"
    " byte, and for none above it: EINVAL, also within its last page, and whatever pages are asked for",
    "shmget(2) EINVAL, EEXIST; ipc/shm.c shm_more_checks(); ipc/util.c ipcget_public()",
    pages=2,
)
def sizes_that_find_a_segment(live: Live) -> None:
    base, huge = live.base_page, SHM_HUGETLB | live.size_flag
    asked_as = 0, huge, IPC_CREAT | 0o600, huge | IPC_CREAT | SHM_NORESERVE | 0o600
    sizes = live.size, min(live.size, _LARGE)
    rows = [(made, size, pages) for size, pages in zip(sizes, (huge, 0), strict=True) for made in _sizes(size, base)]
    for made, size, pages in rows:
        owner = live.actor()
        segment = Segment(live, owner, segment_number(live, owner, made, pages | IPC_CREAT | 0o600, KEY), 0)
        with live.about(f"a segment of {made} bytes, of huge pages {bool(pages)}"):
            kept = -(-made // size) if pages else 0
            for asked in sorted({0, 1, made - 1, made, made + 1, made + base, size, size + 1, 2 * size, 1 << 46}):
                found = {owner.result("shmget", KEY, asked, flags) for flags in asked_as}
                wanted = segment.identifier if asked <= made else -errno.EINVAL
                live.expect(f"what is found for {asked} bytes", {wanted}, found)
                live.expect_errno(errno.EEXIST, owner.call, "shmget", KEY, asked, huge | IPC_CREAT | IPC_EXCL | 0o600)
            live.expect("size that IPC_STAT tells", made, segment.status().size)
            live.expect_pool(nr=2, free=2, resv=kept)
            segment.remove()
            live.expect_pool(nr=2, free=2)
        owner.end()


def _sizes(size: int, base: int) -> tuple[int, ...]:
    return 1, base, size // 2, size - 1, size, size + 1, 2 * size - base


@SEGMENT_CONTROL.case(
    "who has CAP_IPC_LOCK, or the group of hugetlb_shm_group as his own or among his others, gets a segment of huge"
    " pages, and nobody else, not even root: EPERM, and nothing is reserved; mappings and nameless files are for all",
    f"{HUGETLB_DOC} /proc/sys/vm/hugetlb_shm_group; fs/hugetlbfs/inode.c can_do_hugetlb_shm(), hugetlb_file_setup()",
    pages=2,
)
def who_gets_segments(live: Live) -> None:
    # user, own group, other groups, whether with CAP_IPC_LOCK
    users = (
        (NOBODY, NOBODY, (), False),
        (NOBODY, NOBODY, (GROUP_ID,), False),
        (NOBODY, NOBODY, (GROUP_ID - 1, GROUP_ID + 1), False),
        (NOBODY, NOBODY, (0, GROUP_ID, GROUP_ID + 1, NOBODY), False),
        (NOBODY, GROUP_ID, (), False),
        (NOBODY, NOBODY, (), True),
        (0, 0, (), False),
        (0, 0, (), True),
    )
    for group, (user, own, others, has_capability) in product((GROUP_ID, 0), users):
        live.set_knob("proc/sys/vm/hugetlb_shm_group", f"{group}")
        actor = live.actor()
        # before Linux 5.16 (83c1fd763b32) a segment within the limit of locked memory was for everyone
        actor.call("setrlimit", RLIMIT_MEMLOCK, live.host.uapi.pack("2Q", 0, 0))
        actor.call("setgroups", len(others), live.host.uapi.pack(f"{len(others)}I", *others) if others else 0)
        actor.call("setresgid", own, own, own)
        with ExitStack() as stack, live.about(f"group {group}, user {user} of {own}, {others}, may {has_capability}"):
            if user and has_capability:
                become_user_with(actor, user, IPC_LOCK)
            elif user:
                actor.call("setresuid", user, user, user)
            elif not has_capability:
                stack.enter_context(without_capability(actor, IPC_LOCK))
            gets_one = has_capability or group in (own, *others)
            found = actor.result("shmget", IPC_PRIVATE, live.size, SHM_HUGETLB | live.size_flag | IPC_CREAT | 0o600)
            live.expect("whether it is EPERM", not gets_one, found == -errno.EPERM)
            live.expect_pool(nr=2, free=2, resv=int(gets_one))
            if found >= 0:
                actor.call("shmctl", found, IPC_RMID, 0)
            live.expect_success(live.map, 1, actor)
            live.expect_success(new_memfd(live, actor).map, 1)
            live.expect_pool(nr=2, free=2, resv=2)
        actor.end()
        live.expect_pool(nr=2, free=2)


# --- limits ----------------------------------------------------------------------------------------------------------


def alone_with_limit(live: Live, name: str, limit: int) -> Actor:
    """Return an actor that sees no segments but its own, of which the sysctl ``name`` allows ``limit``.

    Raises CannotRun where it cannot have limits of its own.
    """
    actor = in_own_namespace(live)
    write_limit(live, actor, name, limit)
    return actor


def expect_one_at_a_time(live: Live, actor: Actor, length: int) -> None:
    """Expect a second segment to be refused as long as there is one, again and again, and to reserve nothing."""
    for _turn in range(3):
        segment = new_segment(live, actor, length)
        live.expect_pool(nr=2, free=2, resv=1)
        live.expect_errno(errno.ENOSPC, new_segment, live, actor, length)
        live.expect_pool(nr=2, free=2, resv=1)
        segment.remove()
        live.expect_pool(nr=2, free=2)


@SEGMENT_CONTROL.case("kernel.shmmni is the most segments; one that was removed counts no more", LIMITS, pages=2)
def number_of_segments(live: Live) -> None:
    expect_one_at_a_time(live, alone_with_limit(live, "shmmni", 1), live.size)


@SEGMENT_CONTROL.case("kernel.shmall is the most base pages; those of a removed segment count no more", LIMITS, pages=2)
def pages_of_all_segments(live: Live) -> None:
    limit = live.size // live.base_page
    expect_one_at_a_time(live, alone_with_limit(live, "shmall", limit), live.size)
    # what was asked for counts, and not the whole page
    expect_one_at_a_time(live, alone_with_limit(live, "shmall", limit - 1), live.size - live.base_page)


@SEGMENT_CONTROL.case(
    "kernel.shmmax is the most bytes of each segment as they are asked for, EINVAL, and not of all segments together;"
    " what is refused reserves nothing",
    "shmget(2) EINVAL; ipc/shm.c newseg()",
    pages=2,
)
def size_of_a_segment(live: Live) -> None:
    for limit in (1, live.base_page, live.size - 1, live.size):
        actor = alone_with_limit(live, "shmmax", limit)
        with live.about(f"shmmax of {limit}"):
            for length in (0, limit + 1, live.size + 1, 2 * live.size):
                live.expect_errno(errno.EINVAL, new_segment, live, actor, length)
                live.expect_pool(nr=2, free=2)
            segments = [new_segment(live, actor, limit) for _segment in range(2)]
            live.expect_pool(nr=2, free=2, resv=2)
            live.expect("size that IPC_STAT tells", [limit] * 2, [segment.status().size for segment in segments])
            for segment in segments:
                segment.remove()
            live.expect_pool(nr=2, free=2)
        actor.end()


class SegmentControl(LiveTest):
    def test_segment_control(self) -> None:
        self.run_area(SEGMENT_CONTROL)
