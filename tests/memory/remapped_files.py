"""remap_file_pages(2) on huge pages: other pages of a file where some of it is mapped (emulated since Linux 4.0)."""

import errno
import mmap

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.plugins.avocado_test import LiveTest

REMAPPED_FILES = Area("memory/remapped-files")

_PAGES = 3
_VALUE, _NEW_VALUE = 7, 77
REMAP = "remap_file_pages(2); Documentation/mm/remap_file_pages.rst; mm/mmap.c"


@REMAPPED_FILES.case(
    "where other pages of a shared file are mapped their words are, written through either place; the file and the pool"
    " keep what they have, and each place goes back",
    REMAP,
    pages=_PAGES,
)
def other_pages(live: Live) -> None:
    file = new_memfd(live, pages=_PAGES)
    memory, whole = file.map(_PAGES), file.map(_PAGES)
    whole.fill(_VALUE)
    for order in ((2, 1, 0), (1, 1, 1), (0, 1, 2)):
        with live.about(f"pages {order}"):
            for place, page in enumerate(order):
                _remap(live, memory, place, page)
            for place, page in enumerate(order):
                # fill() counts on from the start of the file
                memory.part(place).expect_filled(_VALUE + page * live.size)
            memory.touch(0, _NEW_VALUE)
            live.expect("what is written through the first place", _NEW_VALUE, whole.read(order[0]))
            whole.touch(order[0], _VALUE + order[0] * live.size)
            live.expect_pool(nr=_PAGES, free=0)
    memory.unmap()
    whole.unmap()
    live.expect("size, st_blocks", (_PAGES * live.size, _PAGES * live.size), (file.size, file.blocks))
    file.truncate(0)
    live.expect_pool(nr=_PAGES, free=_PAGES)


@REMAPPED_FILES.case(
    "no part of a page is mapped elsewhere, nor anything of private memory or with another protection: EINVAL, and all"
    " is as it was",
    f"{REMAP}; EINVAL",
    pages=_PAGES,
)
def refused(live: Live) -> None:
    file = new_memfd(live, pages=_PAGES - 1)
    memory, private = file.map(_PAGES - 1), live.map(1, file.actor)
    memory.fill(_VALUE)
    private.fill(_VALUE)
    second, half = live.size // live.base_page, live.size // 2
    for what, address, length, prot in (
        ("a half", memory.address, half, 0),
        ("from a half on", memory.address + half, live.size, 0),
        ("beyond its end", memory.at(1), 2 * live.size, 0),
        ("private memory", private.address, live.size, 0),
        ("a protection", memory.address, live.size, mmap.PROT_READ),
    ):
        with live.about(what):
            call = file.actor.call, "remap_file_pages", address, length, prot, second, 0
            live.expect_errno(errno.EINVAL, *call)
            memory.expect_filled(_VALUE)
            private.expect_filled(_VALUE)
            live.expect_pool(nr=_PAGES, free=0)


def _remap(live: Live, memory: Memory, place: int, page: int) -> None:
    """Have ``memory``, of a shared file, show ``page`` of the file at ``place``. Raises Refused."""
    first = page * live.size // live.base_page
    memory.actor.call("remap_file_pages", memory.at(place), live.size, 0, first, 0)


class RemappedFiles(LiveTest):
    def test_remapped_files(self) -> None:
        self.run_area(REMAPPED_FILES)
