"""Huge pages within the limits of a process (setrlimit(2)), and what it locks as a whole (mlockall(2))."""

import errno
import mmap
import signal
from itertools import product

from hugepage_qa.cases.capabilities import become_nobody
from hugepage_qa.cases.case import Area
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.locked_bytes import limit_locked_memory
from hugepage_qa.cases.process_counters import process_status
from hugepage_qa.kernel.uapi import MLOCK_ONFAULT, RLIM_INFINITY, RLIMIT_AS, RLIMIT_DATA
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

LIMITS = Area("memory/limits")

_SPACE = "setrlimit(2) RLIMIT_AS; mm/mmap.c may_expand_vm()"
_DATA = "setrlimit(2) RLIMIT_DATA; mm/mmap.c may_expand_vm()"
_LOCKED_SIZE = "setrlimit(2) RLIMIT_MEMLOCK; mlock(2) ENOMEM, EPERM; mmap(2) EAGAIN, EPERM"
_LOCK = "mlockall(2); mm/mlock.c apply_mlockall_flags(); mm/mmap.c do_mmap()"
_IGNORED = "sys/module/kernel/parameters/ignore_rlimit_data"


@LIMITS.case(
    "a mapping for which the limit of address space leaves no room is ENOMEM, and takes and reserves no page",
    _SPACE,
    pages=3,
)
def address_space(live: Live) -> None:
    for shared in (False, True):
        actor = live.actor()
        # room for one page, and almost for another one
        _limit(live, actor, RLIMIT_AS, _size(live, actor, "VmSize") + 2 * live.size - live.base_page)
        live.expect_errno(errno.ENOMEM, live.map, 2, actor, shared=shared)
        live.expect_pool(nr=3, free=3)
        memory = live.map(1, actor, shared=shared)
        memory.touch(value=5)
        live.expect_errno(errno.ENOMEM, live.map, 1, actor, shared=shared)
        live.expect_pool(nr=3, free=2)
        live.expect("what the page holds", 5, memory.read())
        memory.unmap()
        live.expect_pool(nr=3, free=3)
        # what was refused, and what is gone, is no part of the address space
        live.map(1, actor, shared=shared).touch()
        actor.end()
        live.expect_pool(nr=3, free=3)


@LIMITS.case(
    "private pages that can be written count as data, which a limit bounds: ENOMEM for a mapping, and for mprotect(2);"
    " shared ones, and those that can be read alone, do not",
    _DATA,
    pages=3,
)
def private_data(live: Live) -> None:
    if (live.host.read(_IGNORED) or "").strip() == "Y":
        raise CannotRun(f"/{_IGNORED} is Y: this kernel has no limit of data")
    actor = live.actor()
    _limit(live, actor, RLIMIT_DATA, _size(live, actor, "VmData") + live.size - live.base_page)
    live.expect_errno(errno.ENOMEM, live.map, 1, actor)
    live.expect_pool(nr=3, free=3)
    live.map(1, actor, shared=True).touch()
    live.expect_pool(nr=3, free=2)
    read_only = live.map(1, actor, prot=mmap.PROT_READ)
    live.expect("what the page holds", 0, read_only.read())
    live.expect_errno(errno.ENOMEM, read_only.protect, READ_WRITE)
    live.expect_signal(signal.SIGSEGV, read_only.touch)
    live.expect_pool(nr=3, free=1)
    _limit(live, actor, RLIMIT_DATA, RLIM_INFINITY)
    read_only.protect(READ_WRITE)
    read_only.touch(value=6)
    live.expect("what the page holds", 6, read_only.read())
    live.expect_pool(nr=3, free=1)


@LIMITS.case(
    "mlockall(2) takes the pages of all that is mapped, or of all that will be, at once, and counts none as locked",
    _LOCK,
    pages=3,
)
def locked_all(live: Live) -> None:
    uapi = live.host.uapi
    for shared, flag in product((False, True), (uapi.mcl_current, uapi.mcl_future)):
        actor = live.actor()
        memory = live.map(1, actor, shared=shared)
        actor.call("mlockall", flag)
        is_current = flag == uapi.mcl_current
        live.expect_pool(nr=3, free=2 if is_current else 3, resv=0 if is_current else 1)
        later = live.map(2, actor, shared=shared)
        live.expect_pool(nr=3, free=2 if is_current else 1, resv=2 if is_current else 1)
        for one in (memory, later):
            live.expect("Locked of the mapping", 0, one.smaps().fields["Locked"])
        for page, one in enumerate((memory, later)):
            one.touch(page, 7)
        actor.call("munlockall")
        live.expect_pool(nr=3, free=1 if is_current else 0, resv=1 if is_current else 0)
        live.expect("what two pages hold", [7, 7], [memory.read(), later.read(1)])
        actor.end()
        live.expect_pool(nr=3, free=3)


@LIMITS.case(
    "who is not privileged locks no range that is longer than the limit, ENOMEM, nor maps one locked, EAGAIN, and takes"
    " and reserves no page by that; ranges within it as many as there are pages, for none of them is counted",
    f"{_LOCKED_SIZE}; mm/mlock.c do_mlock(), mlock_fixup(); mm/mmap.c do_mmap()",
    pages=4,
)
def locked_size(live: Live) -> None:
    flags = live.host.uapi.map_locked
    for shared in (False, True):
        actor = live.actor()
        memory = live.map(2, actor, shared=shared)
        limit_locked_memory(live, actor, live.size - live.base_page)
        become_nobody(actor)
        live.expect_errno(errno.ENOMEM, actor.call, "mlock", memory.address, live.size)
        live.expect_errno(errno.ENOMEM, actor.call, "mlock2", memory.address, live.size, MLOCK_ONFAULT)
        live.expect_errno(errno.EAGAIN, live.map, 1, actor, shared=shared, flags=flags)
        live.expect_pool(nr=4, free=4, resv=2)
        limit_locked_memory(live, actor, live.size)
        live.expect_errno(errno.ENOMEM, actor.call, "mlock", memory.address, live.size + live.base_page)
        live.expect_errno(errno.EAGAIN, live.map, 2, actor, shared=shared, flags=flags)
        live.expect_pool(nr=4, free=4, resv=2)
        for page in range(2):
            actor.call("mlock", memory.at(page), live.size)
            live.expect_pool(nr=4, free=3 - page, resv=1 - page)
            later = live.map(1, actor, shared=shared, flags=flags)
            live.expect_pool(nr=4, free=2 - page, resv=1 - page)
            later.unmap()
        live.expect("VmLck", 0, process_status(live, actor).locked)
        # with no limit to use none of it is locked, however short it is
        limit_locked_memory(live, actor, 0)
        live.expect_errno(errno.EPERM, actor.call, "mlock", memory.address, live.base_page)
        live.expect_errno(errno.EPERM, live.map, 1, actor, shared=shared, flags=flags)
        memory.unlock()
        live.expect_pool(nr=4, free=2)
        actor.end()
        live.expect_pool(nr=4, free=4)


def _size(live: Live, actor: Actor, name: str) -> int:
    """Return a size of ``actor`` that /proc/PID/status has, in bytes.

    It has answered by then: before, it may not have been executed yet, or have its libraries still to map.
    """
    actor.call("brk", 0)
    return process_status(live, actor).sizes[name]


def _limit(live: Live, actor: Actor, resource: int, size: int) -> None:
    """Have ``actor`` keep to ``size`` bytes of ``resource``, and be free to have more later."""
    actor.call("setrlimit", resource, live.host.uapi.pack("2Q", size, RLIM_INFINITY))


class Limits(LiveTest):
    def test_limits(self) -> None:
        self.run_area(LIMITS)
