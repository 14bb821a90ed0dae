"""Until when files of a tmpfs with huge=always keep what lies behind their end: up to where fallocate(2) ended."""

import errno
from functools import partial
from itertools import product
from operator import eq

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import expect_no_node_short, with_blocks
from hugepage_qa.cases.hugetlb_files import HugeFile, open_file
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_shared_memory import expect_blocks, let_only_pmd_inherit, map_file, mount_tmpfs
from hugepage_qa.kernel.uapi import FALLOC_FL_KEEP_SIZE
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.version import KernelVersion

FALLOCATED_ENDS = Area("files/fallocated-ends", sizes=Sizes.ONCE, uncleared=True)

_VALUE = 77
#: for how long somebody else may have a hold of a page
_SECONDS = 30.0
#: before, a full tmpfs splits what fallocate(2) keeps, too (mm/shmem.c shmem_unused_huge_shrink())
_KEPT_WHOLE_SINCE = KernelVersion(6, 12)


@FALLOCATED_ENDS.case(
    "what was allocated behind the end of a file and given back up to where that ended, by a hole that ends there or"
    " behind it, by holes one before the other, or by ftruncate(2), is allocated no more: of a huge page that is"
    " stored to there then and split, nothing is kept behind the end of the file",
    "fallocate(2) FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE; ftruncate(2); mm/shmem.c shmem_fallocate(), fallocend,"
    " shmem_undo_range(), since d144bf620534",
    since="5.15",
)
def given_back_behind_the_end(live: Live) -> None:
    let_only_pmd_inherit(live)
    size, page = pmd_size(live), live.base_page
    point, actor = mount_tmpfs(live, "always"), live.actor()
    # a file ends with the first base page of its first huge page, or of its second one
    for first in (0, size):
        for allocated in (size, size // 2, 2 * page, 2 * size):
            # holes, from where the last huge page of the file begins; none for one that is cut at its end
            for holes in (
                ((0, allocated),),
                ((0, allocated + page),),
                ((page, 2 * size), (0, page)),
                ((allocated - page, allocated), (0, allocated - page)),
                (),
            ):
                name = f"{first}-{allocated}-{'-'.join(str(end) for hole in holes for end in hole)}"
                with live.about(f"allocated: {allocated} bytes from {first} on, holes: {holes or 'cut'}"):
                    file = open_file(live, f"{point}/{name}", actor)
                    _expect_given_back(live, file, first, allocated, holes)
                    actor.call("ftruncate", file.descriptor, 0)
                    file.close()


def _expect_given_back(
    live: Live, file: HugeFile, first: int, allocated: int, holes: tuple[tuple[int, int], ...]
) -> None:
    """Allocate up to ``allocated`` bytes behind ``first``, give that back, and expect none of it to be kept."""
    size, page, actor = pmd_size(live), live.base_page, file.actor
    end = first + page
    actor.call("ftruncate", file.descriptor, end)
    with_blocks(live, size, 4)
    actor.call("fallocate", file.descriptor, FALLOC_FL_KEEP_SIZE, 0, first + allocated)
    for start, stop in holes:
        file.punch_bytes(first + start, stop - start)
    if not holes:
        actor.call("ftruncate", file.descriptor, end)
    _expect_left(live, "with nothing left there", file, first)
    # not written: of what write(2) brings Linux 6.14 has folios no larger than what is written (acd7ccb284b8)
    memory = map_file(live, actor, file.descriptor, first // size + 1)
    memory.touch(first // size, _VALUE)
    memory.unmap()
    found = file.blocks
    if found != first + size:
        expect_no_node_short(live, size, 1)
    live.expect("size, st_blocks with a huge page that was stored to", (end, first + size), (file.size, found))
    _expect_left(live, "when it is split", file, first)
    live.expect("size", end, file.size)


def _expect_left(live: Live, when: str, file: HugeFile, first: int) -> None:
    """Give the last base page of the file back, and expect the ``first`` bytes to be left. Raises Failed."""
    # a page that somebody has a hold of cannot be split, and stays whole, until he has none
    left = live.host.last_look(partial(_punched, file, first, live.base_page), partial(eq, first), _SECONDS)
    if left != first:
        # each of the others would be waited for as long
        live.fail(f"st_blocks {when}", first, left)


def _punched(file: HugeFile, start: int, length: int) -> int:
    """Leave a hole, for which a huge page is split, and return st_blocks in bytes."""
    file.punch_bytes(start, length)
    return file.blocks


@FALLOCATED_ENDS.case(
    "an allocation that finds no room for all, from whichever page on, with FALLOC_FL_KEEP_SIZE or not, has nothing"
    " kept behind the end of a file, nor more than an earlier one has: of a huge page that is split then all else is"
    " free",
    "fallocate(2) ENOSPC, FALLOC_FL_KEEP_SIZE; mm/shmem.c shmem_fallocate(), undo_fallocend, since d144bf620534",
    since="5.15",
)
def failed_behind_the_end(live: Live) -> None:
    let_only_pmd_inherit(live)
    size, page = pmd_size(live), live.base_page
    point = live.mount_other(f"huge=always,size={4 * size},mode=0700", "tmpfs")
    actor = live.actor()
    other = open_file(live, f"{point}/other", actor)
    actor.call("fallocate", other.descriptor, 0, 0, size)
    # as above; how much was kept there before
    for first, kept in product((0, size), (0, page, 2 * page, size // 2, size)):
        if kept and live.kernel_version < _KEPT_WHOLE_SINCE:
            continue
        # from within a huge page only where it is kept: of one that it brings Linux 6.12 leaves what is before that
        starts = {0, size, 3 * size, *((first + page, first + size // 2) if kept else ())}
        for start, mode in product(sorted(starts), (0, FALLOC_FL_KEEP_SIZE)):
            with live.about(f"mode {mode}, from {start} on, {kept} bytes kept from {first} on"):
                file = open_file(live, f"{point}/{first}-{kept}-{start}-{mode}", actor)
                actor.call("ftruncate", file.descriptor, first + page)
                with_blocks(live, size, 4)
                if kept:
                    actor.call("fallocate", file.descriptor, FALLOC_FL_KEEP_SIZE, first, kept)
                found = file.size, file.blocks
                # no more than the mount has, or nothing is tried
                arguments = file.descriptor, mode, start, 4 * size - page
                live.expect_errno(errno.ENOSPC, actor.call, "fallocate", *arguments)
                live.expect("size, st_blocks", found, (file.size, file.blocks))
                _expect_kept(live, file, first, kept)
                actor.call("ftruncate", file.descriptor, 0)
                file.close()
                live.expect("free blocks", 3 * size // page, live.host.file_system(point).free_blocks)


def _expect_kept(live: Live, file: HugeFile, first: int, kept: int) -> None:
    """Expect a huge page that is stored to from ``first`` on, and split, to have of ``kept`` bytes all but the first.

    That is the last base page of the file, which is given back. Raises Failed.
    """
    size, page = pmd_size(live), live.base_page
    memory = map_file(live, file.actor, file.descriptor, first // size + 1)
    memory.touch(first // size, _VALUE)
    memory.unmap()
    if not kept:
        expect_blocks(live, file, size, "st_blocks with a huge page that was stored to")
    expected = max(kept - page, 0)
    left = live.host.last_look(partial(_punched, file, first, page), partial(eq, expected), _SECONDS)
    if left != expected:
        # each of the others would be waited for as long
        live.fail("st_blocks when it is split", expected, left)


class ThpFallocatedEnds(LiveTest):
    def test_fallocated_ends(self) -> None:
        self.run_area(FALLOCATED_ENDS)
