"""Huge pages in buffers that a process registers with io_uring(7): how much of them counts as pinned."""

import errno

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import process_status
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.pinned_pages import Pin
from hugepage_qa.cases.thp_policy import huge_pages
from hugepage_qa.kernel.uapi import RLIMIT_MEMLOCK
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused, become_nobody

BUFFERS = Area("registered-buffers")

_WHOLE = "io_uring_register(2) IORING_REGISTER_BUFFERS; io_uring/rsrc.c io_buffer_account_pin()"
#: huge pages, more than buffers lie in here
_LIMIT = 3


@BUFFERS.case(
    "VmPin of a user counts each page that buffers lie in once and whole, whatever part of it they are, and the limit"
    " of locked memory bounds it: ENOMEM, and nothing is pinned",
    _WHOLE,
    pages=2,
    since="5.10",
)
def hugetlb_buffers(live: Live) -> None:
    memory = live.map(2)
    memory.fill()
    _expect_counted(live, memory)
    memory.actor.end()
    live.expect_pool(nr=2, free=2)


@BUFFERS.case(
    "VmPin of a user counts each transparent huge page that buffers lie in once and whole, and the limit of locked"
    " memory bounds it: ENOMEM, and nothing is pinned",
    _WHOLE,
    sizes=Sizes.ONCE,
    since="5.10",
)
def transparent_buffers(live: Live) -> None:
    _expect_counted(live, huge_pages(live, 2))


def _expect_counted(live: Live, memory: Memory) -> None:
    """Expect parts of the first two pages of ``memory`` to count as pinned by pages; its actor becomes nobody."""
    size, base, actor = memory.size, live.base_page, memory.actor
    first, last, both = (0, base), (size - base, base), (size - base, 2 * base)
    try:
        _limit(live, memory, _LIMIT * size)
    except Refused as refusal:
        raise CannotRun("root may not raise the limit of locked memory: it lacks CAP_SYS_RESOURCE") from refusal
    # of who may lock as much as he likes some kernels count nothing
    become_nobody(actor)
    pin = Pin(live, memory)
    for parts, pages in (
        ([first], 1),
        ([last], 1),
        ([(0, size)], 1),
        ([first, last], 1),
        ([both], 2),
        ([first, (size, size)], 2),
    ):
        with live.about(f"buffers at {parts}"):
            _limit(live, memory, _LIMIT * size)
            pin.hold(*parts)
            live.expect("VmPin", pages * size, _pinned(live, memory))
            pin.let_go()
            live.expect("VmPin without buffers", 0, _pinned(live, memory))
            _limit(live, memory, pages * size - base)
            live.expect_errno(errno.ENOMEM, pin.hold, *parts)
            live.expect("VmPin of what is beyond the limit", 0, _pinned(live, memory))
    memory.expect_filled()


def _pinned(live: Live, memory: Memory) -> int:
    return process_status(live, memory.actor).sizes["VmPin"]


def _limit(live: Live, memory: Memory, limit: int) -> None:
    """Limit the locked memory of the actor to ``limit`` bytes; it may have more again, up to _LIMIT pages."""
    memory.actor.call("setrlimit", RLIMIT_MEMLOCK, live.host.uapi.pack("2Q", limit, _LIMIT * memory.size))


class RegisteredBuffers(LiveTest):
    """Huge pages in buffers of io_uring, for every page size of the machine.

    :avocado: enable
    """

    def test_registered_buffers(self) -> None:
        """Every case for every page size."""
        self.run_area(BUFFERS)
