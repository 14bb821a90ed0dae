"""Files of huge pages that end within a page: how long they are, where seals keep them so and where a call does."""

import fcntl
import os
from itertools import product

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.hugetlb_files import file_of_each_kind, new_memfd
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.sealed_sizes import SEALED_SIZES, SEALS, Change, changes, expect_sizes
from hugepage_qa.plugins.avocado_test import LiveTest

SEALED_FILES = Area("memory/sealed-files")
SOURCE = f"{SEALED_SIZES}; fs/hugetlbfs/inode.c hugetlbfs_setattr(), hugetlbfs_fallocate(), hugetlbfs_punch_hole()"


@SEALED_FILES.case(
    "a file that fallocate(2) ends within a page is made longer and shorter, to the byte, where no seal forbids it, and"
    " is as long as before where one does or FALLOC_FL_KEEP_SIZE is given, also within its last page; a seal against"
    " writes refuses holes",
    SOURCE,
    since="5.13",  # F_SEAL_FUTURE_WRITE
    pages=2,
)
def sealed(live: Live) -> None:
    # gigantic pages take seconds each
    kinds = ((live.base_page,), (0, fcntl.F_SEAL_GROW)) if live.is_gigantic else (_lengths(live), SEALS)
    for length, seals in product(*kinds):
        file = new_memfd(live, flags=os.MFD_ALLOW_SEALING)
        Change("fallocate", 0, length).act(file)
        live.expect_pool(nr=2, free=2 - -(-length // live.size))
        expect_sizes(live, file, seals, _changes(live, length))
        file.actor.end()
        live.expect_pool(nr=2, free=2)


@SEALED_FILES.case(
    "a file of hugetlbfs, as one without a name, is as long as ftruncate(2) and fallocate(2) make it, to the byte, and"
    " no longer where FALLOC_FL_KEEP_SIZE is given",
    SOURCE,
    pages=2,
)
def lengths(live: Live) -> None:
    for length in (live.base_page,) if live.is_gigantic else _lengths(live):
        for file in file_of_each_kind(live):
            Change("fallocate", 0, length).act(file)
            expect_sizes(live, file, 0, _changes(live, length))
            file.truncate(0)
            live.expect_pool(nr=2, free=2)


def _lengths(live: Live) -> tuple[int, ...]:
    return 1, live.base_page, live.size - 1, live.size, live.size + 1


def _changes(live: Live, length: int) -> tuple[Change, ...]:
    size = live.size
    # within the two pages that there are
    ends = {end for end in (length - 1, length + 1, length + live.base_page, size, size + 1, 2 * size) if end > 0}
    if live.is_gigantic:
        ends = {end for end in ends if end <= size}
    return changes(length, ends, {0, size, 2 * size}, (0, size))


class SealedFiles(LiveTest):
    def test_sealed_files(self) -> None:
        self.run_area(SEALED_FILES)
