"""Huge pages in buffers that a process registers with io_uring(7): how much of them counts as pinned."""

import errno
from collections.abc import Sequence

from hugepage_qa.cases.capabilities import become_nobody
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.locked_bytes import limit_locked_memory
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.pinned_pages import LONGEST_BUFFER, Pin
from hugepage_qa.cases.places import free_place
from hugepage_qa.cases.process_counters import process_status
from hugepage_qa.cases.thp_policy import huge_pages
from hugepage_qa.kernel.uapi import MAP_FIXED
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused
from hugepage_qa.version import KernelVersion

BUFFERS = Area("memory/registered-buffers")

_WHOLE = "io_uring_register(2) IORING_REGISTER_BUFFERS; io_uring/rsrc.c io_buffer_account_pin()"
#: huge pages, more than buffers lie in here
_LIMIT = 3
#: what is replaced is let go at once since then (7029acd8a950); before, a worker did it within a second
_AT_ONCE = KernelVersion(6, 13)
_WORKER_SECONDS = 2.0


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
    "VmPin of a user counts a page once in which one buffer lies at several addresses, with another page between them",
    _WHOLE,
    pages=2,
    since="5.10",
    sizes=Sizes.BUDDY,  # no buffer is longer than a gigantic page, or than two of 512M
)
def page_at_several_addresses(live: Live) -> None:
    file = new_memfd(live, pages=2)
    place, order = free_place(live, file.actor, 5), (0, 1, 0, 0, 1)
    for number, page in enumerate(order):
        file.map(1, first=page, at=place + number * live.size, flags=MAP_FIXED)
    memory = Memory(live, file.actor, place, len(order), live.size)
    memory.part(0, 2).fill()
    limit_locked_memory(live, file.actor, _LIMIT * live.size, _LIMIT * live.size)
    become_nobody(file.actor)
    pin = Pin(live, memory)
    for first, pages, count in ((0, 3, 2), (2, 2, 1), (1, 4, 2), (0, 5, 2)):
        length = (pages - 2) * live.size + 2 * live.base_page
        if length > LONGEST_BUFFER:
            continue
        with live.about(f"a buffer in the pages {order[first : first + pages]}"):
            # it begins with the last base page of the first one, and ends with the first one of the last
            offset = (first + 1) * live.size - live.base_page
            pin.hold((offset, length))
            live.expect("VmPin", count * live.size, _pinned(live, memory))
            pin.let_go()
            live.expect("VmPin without buffers", 0, _pinned(live, memory))
    memory.part(0, 2).expect_filled()
    file.actor.end()
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


@BUFFERS.case(
    "VmPin of a user counts each page that buffers lie in once and whole when one of them is replaced by another part"
    " of the same page, or was the first of two in it",
    "io_uring_register(2) IORING_REGISTER_BUFFERS_UPDATE; io_uring/rsrc.c headpage_already_acct()",
    pages=2,
    since="5.13",
)
def replaced_buffers(live: Live) -> None:
    memory = live.map(2)
    memory.fill()
    size, base, actor = memory.size, live.base_page, memory.actor
    limit_locked_memory(live, actor, _LIMIT * size, _LIMIT * size)
    become_nobody(actor)
    first, last, other = (0, base), (size - base, base), (size, base)
    # pages that have buffers then, and those that are counted where a page counts for its first buffer alone
    for parts, instead, pages, counted in (
        # the only one of its page, by another one and by the same
        ([first], other, 1, 1),
        ([first], last, 1, 0),
        # one of two: the other one is there still
        ([first, last], other, 2, 1),
        ([first, last], first, 1, 0),
    ):
        with live.about(f"buffers at {parts}, the first one of which is {instead} then"):
            pin = Pin(live, memory)
            pin.hold(*parts)
            pin.replace(0, instead)
            found = _settled(live, memory, pages * size)
            # a known bug ends the case, and pages that are pinned then are not free for a while
            pin.let_go()
            live.expect("VmPin", pages * size, found, {Quirk.REPLACED_BUFFER_NOT_COUNTED: counted * size})
            live.expect("VmPin without buffers", 0, _pinned(live, memory))
    memory.expect_filled()
    actor.end()
    live.expect_pool(nr=2, free=2)


@BUFFERS.case(
    "VmPin of a user counts a page once in which a buffer of two rings lies, and until the second one lets it go",
    "io_uring_register(2) IORING_REGISTER_CLONE_BUFFERS; io_uring/rsrc.c io_clone_buffers()",
    pages=1,
    since="6.12",
)
def buffers_of_two_rings(live: Live) -> None:
    memory = live.map(1)
    memory.fill()
    word = memory.read()
    limit_locked_memory(live, memory.actor, _LIMIT * live.size, _LIMIT * live.size)
    become_nobody(memory.actor)
    for is_given_first in (True, False):
        with live.about(f"the ring that {'gave' if is_given_first else 'took'} it lets it go first"):
            giver, taker = Pin(live, memory), Pin(live, memory)
            giver.hold()
            taker.take_from(giver)
            live.expect("VmPin with two", live.size, _pinned(live, memory))
            first, second = (giver, taker) if is_given_first else (taker, giver)
            first.let_go()
            live.expect("VmPin with one", live.size, _pinned(live, memory))
            live.expect("word that it reads", word, second.read())
            second.let_go()
            live.expect("VmPin with none", 0, _pinned(live, memory))
    memory.actor.end()
    live.expect_pool(nr=1, free=1)


def _expect_counted(live: Live, memory: Memory) -> None:
    """Expect parts of the first two pages of ``memory`` to count as pinned by pages; its actor becomes nobody."""
    size, base, actor = memory.size, live.base_page, memory.actor
    first, last, both = (0, base), (size - base, base), (size - base, 2 * base)
    limit_locked_memory(live, actor, _LIMIT * size, _LIMIT * size)
    # of who may lock as much as he likes some kernels count nothing
    become_nobody(actor)
    pin = Pin(live, memory)
    # pages that buffers lie in, and how often one is counted where each but the last one counts again
    for parts, pages, counted in (
        ([first], 1, 1),
        ([last], 1, 1),
        ([(0, min(size, LONGEST_BUFFER))], 1, 1),
        ([first, last], 1, 1),
        ([both], 2, 2),
        ([first, (size, min(size, LONGEST_BUFFER))], 2, 2),
        # again a page that an earlier buffer has: the last one, one before it, or both pages of one
        ([first, (size, base), last], 2, 3),
        ([(size, base), first, (size, base), first], 2, 4),
        ([both, first, (size, base)], 2, 4),
        ([first, (size, base), both], 2, 4),
    ):
        with live.about(f"buffers at {parts}"):
            limit_locked_memory(live, actor, _LIMIT * size, _LIMIT * size)
            known = {Quirk.BUFFER_PAGE_COUNTED_AGAIN: errno.ENOMEM} if counted > pages else {}
            live.expect("errno of what is within the limit", 0, _refusal(pin, parts), known)
            # as much as the limit is taken where the ring itself is not locked memory, too
            known = {Quirk.BUFFER_PAGE_COUNTED_AGAIN: counted * size}
            live.expect("VmPin", pages * size, _pinned(live, memory), known)
            pin.let_go()
            live.expect("VmPin without buffers", 0, _pinned(live, memory))
            limit_locked_memory(live, actor, pages * size - base, _LIMIT * size)
            live.expect_errno(errno.ENOMEM, pin.hold, *parts)
            live.expect("VmPin of what is beyond the limit", 0, _pinned(live, memory))
    memory.expect_filled()


def _refusal(pin: Pin, parts: Sequence[tuple[int, int]]) -> int:
    """Return the errno of a registration that is refused, 0 when ``parts`` are registered."""
    try:
        pin.hold(*parts)
    except Refused as refusal:
        return refusal.errno or 0
    return 0


def _pinned(live: Live, memory: Memory) -> int:
    return process_status(live, memory.actor).sizes["VmPin"]


def _settled(live: Live, memory: Memory, expected: int) -> int:
    """Return VmPin in bytes when what was replaced has been let go, for whose sake it may be more than ``expected``."""
    live.host.wait_until(lambda: _pinned(live, memory) <= expected)
    if live.kernel_version < _AT_ONCE:
        live.host.wait_until(lambda: _pinned(live, memory) < expected, _WORKER_SECONDS)
    return _pinned(live, memory)


class RegisteredBuffers(LiveTest):
    def test_registered_buffers(self) -> None:
        self.run_area(BUFFERS)
