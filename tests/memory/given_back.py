"""Protected memory of huge pages that is given back, which a process that saves what is written must learn of."""

import mmap
from collections.abc import Callable

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import HugeFile, new_memfd
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WRITE_PROTECTED, Memory
from hugepage_qa.cases.pagemap_scan import PROTECT, Is, Region, told_as_written, track_writes
from hugepage_qa.cases.thp_shared_memory import filled_file, mount_tmpfs
from hugepage_qa.kernel.uapi import MADV_DONTNEED
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest

GIVEN_BACK = Area("memory/given-back")
SINCE = "6.7"
DIRTIES = (
    "Documentation/admin-guide/mm/userfaultfd.rst UFFD_FEATURE_WP_ASYNC: MADV_DONTNEED, MADV_REMOVE dirty;"
    " Documentation/admin-guide/mm/pagemap.rst PAGE_IS_WRITTEN"
)


@GIVEN_BACK.case(
    "private hugetlb pages that MADV_DONTNEED drops are told as written, and no others: they are zero from then on",
    f"{DIRTIES}; mm/hugetlb.c __unmap_hugepage_range()",
    pages=4,
    since=SINCE,
)
def dropped_private_pages(live: Live) -> None:
    memory = live.map(4)
    memory.fill()
    track_writes(memory).write_protect(length=memory.length)
    memory.advise(MADV_DONTNEED, 1, 2)
    live.expect_pool(nr=4, free=2, resv=2)
    _expect_told(live, memory)


@GIVEN_BACK.case(
    "pages of a hugetlb file that MADV_REMOVE or fallocate(2) makes a hole of are told as written, and no others",
    f"{DIRTIES}; fs/hugetlbfs/inode.c hugetlbfs_punch_hole()",
    pages=4,
    since=SINCE,
)
def removed_from_a_file(live: Live) -> None:
    ways: tuple[Callable[[HugeFile, Memory], None], ...] = (
        lambda _file, memory: memory.advise(mmap.MADV_REMOVE, 1, 2),
        lambda file, _memory: file.punch(2, 1),
    )
    for remove in ways:
        file = new_memfd(live, pages=4)
        memory = file.map(4)
        memory.fill()
        track_writes(memory).write_protect(length=memory.length)
        remove(file, memory)
        live.expect_pool(nr=4, free=2)
        _expect_told(live, memory)
        memory.actor.end()


@GIVEN_BACK.case(
    "huge pages of a tmpfs that MADV_REMOVE makes a hole of are told as written, and no others",
    f"{DIRTIES}; mm/shmem.c shmem_fallocate()",
    since=SINCE,
    sizes=Sizes.ONCE,
)
def removed_from_a_tmpfs(live: Live) -> None:
    let_nobody_else_act(live)
    memory = filled_file(live, f"{mount_tmpfs(live, 'always')}/file", 4)
    track_writes(memory).write_protect(length=memory.length)
    memory.advise(mmap.MADV_REMOVE, 1, 2)
    _expect_told(live, memory)


def _expect_told(live: Live, memory: Memory) -> None:
    """Expect pages 1 and 2 of four to be zero, and to be as pages that were written, until they are protected again."""
    protected = _protected(memory)
    memory.expect_zero(1, 2)
    for page in (0, 3):
        memory.expect_filled(first=page, pages=1)
    gone, kept = [Region(memory.size, 3 * memory.size, Is.WRITTEN)], [0, 3]
    known = {Quirk.GIVEN_BACK_UNTOLD: ([0, 1, 2, 3], list[Region]())}
    live.expect("protected pages, and what is written", (kept, gone), (protected, told_as_written(live, memory)), known)
    live.expect("what the scan that protects tells", gone, told_as_written(live, memory, PROTECT))
    live.expect("what is written when it is protected", [], told_as_written(live, memory))
    live.expect("protected pages in the end", [0, 1, 2, 3], _protected(memory))


def _protected(memory: Memory) -> list[int]:
    """Return of which pages pagemap shows both ends as write-protected."""
    ends = [memory.pagemap((memory.at(page), memory.at(page + 1) - 1)) for page in range(memory.pages)]
    return [page for page, entries in enumerate(ends) if all(entry & WRITE_PROTECTED for entry in entries)]


class GivenBack(LiveTest):
    def test_given_back(self) -> None:
        self.run_area(GIVEN_BACK)
