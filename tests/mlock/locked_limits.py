"""How much memory a process may lock: RLIMIT_MEMLOCK, to the base page, with and without the right to exceed it."""

import errno
import mmap
from collections.abc import Iterable
from itertools import product

from hugepage_qa.cases.capabilities import become_nobody, become_user
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_segments import (
    IPC_CREAT,
    IPC_PRIVATE,
    IPC_RMID,
    SHM_LOCK,
    SHM_REMAP,
    SHM_UNLOCK,
    Segment,
)
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.locked_bytes import LOCKED, expect_locked, limit_locked_memory
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.process_counters import process_status
from hugepage_qa.cases.segment_namespace import in_own_namespace
from hugepage_qa.cases.thp_memory import pmd_size, room_for
from hugepage_qa.cases.thp_policy import huge_pages
from hugepage_qa.cases.thp_shared_memory import expect_mapped_whole, let_only_pmd_inherit, shared_huge_pages
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MLOCK_ONFAULT, MREMAP_MAYMOVE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

LOCKED_LIMITS = Area("mlock/locked-limits", sizes=Sizes.ONCE)

_LIMIT = "setrlimit(2) RLIMIT_MEMLOCK; mlock(2) NOTES, Limits and permissions"
_PAGES = 4
#: of whom no other process is
_USER = 54321
#: SHM_LOCKED of include/linux/shm.h, which shmctl(2) tells beside the mode
_LOCKED, _MODE = 0o2000, 0o600
#: of base pages, from the first one up to, not including, the second one
_Range = tuple[int, int]


@LOCKED_LIMITS.case(
    "who is not privileged locks no more than the limit, to the base page, whatever of it is locked already: ENOMEM for"
    " more, and all is as it was; who is privileged may",
    f"{_LIMIT}; mm/mlock.c do_mlock(), count_mm_mlocked_page_nr()",
)
def limited(live: Live) -> None:
    let_only_pmd_inherit(live)
    for make in (huge_pages, shared_huge_pages):
        memory = make(live, _PAGES)
        actor, limit = memory.actor, 2 * memory.size
        limit_locked_memory(live, actor, limit)
        memory.lock()
        expect_locked(live, actor, memory.length)
        memory.unlock()
        become_nobody(actor)
        ranges = _ranges(memory.size // live.base_page)
        for before, more in product(((), *((one,) for one in ranges), tuple(ranges[:2])), ranges):
            held, wanted = _count(before) * live.base_page, _count((*before, more)) * live.base_page
            if held > limit:
                continue
            with live.about(f"{make.__name__}, base pages {before} locked, then {more}"):
                for part in before:
                    _lock(live, memory, part)
                if wanted > limit:
                    live.expect_errno(errno.ENOMEM, _lock, live, memory, more)
                else:
                    _lock(live, memory, more)
                live.expect("VmLck", held if wanted > limit else wanted, process_status(live, actor).locked)
                memory.unlock()
        actor.end()


def _ranges(page: int) -> list[_Range]:
    """Return ranges of base pages, of which a huge page has ``page``: two apart, then those that meet them in part."""
    return [
        (1, page),
        (page + 1, 2 * page),
        (0, 2 * page),
        (0, 2 * page + 1),
        (page - 1, 2 * page),
        (page, 3 * page),
        (page + page // 2, 3 * page + page // 2 - 1),
        (2 * page, 4 * page),
        (2 * page - 1, 2 * page + 1),
        (0, 4 * page),
    ]


def _count(ranges: Iterable[_Range]) -> int:
    """Return how many base pages are in any of ``ranges``."""
    return len(set[int]().union(*(range(*one) for one in ranges)))


@LOCKED_LIMITS.case(
    "memory beyond the limit is EAGAIN for who maps it locked, makes what is locked longer, or locks all that comes;"
    " all that there is is locked where it is within the limit, else ENOMEM; with a limit of 0 all of it is EPERM",
    f"{_LIMIT}; mmap(2) EAGAIN, EPERM; mremap(2) EAGAIN; mlockall(2) ENOMEM, EPERM; mm/mmap.c mlock_future_ok()",
)
def limited_otherwise(live: Live) -> None:
    memory = huge_pages(live, 1)
    actor, size, base, uapi = memory.actor, memory.size, live.base_page, live.host.uapi
    limit = 2 * size
    limit_locked_memory(live, actor, limit)
    become_nobody(actor)

    def map_locked(length: int, flags: int = uapi.map_locked) -> int:
        return actor.mmap(length, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags)

    actor.call("mlock", memory.address, size)
    live.expect_errno(errno.EAGAIN, map_locked, size + base)
    expect_locked(live, actor, size)
    there = map_locked(size - base)
    expect_locked(live, actor, limit - base)
    for length, is_allowed in ((size + base, False), (size, True)):
        longer = "mremap", there, size - base, length, MREMAP_MAYMOVE
        if is_allowed:
            there = actor.call(*longer)
        else:
            live.expect_errno(errno.EAGAIN, actor.call, *longer)
        expect_locked(live, actor, limit if is_allowed else limit - base)
    actor.call("munlockall")
    actor.call("mlockall", uapi.mcl_future)
    live.expect_errno(errno.EAGAIN, map_locked, limit + base, 0)
    expect_locked(live, actor, 0)
    map_locked(limit, 0)
    expect_locked(live, actor, limit)
    actor.call("munlockall")
    expect_locked(live, actor, 0)
    all_of_it = process_status(live, actor).sizes["VmSize"]
    for most, error in ((all_of_it - base, errno.ENOMEM), (0, errno.EPERM)):
        limit_locked_memory(live, actor, most)
        live.expect_errno(error, actor.call, "mlockall", uapi.mcl_current)
        expect_locked(live, actor, 0)
    for name, *more in (("mlock",), ("mlock2", 0), ("mlock2", MLOCK_ONFAULT)):
        live.expect_errno(errno.EPERM, actor.call, name, memory.address, base, *more)
    live.expect_errno(errno.EPERM, actor.call, "mlockall", uapi.mcl_future)
    live.expect_errno(errno.EPERM, map_locked, base)
    limit_locked_memory(live, actor, all_of_it)
    actor.call("mlockall", uapi.mcl_current)
    live.expect("VmFlags lo", True, LOCKED in memory.smaps().flags)
    limit_locked_memory(live, actor, 0)
    # whatever the limit is now
    actor.call("munlock", memory.address, size)
    live.expect("VmFlags lo of what is unlocked", False, LOCKED in memory.smaps().flags)


def _lock(live: Live, memory: Memory, pages: _Range) -> None:
    first, end = pages
    base = live.base_page
    memory.actor.call("mlock", memory.address + first * base, (end - first) * base)


@LOCKED_LIMITS.case(
    "IPC_STAT tells that a segment is locked from SHM_LOCK to SHM_UNLOCK, whether its owner or root does either, and"
    " whether or not it is attached then; it counts once, to the limit of who locked it, ENOMEM for more, and no more"
    " when it is unlocked or gone",
    f"shmctl(2) SHM_LOCK, SHM_UNLOCK, SHM_LOCKED; {_LIMIT}; ipc/shm.c shmctl_do_lock(), shm_destroy(); mm/mlock.c"
    " user_shm_lock()",
)
def limited_segments(live: Live) -> None:
    let_only_pmd_inherit(live)
    length = pmd_size(live) + live.base_page
    # segments go with their namespace
    root = in_own_namespace(live)
    user = root.fork()
    limit_locked_memory(live, user, 2 * length)
    become_user(user, _USER)
    who = {"its owner": user, "root": root}
    for policy, names in product(("always", "never"), product(who, repeat=2)):
        live.set_knob(f"{DIRECTORY}/shmem_enabled", policy)
        locker, unlocker = (who[name] for name in names)
        free, left = 2 * length, length if locker is user else 2 * length
        for attached in product((False, True), repeat=3):
            with live.about(f"shmem_enabled={policy}, by {names}, attached before, locked, unlocked: {attached}"):
                segment = _Segment(live, user, length, int(policy == "always"))
                segment.attach_or_detach(attached[0])
                segment.expect_locked(False, free)
                segment.attach_or_detach(attached[1])
                for _time in range(2):
                    locker.call("shmctl", segment.identifier, SHM_LOCK, 0)
                    segment.expect_locked(True, left)
                segment.attach_or_detach(attached[2])
                for _time in range(2):
                    unlocker.call("shmctl", segment.identifier, SHM_UNLOCK, 0)
                    segment.expect_locked(False, free)
                locker.call("shmctl", segment.identifier, SHM_LOCK, 0)
                segment.expect_locked(True, left)
                user.call("shmctl", segment.identifier, IPC_RMID, 0)
                segment.expect_room(left if attached[2] else free)
                segment.attach_or_detach(False)
                segment.expect_room(free)


class _Segment:
    """A segment of ``length`` bytes that ``user`` may lock and unlock, and that gets so many ``huge`` pages."""

    def __init__(self, live: Live, user: Actor, length: int, huge: int) -> None:
        self._live, self._user, self._length, self._huge = live, user, length, huge
        self.identifier = user.call("shmget", IPC_PRIVATE, length, IPC_CREAT | _MODE)
        self._address = 0

    def attach_or_detach(self, is_attached: bool) -> None:
        """Have ``user`` attach and fill it, or detach it, where it is not so already."""
        if is_attached and not self._address:
            size = pmd_size(self._live)
            self._address = self._user.call("shmat", self.identifier, room_for(self._user, 2, size), SHM_REMAP)
            self._user.fill(self._address, self._length, WORD, 1)
            memory = Memory(self._live, self._user, self._address, 1, size)
            expect_mapped_whole(self._live, memory, self._huge, "a segment")
        elif self._address and not is_attached:
            self._user.call("shmdt", self._address)
            self._address = 0

    def expect_locked(self, is_locked: bool, room: int) -> None:
        """Expect IPC_STAT to tell whether it is, and ``user`` to have ``room`` bytes left to lock."""
        mode = Segment(self._live, self._user, self.identifier, 0).status().mode
        self._live.expect("mode", oct(_MODE | _LOCKED * is_locked), oct(mode))
        self.expect_room(room)

    def expect_room(self, room: int) -> None:
        """Expect ``user`` to have ``room`` bytes left to lock, to the base page."""
        for length in (room + self._live.base_page, room):
            other = self._user.call("shmget", IPC_PRIVATE, length, IPC_CREAT | _MODE)
            found = self._user.result("shmctl", other, SHM_LOCK, 0)
            self._live.expect(f"SHM_LOCK of {length} bytes more", 0 if length == room else -errno.ENOMEM, found)
            self._user.call("shmctl", other, IPC_RMID, 0)


class ThpLockedLimits(LiveTest):
    def test_locked_limits(self) -> None:
        self.run_area(LOCKED_LIMITS)
