"""System V segments of huge pages in a namespace of their own: their sum, and what takes them away unasked."""

import errno

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.expectations import KnownBug
from hugepage_qa.cases.hugetlb_segments import IPC_CREAT, IPC_PRIVATE, IPC_STAT, SHM_HUGETLB, SHM_NORESERVE, Segment
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.pool_view import Counters
from hugepage_qa.cases.segment_namespace import in_own_namespace, new_segment, write_limit
from hugepage_qa.kernel.uapi import CLONE_NEWIPC
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

SEGMENT_NAMESPACES = Area("memory/segment-namespaces")
FORCED = "Documentation/admin-guide/sysctl/kernel.rst shm_rmid_forced; ipc/shm.c"
#: include/uapi/linux/shm.h
_SHM_STAT, _SHM_INFO, _SHM_STAT_ANY = 13, 14, 15
_SHMID_SIZE, _INFO_SIZE = 112, 48
_MODE = 0o600


@SEGMENT_NAMESPACES.case(
    "segments go with the last process of their namespace, touched or not, reserved or not; one that is attached keeps"
    " it, and what it holds, until it is detached",
    "ipc_namespaces(7); ipc/shm.c shm_exit_ns(), do_shm_rmid()",
    pages=3,
)
def end_of_a_namespace(live: Live) -> None:
    for attached in (False, True):
        # gigantic pages take a second each
        for touched in (1,) if live.is_gigantic else range(3):
            actor = in_own_namespace(live)
            segment = new_segment(live, actor, 2 * live.size)
            unreserved = new_segment(live, actor, live.size, SHM_NORESERVE)
            memory, other = segment.attach(), unreserved.attach()
            for page in range(touched):
                memory.touch(page, 5 + page)
            other.touch(value=9)
            unreserved.detach(other)
            if not attached:
                segment.detach(memory)
            with live.about(f"{touched} pages are touched, attached {attached}"):
                live.expect_pool(nr=3, free=2 - touched, resv=2 - touched)
                actor.call("unshare", CLONE_NEWIPC)
                live.expect_errno(errno.EINVAL, segment.status)
                if attached:
                    live.expect_pool(nr=3, free=2 - touched, resv=2 - touched)
                    live.expect("what it holds", [5, 6][:touched], [memory.read(page) for page in range(touched)])
                    segment.detach(memory)
                expect_all_free(live, 3)
            actor.end()


@SEGMENT_NAMESPACES.case(
    "with kernel.shm_rmid_forced a segment goes when nobody has it attached any more, and one that nobody had attached"
    " when its creator ends; until then they stay",
    f"{FORCED} shm_may_destroy(), exit_shm()",
    pages=2,
)
def forced_removal(live: Live) -> None:
    keeper = in_own_namespace(live)
    write_limit(live, keeper, "shm_rmid_forced", 1)
    for touched in (0, 1):
        for ended in (False, True):
            creator, user = keeper.fork(), keeper.fork()
            segment = new_segment(live, creator, 2 * live.size)
            with live.about(f"who has it attached ends {ended}, {touched} pages are touched"):
                memories = [segment.attach(each) for each in (creator, user)]
                for page in range(touched):
                    memories[0].touch(page, 5)
                _leave(segment, memories[0], ended=ended)
                live.expect_pool(nr=2, free=2 - touched, resv=2 - touched)
                live.expect("what it holds", 5 if touched else None, memories[1].read() if touched else None)
                _leave(segment, memories[1], ended=ended)
                live.expect_errno(errno.EINVAL, segment.status, keeper)
                live.expect_pool(nr=2, free=2)
            creator.end()
            user.end()
    creator = keeper.fork()
    segment = new_segment(live, creator, 2 * live.size)
    live.expect("how often it is attached", 0, segment.status(keeper).attachments)
    live.expect_pool(nr=2, free=2, resv=2)
    creator.end()
    live.expect_errno(errno.EINVAL, segment.status, keeper)
    live.expect_pool(nr=2, free=2)


def _leave(segment: Segment, memory: Memory, *, ended: bool) -> None:
    if ended:
        memory.actor.end()
    else:
        segment.detach(memory)


@SEGMENT_NAMESPACES.case(
    "kernel.shm_rmid_forced takes away at once, when it is written, each segment that nobody has attached and whose"
    " creator has ended, and no other",
    f"{FORCED} shm_destroy_orphaned()",
    pages=4,
)
def orphaned_segments(live: Live) -> None:
    keeper = in_own_namespace(live)
    write_limit(live, keeper, "shm_rmid_forced", 0)
    gone, alive = keeper.fork(), keeper.fork()
    orphans = [new_segment(live, gone, live.size) for _each in range(2)]
    used = new_segment(live, gone, live.size)
    memory = used.attach(keeper)
    memory.touch(value=5)
    owned = new_segment(live, alive, live.size)
    touched = orphans[0].attach(gone)
    touched.touch()
    gone.end()
    for segment in (*orphans, used, owned):
        live.expect("the length of a segment", live.size, segment.status(keeper).size)
    live.expect_pool(nr=4, free=2, resv=2)
    write_limit(live, keeper, "shm_rmid_forced", 1)
    for segment in orphans:
        live.expect_errno(errno.EINVAL, segment.status, keeper)
    live.expect_pool(nr=4, free=3, resv=1)
    live.expect("what the one that is attached holds", 5, memory.read())
    live.expect("the length of the one whose creator is there", live.size, owned.status(keeper).size)
    used.detach(memory)
    live.expect_pool(nr=4, free=4, resv=1)
    alive.end()
    live.expect_pool(nr=4, free=4)


@SEGMENT_NAMESPACES.case(
    "SHM_INFO tells how many segments there are, and in base pages how long they are together and what of them is in"
    " memory, of huge pages and of base pages; SHM_STAT tells the number of each one, and of it what IPC_STAT does",
    "shmctl(2) SHM_INFO, SHM_STAT, SHM_STAT_ANY; ipc/shm.c shmctl_shm_info(), shm_get_stat(), shmctl_stat()",
    pages=3,
)
def sum_of_all_segments(live: Live) -> None:
    actor, base = in_own_namespace(live), live.base_page
    huge = SHM_HUGETLB | live.size_flag
    # the one of base pages is not touched: of how many a touch brings is not said
    rows = ((2 * live.size - base - 1, huge), (3 * base - 1, 0), (live.size, huge))
    segments, places, sums = list[Segment](), list[int](), [(0, 0, 0)]
    expect_sum(live, actor, sums[-1])
    for number, (length, flags) in enumerate(rows, start=1):
        identifier = actor.call("shmget", IPC_PRIVATE, length, flags | IPC_CREAT | _MODE)
        segments.append(Segment(live, actor, identifier, 1))
        _number, total, resident = sums[-1]
        total += -(-length // base)
        expect_sum(live, actor, (number, total, resident))
        memory = segments[-1].attach()
        places.append(memory.address)
        if flags:
            memory.touch()
            resident += live.size // base
        sums.append((number, total, resident))
        expect_sum(live, actor, sums[-1])
    for index, (segment, (length, _flags)) in enumerate(zip(segments, rows, strict=True)):
        live.expect("the length of a segment", length, segment.status().size)
        _zero, (own,) = _told(actor, segment.identifier, IPC_STAT)
        for command in (_SHM_STAT, _SHM_STAT_ANY):
            identifier, (told,) = _told(actor, index, command)
            live.expect("the number that SHM_STAT returns", segment.identifier, identifier)
            live.expect("whether it tells what IPC_STAT does", True, told == own)
    # a removed one counts until nobody has it attached
    while segments:
        segments.pop().remove()
        expect_sum(live, actor, sums.pop())
        actor.call("shmdt", places.pop())
        expect_sum(live, actor, sums[-1])
    live.expect_pool(nr=3, free=3)


def _told(actor: Actor, number: int, command: int) -> tuple[int, tuple[bytes, ...]]:
    return actor.call_with_buffers("shmctl", number, command, bytes(_SHMID_SIZE))


def expect_sum(live: Live, actor: Actor, expected: tuple[int, int, int]) -> None:
    """Expect what SHM_INFO tells: how many segments, their base pages, and those of them that are in memory.

    Raises KnownBug.
    """
    _index, (told,) = actor.call_with_buffers("shmctl", 0, _SHM_INFO, bytes(_INFO_SIZE))
    number, _unused, total, resident, _swapped = actor.uapi.unpack("2I3Q", told[:32])
    known = {Quirk.SEGMENT_RSS_MULTIPLIED: (*expected[:2], expected[2] * (live.size // live.base_page))}
    try:
        live.expect("segments, their base pages, and those in memory", expected, (number, total, resident), known)
    except KnownBug:
        # the case ends here, and a worker takes the namespace away with what is left in it
        actor.end()
        expect_all_free(live, 3)
        raise


def expect_all_free(live: Live, pages: int) -> None:
    """Expect all pages to be free: a worker takes a namespace away."""
    live.host.wait_until(lambda: live.pool() == Counters(pages, pages))
    live.expect_pool(nr=pages, free=pages)


class SegmentNamespaces(LiveTest):
    def test_segment_namespaces(self) -> None:
        self.run_area(SEGMENT_NAMESPACES)
