"""Transparent huge pages, and files, with memory that is said to be broken: the base page goes, the rest stays."""

import errno
import mmap
import os

from hugepage_qa.cases.broken_memory import break_page, expect_broken, expect_flag, out_of_use
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import FRAME, Memory
from hugepage_qa.cases.thp_policy import huge_pages
from hugepage_qa.kernel.uapi import MADV_HWPOISON, MADV_SOFT_OFFLINE
from hugepage_qa.plugins.avocado_test import LiveTest

HWPOISON = Area("hwpoison/transparent", sizes=Sizes.ONCE)

CACHE = "madvise(2) MADV_HWPOISON; mm/memory-failure.c"
_NEW_VALUE = 77
SPLIT = "mm/memory-failure.c try_to_split_thp_page()"


@HWPOISON.case(
    "a base page of a huge page that will break is replaced, the huge page is split, and nobody loses a word",
    f"madvise(2) MADV_SOFT_OFFLINE; {SPLIT}",
)
def soft_offline_of_a_part(live: Live) -> None:
    memory = huge_pages(live, 2)
    child = memory.seen_by(memory.actor.fork())
    before, address = out_of_use(live), memory.address + memory.size // 2
    old = memory.pagemap([address])[0]
    break_page(live, memory, memory.size // 2, MADV_SOFT_OFFLINE)
    live.expect("base pages out of use", 1, out_of_use(live) - before)
    for each in (memory, child):
        each.expect_filled()
        live.expect("it still has the frame that will break", False, each.pagemap([address])[0] & FRAME == old & FRAME)
    live.expect("AnonHugePages of the page behind it", memory.size, memory.smaps(1).anon_huge_pages)


@HWPOISON.case(
    "a broken base page of a huge page ends those who touch it, and all other memory holds what it held",
    f"madvise(2) MADV_HWPOISON; {SPLIT}, memory_failure()",
)
def a_broken_part(live: Live) -> None:
    memory = huge_pages(live, 2)
    before, broken = out_of_use(live), memory.size // 2
    frame = memory.pagemap([memory.address + broken])[0] & FRAME
    break_page(live, memory, broken, MADV_HWPOISON)
    live.expect("base pages out of use", 1, out_of_use(live) - before)
    expect_broken(live, memory, broken, live.base_page)
    expect_flag(live, memory, frame)
    behind = broken + live.base_page
    wrong = memory.wrong(0, broken) + memory.wrong(behind, memory.length - behind)
    live.expect("words beside the broken page that changed", 0, wrong)
    live.expect("AnonHugePages of the page behind it", memory.size, memory.smaps(1).anon_huge_pages)


@HWPOISON.case(
    "a broken page of a file that is as on the disk is read from there again, and nobody loses a word or is ended",
    f"{CACHE} me_pagecache_clean()",
)
def clean_page_of_a_file(live: Live) -> None:
    memory, file, frame = _page_of_a_file(live)
    memory.actor.call("fsync", file)
    break_page(live, memory, 0, MADV_HWPOISON)
    expect_flag(live, memory, frame)
    memory.expect_filled()
    live.expect("it still has the frame that is broken", False, frame in memory.frames())
    memory.actor.call("fsync", file)


@HWPOISON.case(
    "a broken page of a file that was written since ends who touches it, and fsync(2) tells that it is lost",
    f"{CACHE} me_pagecache_dirty()",
)
def written_page_of_a_file(live: Live) -> None:
    memory, file, frame = _page_of_a_file(live)
    memory.actor.call("fsync", file)
    memory.fill(_NEW_VALUE)
    break_page(live, memory, 0, MADV_HWPOISON)
    expect_flag(live, memory, frame)
    expect_broken(live, memory, 0, live.base_page)
    live.expect(
        "words beside the broken page that changed", 0, memory.wrong(live.base_page, live.base_page, _NEW_VALUE)
    )
    live.expect_errno(errno.EIO, memory.actor.call, "fsync", file)


def _page_of_a_file(live: Live) -> tuple[Memory, int, int]:
    """Return two base pages of a file on a disk that are filled, its descriptor, and the frame of the first one."""
    actor = live.actor()
    file = live.open(actor, live.host.disk("ext4"), live.host.uapi.o_tmpfile | os.O_RDWR)
    actor.call("ftruncate", file, 2 * live.base_page)
    address = actor.mmap(2 * live.base_page, READ_WRITE, mmap.MAP_SHARED, file)
    memory = Memory(live, actor, address, 2, live.base_page)
    memory.fill()
    return memory, file, memory.pagemap([address])[0] & FRAME


class HwpoisonTransparent(LiveTest):
    """Transparent huge pages with broken memory.

    :avocado: enable
    """

    def test_transparent(self) -> None:
        """Every case, once for the machine."""
        self.run_area(HWPOISON)
