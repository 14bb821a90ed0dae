"""userfaultfd(2), UFFDIO_COPY from memory that is not there while it is copied, and has to be brought first."""

import errno
import mmap
import signal
from collections.abc import Sequence
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act, let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import PRESENT, Memory
from hugepage_qa.cases.race import at_once
from hugepage_qa.cases.swapped import need_swap, parts_out
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.cases.thp_policy import base_pages, huge_pages, mapped_in_parts
from hugepage_qa.cases.thp_shared_memory import shared_base_pages, shared_huge_pages
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault
from hugepage_qa.cases.userfaultfd_messages import PageFault, Told
from hugepage_qa.kernel.uapi import PROT_NONE
from hugepage_qa.plugins.avocado_test import LiveTest

ABSENT = Area("userfaultfd/absent-sources")

DOC = "Documentation/admin-guide/mm/userfaultfd.rst UFFDIO_COPY; ioctl_userfaultfd(2) UFFDIO_COPY"
BASE_PAGES = f"{DOC}; mm/userfaultfd.c mfill_atomic(), mfill_atomic_pte_copy()"
#: the first copy ends behind so many base pages, the second one copies the rest
_FIRST = 3
_FEW = 4
#: hugetlb pages of a source
_HUGE = 3
#: of each kind: what is filled, what changes beside it, the source, and what that is filled from
_OF_EACH = 4
NOT_WHILE_CHANGING = (
    "UFFDIO_COPY that has waited for its source fills nothing as long as the program is yet to be told that memory"
    " beside it was given back, or unmapped: it fails with EAGAIN, and when it is done anew then, the page is filled"
)
CHANGING = f"{DOC}; ioctl_userfaultfd(2) EAGAIN; mm/userfaultfd.c mfill_atomic(), mfill_atomic_hugetlb(), mmap_changing"
_CHANGES = ("madvise", "munmap")
#: MADV_DONTNEED of hugetlb pages
_REMOVED_SINCE = "5.18"
#: seconds that no copy takes
_MOMENT = 0.3
#: start and length in bytes, in ascending order
Parts = Sequence[tuple[int, int]]


def _give_back(_live: Live, source: Memory, parts: Parts) -> None:
    for start, length in parts:
        source.actor.call("madvise", source.address + start, length, mmap.MADV_DONTNEED)


def _page_out(live: Live, source: Memory, parts: Parts) -> None:
    base = live.base_page
    places = {place for start, length in parts for place in range(start // base, (start + length) // base)}

    def are_out() -> bool:
        return not any(entry & PRESENT for place, entry in enumerate(source.whole_pagemap()) if place in places)

    live.host.wait_until(partial(parts_out, live, source, parts, are_out))
    live.expect("whether its parts are away", True, are_out())


_PRIVATE, _SHARED = (base_pages, huge_pages, mapped_in_parts), (shared_base_pages, shared_huge_pages)


@ABSENT.case(
    "UFFDIO_COPY fills each page with what the source has at the same place, wherever it has to be brought first: what"
    " was given back is zero, or what the file has, and what is in swap comes back, of huge pages, base pages and"
    " shared memory, for private and shared memory",
    BASE_PAGES,
    since="5.4",  # MADV_PAGEOUT
    sizes=Sizes.ONCE,
)
def brought_while_copied(live: Live) -> None:
    let_nobody_else_act(live)
    size, base = pmd_size(live), live.base_page
    need_swap(live, 2 * size)
    patterns: tuple[Parts, ...] = (
        [(0, size)],
        [(0, base)],
        [(base, base), (_FIRST * base, base), (size - base, base)],
        [(base, size // 2)],
        [(number * base, base) for number in range(0, 16, 2)],
    )
    rows = product(_PRIVATE + _SHARED, (_give_back, _page_out), patterns)
    for number, (make, take, parts) in enumerate(rows):
        is_shared = bool(number % 2)
        with live.about(f"{make.__name__}, {take.__name__.strip('_')} {parts}, to shared memory {is_shared}"):
            source = make(live)
            memory, fault = _watched(live, source, shared=is_shared)
            take(live, source, parts)
            for offset, length in ((0, _FIRST * base), (_FIRST * base, size - _FIRST * base)):
                live.expect(f"bytes copied from {offset} on", length, fault.copy(source, offset=offset, length=length))
            zeroes = parts if make in _PRIVATE and take is _give_back else []
            for each in (memory, source):
                _expect_content(live, each, zeroes)
        source.actor.end()


@ABSENT.case(
    "UFFDIO_COPY that comes to where the source cannot be read has filled what is before it, though that had to be"
    " brought first, tells how much that is, EAGAIN, and nothing where there is nothing before it, EFAULT; when it can"
    " be read the rest is filled",
    f"{BASE_PAGES}; ioctl_userfaultfd(2) EAGAIN, EFAULT",
    sizes=Sizes.ONCE,
)
def not_readable_from_somewhere(live: Live) -> None:
    let_nobody_else_act(live)
    base = live.base_page
    rows = product((base_pages, shared_base_pages), (1, 2, 5), (1, 2), (False, True))
    for make, first, pages, is_shared in rows:
        with live.about(f"{make.__name__}, {pages} pages from {first} on, to shared memory {is_shared}"):
            source = make(live)
            memory, fault = _watched(live, source, shared=is_shared)
            given_back = [((first - 1) * base, base)]
            _give_back(live, source, given_back)
            places = source.address + first * base, pages * base
            source.actor.call("mprotect", *places, PROT_NONE)
            live.expect("errno, .copy", (errno.EAGAIN, first * base), fault.copied(source, 0, memory.size))
            rest = first * base, memory.size - first * base
            live.expect("errno, .copy of the rest", (errno.EFAULT, -errno.EFAULT), fault.copied(source, *rest))
            live.expect_signal(signal.SIGBUS, memory.actor.read, memory.address + first * base)
            source.actor.call("mprotect", *places, READ_WRITE)
            live.expect("errno, .copy of what can be read", (0, rest[1]), fault.copied(source, *rest))
            _expect_content(live, memory, given_back if make is base_pages else [])
        source.actor.end()


@ABSENT.case(
    "UFFDIO_COPY from memory whose faults a program handles, too, waits for each of its pages that is missing, and"
    " fills with what that is given",
    f"{BASE_PAGES}; fs/userfaultfd.c handle_userfault()",
    sizes=Sizes.ONCE,
)
def source_that_a_program_fills(live: Live) -> None:
    let_rest(live)
    base = live.base_page
    for missing in ((0,), (1,), (_FEW - 1,), (1, 2), tuple(range(_FEW))):
        given = base_pages(live)
        source = map_aligned(live, _FEW, base, actor=given.actor)
        source.fill()
        memory, fault = _watched(live, source, shared=False)
        _give_back(live, source, [(page * base, base) for page in missing])
        handled = Userfault(source, Mode.MISSING, Feature(0), waits=True, of_kernel=True)
        with live.about(f"pages {missing} of {_FEW}"):
            with at_once(live, source.actor, 0) as threads:
                # again and again: the second time all is there
                threads.call("ioctl", *fault.copying(source, 0, source.length), may_fail=[errno.EEXIST])
                for page in missing:
                    live.expect("what is told", PageFault(Told(0), source.at(page)), handled.await_fault(live))
                    content = Memory(live, given.actor, given.address + page * base, 1, base)
                    live.expect("bytes copied", base, handled.copy(content, page))
            _expect_content(live, memory, [])
        given.actor.end()


@ABSENT.case(
    "UFFDIO_COPY fills each hugetlb page, and each base page, with what hugetlb pages of the source have at the same"
    " place, whichever of those its process has not mapped yet; what holds them meanwhile goes back to the pool",
    f"{BASE_PAGES}, mfill_atomic_hugetlb(); mm/hugetlb.c hugetlb_mfill_atomic_pte()",
    sizes=Sizes.BUDDY,
    # a page that nobody reserved holds what is copied until it can be where it belongs
    pages=2 * _HUGE + 1,
)
def hugetlb_pages_of_a_file(live: Live) -> None:
    written = new_memfd(live)
    written.map(_HUGE).fill()
    for mapped, is_shared in product(((), (0,), (1,), (0, 2), (1, 2)), (False, True)):
        source = written.map(_HUGE)
        for page in mapped:
            live.expect("what is read", 1 + page * live.size, source.read(page))
        memory = live.map(_HUGE, written.actor, shared=is_shared)
        fault = Userfault(memory, Mode.MISSING, Feature.MISSING_HUGETLBFS)
        with live.about(f"pages {mapped} of {_HUGE} mapped, to shared memory {is_shared}"):
            live.expect("errno, .copy", (0, memory.length), fault.copied(source, 0, memory.length))
            memory.expect_filled()
            live.expect_pool(nr=2 * _HUGE + 1, free=1)
            memory.unmap()
            source.unmap()
            live.expect_pool(nr=2 * _HUGE + 1, free=1 + _HUGE)
    for mapped in ((), (0,), (1,)):
        source = written.map(_HUGE)
        for page in mapped:
            live.expect("what is read", 1 + page * live.size, source.read(page))
        # from the middle on: the border of two pages
        border = Memory(live, source.actor, source.at(1) - _FEW // 2 * live.base_page, 1, _FEW * live.base_page)
        memory, fault = _watched(live, border, shared=False)
        with live.about(f"base pages, pages {mapped} of {_HUGE} mapped"):
            live.expect("errno, .copy", (0, memory.size), fault.copied(border, 0, memory.size))
            live.expect("words that are wrong", 0, memory.wrong(0, memory.size, 1 + border.address - source.address))
        source.unmap()


@ABSENT.case(NOT_WHILE_CHANGING, CHANGING, sizes=Sizes.BUDDY, since=_REMOVED_SINCE, pages=_OF_EACH + 1)
def hugetlb_pages_that_wait(live: Live) -> None:
    for shared, change in product((False, True), _CHANGES):
        # a page that nobody reserved holds what is copied until it can be where it belongs
        _expect_to_wait(live, live.map(_OF_EACH, shared=shared), change, Feature.MISSING_HUGETLBFS)
        live.expect_pool(nr=_OF_EACH + 1, free=_OF_EACH + 1)


@ABSENT.case(NOT_WHILE_CHANGING, CHANGING, sizes=Sizes.ONCE)
def base_pages_that_wait(live: Live) -> None:
    let_rest(live)
    for shared, change in product((False, True), _CHANGES):
        memory = map_aligned(live, _OF_EACH, live.base_page, shared=shared)
        _expect_to_wait(live, memory, change, Feature.MISSING_SHMEM)


def _expect_to_wait(live: Live, memory: Memory, change: str, feature: Feature) -> None:
    """Expect the first page to be filled from the third when that is there, but not while the second page changes.

    The third is filled from the fourth.
    """
    actor, size = memory.actor, memory.size
    content, source = memory.part(3), memory.part(2)
    content.fill()
    handled = Userfault(source, Mode.MISSING, feature, waits=True, of_kernel=True)
    events = Feature.EVENT_REMOVE | Feature.EVENT_UNMAP
    fault = Userfault(memory.part(0, 2), Mode.MISSING, feature | events, waits=True)

    def is_there() -> bool:
        return bool(memory.pagemap([memory.address])[0] & PRESENT)

    with live.about(f"{change}, shared {memory.smaps().is_shared}"), at_once(live, actor, 0) as threads:
        threads.attempt("ioctl", *fault.copying(source, 0, size))
        live.expect("what is told", PageFault(Told(0), source.address), handled.await_fault(live))
        threads.call(change, memory.at(1), size, mmap.MADV_DONTNEED)
        live.host.wait_until(fault.is_readable)
        live.expect("whether there is an event that nobody was told yet", True, fault.is_readable())
        live.expect("bytes copied to the source", size, handled.copy(content))
        live.host.pause(_MOMENT)
        live.expect("whether the page is there before the event is told", False, is_there())
        # who waits for that goes on
        actor.call("close", fault.descriptor)
    live.expect("whether the copy failed with EAGAIN", True, errno.EAGAIN in threads.errors(0))
    again = Userfault(memory.part(0), Mode.MISSING, feature)
    live.expect("errno, .copy when nothing changes", (0, size), again.copied(source, 0, size))
    memory.part(0).expect_filled()
    actor.end()


def _watched(live: Live, source: Memory, *, shared: bool) -> tuple[Memory, Userfault]:
    """Return memory as large as ``source``, of the same process, that is missing."""
    memory = map_aligned(live, 1, source.length, shared=shared, actor=source.actor)
    return memory, Userfault(memory, Mode.MISSING, Feature.MISSING_SHMEM)


def _expect_content(live: Live, memory: Memory, zeroes: Parts) -> None:
    """Expect ``memory`` to be as ``fill`` leaves it, but for the parts that are to be zeroes."""
    filled = 0
    for start, length in (*zeroes, (memory.size, 0)):
        live.expect(f"words between {filled} and {start} that are wrong", 0, memory.wrong(filled, start - filled))
        dirty = memory.nonzero(start, length)
        live.expect(f"words of {length} bytes at {start} that are not zero", 0, dirty)
        filled = start + length


class AbsentSources(LiveTest):
    def test_absent_sources(self) -> None:
        self.run_area(ABSENT)
