"""Huge pages in memory that a program fills itself: userfaultfd(2), UFFDIO_COPY."""

import errno
import mmap
import signal
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.khugepaged_clock import await_scans
from hugepage_qa.cases.khugepaged_work import expect_collapse, put_to_work
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.thp_memory import map_aligned
from hugepage_qa.cases.thp_policy import advised, base_pages, huge_pages, set_policy
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MADV_COLLAPSE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused

FILLED = Area("thp/filled-by-programs", sizes=Sizes.ONCE)
DOC = "Documentation/admin-guide/mm/userfaultfd.rst"
_NEW_VALUE = 77
_REFUSALS = (errno.EINVAL, errno.EBUSY, errno.EAGAIN)


@FILLED.case(
    "what a program fills itself gets no huge page at a fault, and khugepaged and MADV_COLLAPSE make none of it until"
    " each base page is there: they fill nothing",
    f"{DOC} UFFDIO_COPY; mm/khugepaged.c hpage_collapse_scan_pmd(), collapse_max_ptes_none()",
    since="6.1",
)
def filled_by_a_program(live: Live) -> None:
    put_to_work(live)
    source = base_pages(live)
    memory = advised(live, actor=source.actor)
    fault = Userfault(memory, Mode.MISSING, Feature(0))
    live.expect_signal(signal.SIGBUS, memory.touch, 0, _NEW_VALUE)
    half = memory.size // 2
    live.expect("bytes copied", half, fault.copy(source, length=half))
    await_scans(live)
    _expect_refused(live, memory)
    live.expect("Rss of half a huge page", half, memory.smaps().rss)
    for access in (memory.actor.read, partial(memory.actor.write, value=_NEW_VALUE)):
        live.expect_signal(signal.SIGBUS, access, memory.address + half)
    live.expect("bytes copied", half, fault.copy(source, offset=half, length=half))
    expect_collapse(live, memory, memory.length)
    memory.expect_filled()


@FILLED.case(
    "memory that a program fills itself is missing to who reads it first as to who writes it, wherever in a huge page:"
    " neither one nor the huge zero page is mapped",
    f"{DOC} UFFDIO_REGISTER_MODE_MISSING; mm/huge_memory.c do_huge_pmd_anonymous_page()",
)
def missing_to_all(live: Live) -> None:
    set_policy(live, "madvise")
    for use_zero_page in ("1", "0"):
        live.set_knob(f"{DIRECTORY}/use_zero_page", use_zero_page)
        memory = advised(live, 2)
        Userfault(memory, Mode.MISSING, Feature(0))
        for offset in (0, live.base_page, memory.size - WORD, memory.size, memory.length - WORD):
            live.expect_signal(signal.SIGBUS, memory.actor.read, memory.address + offset)
            live.expect_signal(signal.SIGBUS, memory.actor.write, memory.address + offset, _NEW_VALUE)
        live.expect(f"Rss with use_zero_page={use_zero_page}", 0, memory.smaps().rss)


@FILLED.case(
    "what is there is not filled again: UFFDIO_COPY and UFFDIO_ZEROPAGE of a huge page, and of any part of it, are"
    " EEXIST, and it stays what it was",
    f"{DOC} UFFDIO_COPY; ioctl_userfaultfd(2) EEXIST; mm/userfaultfd.c mfill_atomic()",
)
def filled_twice(live: Live) -> None:
    memory = huge_pages(live, 2)
    fault = Userfault(memory, Mode.MISSING, Feature(0))
    source = map_aligned(live, 1, memory.size, actor=memory.actor)
    source.fill(_NEW_VALUE)
    base, rest = live.base_page, memory.size - live.base_page
    for offset, length in ((0, memory.size), (0, base), (base, rest), (rest, base)):
        live.expect_errno(errno.EEXIST, partial(fault.copy, source, offset=offset, length=length))
    live.expect_errno(errno.EEXIST, fault.zero)
    live.expect("AnonHugePages", memory.length, memory.smaps().anon_huge_pages)
    memory.expect_filled()


@FILLED.case(
    "what is given back is missing again: MADV_DONTNEED of a part of a huge page leaves the rest as it was",
    f"{DOC} UFFDIO_REGISTER_MODE_MISSING; madvise(2) MADV_DONTNEED; mm/memory.c do_anonymous_page()",
)
def given_back(live: Live) -> None:
    memory = huge_pages(live, 2)
    fault = Userfault(memory, Mode.MISSING, Feature(0))
    source = map_aligned(live, 1, memory.size, actor=memory.actor)
    source.fill(_NEW_VALUE)
    half = memory.size // 2
    memory.actor.call("madvise", memory.address + half, memory.size, mmap.MADV_DONTNEED)
    for offset in (half, memory.size, memory.size + half - WORD):
        live.expect_signal(signal.SIGBUS, memory.actor.read, memory.address + offset)
    live.expect("words that were not given back and changed", 0, memory.wrong(0, half) + memory.wrong(3 * half, half))
    live.expect("bytes copied", half, fault.copy(source, offset=half, length=half))
    live.expect("words that were filled and are wrong", 0, memory.wrong(half, half, _NEW_VALUE))
    live.expect_signal(signal.SIGBUS, memory.touch, 1)


def _expect_refused(live: Live, memory: Memory) -> None:
    """Expect MADV_COLLAPSE to be refused: Linux 6.1 says EINVAL, 7.3 EBUSY, and any EAGAIN where a page is busy."""
    found: int | None = None
    try:
        memory.advise(MADV_COLLAPSE)
    except Refused as refusal:
        found = refusal.errno
    live.expect(f"errno is one of {_REFUSALS}, found {found}", True, found in _REFUSALS)


class ThpFilledByPrograms(LiveTest):
    """Huge pages in memory that a program fills itself.

    :avocado: enable
    """

    def test_filled_by_programs(self) -> None:
        """Every case, once for the machine."""
        self.run_area(FILLED)
