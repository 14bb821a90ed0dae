"""process_madvise(2) on several ranges of transparent huge pages: how much it tells that it has advised, and did.

MADV_COLLAPSE of ranges has cases of its own (thp/collapse-and-others).
"""

import errno
import mmap
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.khugepaged_clock import let_rest
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.lru_batches import drain_lru_batches
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.swapped import need_swap, swapped
from hugepage_qa.cases.thp_memory import mapped_huge, pmd_size
from hugepage_qa.cases.thp_policy import base_pages, huge_pages
from hugepage_qa.kernel.uapi import MADV_COLD, MADV_PAGEOUT
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor, Refused
from hugepage_qa.version import KernelVersion

RANGES = Area("thp/advised-ranges", sizes=Sizes.ONCE)

DOC = "process_madvise(2)"
SINCE = "5.10"
_ADVICES = (MADV_COLD, mmap.MADV_WILLNEED, MADV_PAGEOUT)
#: the first kernel on which another process may give MADV_WILLNEED (d5fffc5aff26)
_WILLNEED = KernelVersion(5, 15)
_PAGES = 4
_MOST_RANGES = 1024  # IOV_MAX, UIO_MAXIOV in include/uapi/linux/uio.h

Range = tuple[int, int]


class _Asked:
    """Advice that ``actor`` gives for ranges of memory of another process."""

    def __init__(self, memory: Memory, actor: Actor) -> None:
        self._actor = actor
        self._process = actor.call("pidfd_open", memory.actor.pid, 0)

    def result(self, ranges: list[Range], advice: int) -> tuple[int, int]:
        """Return for how many bytes it is given, and 0, or 0 and the error."""
        words = [word for one in ranges for word in one]
        try:
            return self.call(self._actor.uapi.pack(f"{len(words)}Q", *words), len(ranges), advice), 0
        except Refused as refusal:
            return 0, refusal.errno or 0

    def call(self, ranges: bytes | int, count: int, advice: int, flags: int = 0, process: int | None = None) -> int:
        """Make the system call. Raises Refused."""
        process = self._process if process is None else process
        return self._actor.call("process_madvise", process, ranges, count, advice, flags)


@RANGES.case(
    "process_madvise(2) tells how many bytes it has advised: all, or those of the ranges before the first one that is"
    " wrong, which is told as an error only where none is before it; what is behind that one stays as it was",
    f"{DOC} RETURN VALUE; mm/madvise.c process_madvise(), vector_madvise()",
    since=SINCE,
)
def told(live: Live) -> None:
    let_rest(live)
    need_swap(live, _PAGES * pmd_size(live))
    advices = [advice for advice in _ADVICES if advice != mmap.MADV_WILLNEED or live.kernel_version >= _WILLNEED]
    for make, advice in product((huge_pages, base_pages), advices):
        memory = make(live, _PAGES)
        asked = _Asked(memory, live.actor())
        memory.unmap(2, 1)
        for number, (ranges, length, error) in enumerate(_rows(memory, live.base_page)):
            with live.about(f"{make.__name__}, advice {advice}, row {number}"):
                live.expect("bytes advised, error", (length, error), asked.result(ranges, advice))
        live.expect("memory behind what is wrong that is in swap", 0, swapped(memory.part(_PAGES - 1)))
        live.expect("huge pages behind it", memory.size * (make is huge_pages), mapped_huge(memory.part(_PAGES - 1)))
        if advice == MADV_PAGEOUT:
            live.host.wait_until(partial(_paged_out, live, asked, memory))
            live.expect("memory in swap that was advised", 2 * memory.size, swapped(memory))
        for page in (0, 1, _PAGES - 1):
            memory.expect_filled(first=page, pages=1)
        memory.actor.end()


def _rows(memory: Memory, page: int) -> tuple[tuple[list[Range], int, int], ...]:
    """Return ranges, and for how many bytes of them advice is given, or what is the error; the third page is unmapped.

    The last one is behind what is wrong in each.
    """
    size = memory.size
    first, second, nowhere, last = ((memory.at(number), size) for number in range(_PAGES))
    unaligned, ends = (memory.address + 1, page), (memory.at(1), 2 * size)
    return (
        ([], 0, 0),
        ([first], size, 0),
        ([first, second], 2 * size, 0),
        ([second, first, second], 3 * size, 0),
        ([first, (memory.at(1), page), (memory.at(2) - page, page)], size + 2 * page, 0),
        ([first, (memory.at(1), size - 1)], 2 * size - 1, 0),
        ([first, (memory.at(1), 0), second], 2 * size, 0),
        ([first, nowhere], size, 0),
        ([first, second, nowhere, last], 2 * size, 0),
        ([first, ends, last], size, 0),
        ([first, unaligned], size, 0),
        ([first, second, unaligned, last], 2 * size, 0),
        ([nowhere], 0, errno.ENOMEM),
        ([nowhere, last], 0, errno.ENOMEM),
        ([ends, last], 0, errno.ENOMEM),
        ([unaligned, last], 0, errno.EINVAL),
    )


def _paged_out(live: Live, asked: _Asked, memory: Memory) -> bool:
    # what somebody else has a hold of is passed over, and what another CPU has in a batch (parts_out())
    asked.result([(memory.address, 2 * memory.size)], MADV_PAGEOUT)
    if swapped(memory) == 2 * memory.size:
        return True
    drain_lru_batches(live, memory.actor)
    return False


@RANGES.case(
    "process_madvise(2) with a flag, an advice that others may not give, too many ranges, what is no process, or ranges"
    " that cannot be read or are too long, is refused as a whole",
    f"{DOC} ERRORS; mm/madvise.c process_madvise(); lib/iov_iter.c import_iovec()",
    since=SINCE,
)
def refused(live: Live) -> None:
    memory = huge_pages(live, 1)
    asked = _Asked(memory, live.actor())
    pack, one = live.host.uapi.pack, (memory.address, memory.length)
    ranges = pack("2Q", *one)
    many = pack(f"{2 * (_MOST_RANGES + 1)}Q", *(_MOST_RANGES + 1) * (memory.address, live.base_page))
    too_long = pack("4Q", *one, memory.address, 1 << 63)
    for what, error, arguments in (
        ("a flag", errno.EINVAL, (ranges, 1, MADV_COLD, 1)),
        ("advice that gives memory back", errno.EINVAL, (ranges, 1, mmap.MADV_DONTNEED)),
        ("advice that there is not", errno.EINVAL, (ranges, 1, -1)),
        ("too many ranges", errno.EINVAL, (many, _MOST_RANGES + 1, MADV_COLD)),
        ("a range that is too long", errno.EINVAL, (too_long, 2, MADV_COLD)),
        ("ranges that cannot be read", errno.EFAULT, (1, 1, MADV_COLD)),
        ("what is no descriptor", errno.EBADF, (ranges, 1, MADV_COLD, 0, -1)),
    ):
        with live.about(what):
            live.expect_errno(error, asked.call, *arguments)
    memory.expect_huge()
    memory.expect_filled()


class ThpAdvisedRanges(LiveTest):
    def test_advised_ranges(self) -> None:
        self.run_area(RANGES)
