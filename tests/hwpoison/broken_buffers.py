"""Buffers for devices (/dev/udmabuf) of files that have a broken page: none has it."""

import fcntl
import os
from collections.abc import Callable
from functools import partial

from hugepage_qa.cases.broken_memory import break_in_use, break_page, expect_broken, mended_at_the_end, need_mending
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import HugeFile, new_memfd
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_shared_memory import expect_shared, let_only_pmd_inherit, map_start
from hugepage_qa.cases.udmabuf import Part, create_buffer, map_buffer, open_device
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MADV_HWPOISON
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused

BROKEN_BUFFERS = Area("hwpoison/broken-buffers")

BROKEN = (
    "Documentation/mm/hwpoison.rst, a poisoned page is not used in the future; madvise(2) MADV_HWPOISON; mm/gup.c"
    " memfd_pin_folios(), pins as FOLL_LONGTERM does"
)
_PAGES = 2


@BROKEN_BUFFERS.case(
    "no buffer is made of a page of a file, in the pool, that broke, as it is neither mapped nor read; of the page"
    " beside it one is, which shows what the file has",
    BROKEN,
    sizes=Sizes.BUDDY,
    since="6.12",  # of pages of pools, which stay in their files (8625147cafaa), by memfd_pin_folios()
    pages=_PAGES,
)
def page_of_the_pool(live: Live) -> None:
    need_mending(live)
    _expect_no_buffer_of_broken(live, partial(_of_the_pool, live), extent=live.size)
    live.expect_pool(nr=_PAGES, free=_PAGES)


def _of_the_pool(live: Live) -> tuple[HugeFile, Memory]:
    file = new_memfd(live, flags=os.MFD_ALLOW_SEALING)
    file.truncate(_PAGES)
    memory = file.map(_PAGES)
    memory.fill()
    return file, memory


@BROKEN_BUFFERS.case(
    "no buffer is made of a base page of shared memory that broke, in a huge page or not, as it is neither mapped nor"
    " read; of what is beside it one is, which shows what the file has",
    f"{BROKEN}; mm/shmem.c shmem_read_mapping_page_gfp() EIO",
    sizes=Sizes.ONCE,
    since="5.16",  # before, a broken page was taken out of its file
)
def shared_memory(live: Live) -> None:
    let_only_pmd_inherit(live)
    need_mending(live)
    for is_huge in (True, False):
        live.set_knob(f"{DIRECTORY}/shmem_enabled", "always" if is_huge else "never")
        with live.about(f"huge {is_huge}"):
            _expect_no_buffer_of_broken(live, partial(_shared, live, is_huge), extent=live.base_page)


def _shared(live: Live, is_huge: bool) -> tuple[HugeFile, Memory]:
    actor = live.actor()
    file = HugeFile(live, actor, actor.call("memfd_create", "hugepage-qa", os.MFD_ALLOW_SEALING))
    memory = map_start(live, actor, file.descriptor, _PAGES)
    expect_shared(live, memory, is_huge, f"huge {is_huge}")
    return file, memory


def _expect_no_buffer_of_broken(live: Live, make: Callable[[], tuple[HugeFile, Memory]], *, extent: int) -> None:
    """Break the first base page of a file, by which ``extent`` bytes are lost; expect buffers of what is left alone.

    The file is gone, and its frame mended, before the known bug ends the case, and whatever else does.
    """
    made = list[tuple[HugeFile, int]]()

    def sealed() -> Memory:
        file, memory = make()
        file.seal(fcntl.F_SEAL_SHRINK)
        made.append((file, open_device(live, file.actor)))
        return memory

    def say(memory: Memory) -> None:
        break_page(live, memory, 0, MADV_HWPOISON)

    memory, frame, (file, device) = break_in_use(live, sealed, 0, lambda: made[-1], say)
    base, whole = live.base_page, memory.length
    with mended_at_the_end(live, frame, file.actor.end):
        expect_broken(live, memory, extent=extent)
        buffers = {(start, end): _is_made(file, device, start, end) for start, end in ((0, base), (0, 2 * base))}
        buffer = map_buffer(file.actor, device, [Part(file.descriptor, whole - memory.size, base)])
        wrong = buffer.actor.check(buffer.address, base, memory.step, 1 + whole - memory.size)
        live.expect("words that a buffer of the page beside it has of others", 0, wrong)
        buffer.close()
    refused, known = dict.fromkeys(buffers, False), {Quirk.BUFFER_TAKES_BROKEN: dict.fromkeys(buffers, True)}
    live.expect("whether buffers of what broke are made", refused, buffers, known)


def _is_made(file: HugeFile, device: int, start: int, end: int) -> bool:
    """Tell whether a buffer is made of a part of a file, and close it."""
    try:
        buffer = create_buffer(file.actor, device, [Part(file.descriptor, start, end - start)])
    except Refused:
        return False
    file.actor.call("close", buffer)
    return True


class BrokenBuffers(LiveTest):
    def test_broken_buffers(self) -> None:
        self.run_area(BROKEN_BUFFERS)
