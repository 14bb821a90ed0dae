"""Huge pages and what else the kernel does with memory: futexes, protection keys, the page cache's statistics."""

import errno
import signal

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Fault, Refused

INTERFACES = Area("other-interfaces")

# include/uapi/asm-generic/mman-common.h, siginfo.h
PKEY_DISABLE_ACCESS, PKEY_DISABLE_WRITE = 1, 2
_DEFAULT_KEY = 0
_SEGV_PKUERR = 4
#: struct cachestat_range: from where on, and 0 for up to the end; struct cachestat: five counts
_WHOLE_FILE, _COUNTS = "QQ", 5 * 8


@INTERFACES.case(
    "two words of one page are two futexes, wherever in it they lie: waking one leaves those that wait for the other",
    "futex(2); kernel/futex/core.c get_futex_key() (13d60f4b6ab5)",
    pages=1,
)
def futexes_in_a_page(live: Live) -> None:
    for shared in (False, True):
        memory = live.map(1, shared=shared)
        memory.touch(value=0)
        # at the same place in two base pages, and side by side
        for other in (live.base_page, live.size // 2, live.size - live.base_page, 4):
            woken = memory.actor.wake(memory.address, memory.address + other)
            live.expect(f"threads woken at the first word, and at one {other} bytes behind it", (1, 1), woken)
        memory.unmap()
        live.expect_pool(nr=1, free=1)


@INTERFACES.case(
    "a page with a protection key is accessed as the key allows, and its contents come back with another key",
    "pkeys(7); Documentation/core-api/protection-keys.rst",
    pages=1,
)
def protection_keys(live: Live) -> None:
    for shared in (False, True):
        memory = live.map(1, shared=shared)
        memory.fill(5)
        live.expect_pool(nr=1, free=0)
        for rights in (PKEY_DISABLE_WRITE, PKEY_DISABLE_ACCESS):
            key = _protect(memory, rights)
            if rights == PKEY_DISABLE_WRITE:
                memory.expect_filled(5)
                _expect_denied(live, memory, is_write=True)
            else:
                _expect_denied(live, memory, is_write=False)
            memory.actor.call("pkey_mprotect", memory.address, live.size, READ_WRITE, _DEFAULT_KEY)
            memory.expect_filled(5)
            memory.fill(5)
            memory.actor.call("pkey_free", key)
        memory.unmap()
        live.expect_pool(nr=1, free=1)


def _protect(memory: Memory, rights: int) -> int:
    """Give ``memory`` a new protection key with which ``rights`` are denied, and return it. Raises CannotRun."""
    try:
        key = memory.actor.call("pkey_alloc", 0, rights)
    except Refused as refusal:
        if refusal.errno in (errno.ENOSPC, errno.ENOSYS, errno.EINVAL):
            raise CannotRun("this machine has no protection keys: pkey_alloc(2)") from refusal
        raise
    memory.actor.call("pkey_mprotect", memory.address, memory.length, READ_WRITE, key)
    return key


def _expect_denied(live: Live, memory: Memory, *, is_write: bool) -> None:
    found: tuple[signal.Signals, int] | None = None
    try:
        memory.touch(value=6) if is_write else memory.read()
    except Fault as fault:
        found = fault.signal, fault.code
    # a signal handler begins with the rights of a new process, and so goes on who leaves it by siglongjmp()
    live.expect("signal and code", (signal.SIGSEGV, _SEGV_PKUERR), found)


@INTERFACES.case(
    "cachestat(2) of a file of huge pages is refused: what it has is in no page cache that the call knows",
    "mm/filemap.c filemap_cachestat()",
    since="6.5",
    pages=1,
)
def cachestat(live: Live) -> None:
    file = new_memfd(live)
    file.map(1).touch()
    span = live.host.uapi.pack(_WHOLE_FILE, 0, live.size)
    words = "cachestat", file.descriptor, span, bytes(_COUNTS), 0
    live.expect_errno(errno.EOPNOTSUPP, file.actor.call, *words)
    live.expect_pool(nr=1, free=0)


class OtherInterfaces(LiveTest):
    """Cases on futexes, protection keys and cachestat(2), for every page size of the machine.

    :avocado: enable
    """

    def test_other_interfaces(self) -> None:
        """Every case for every page size."""
        self.run_area(INTERFACES)
