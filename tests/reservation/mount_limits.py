"""Limits of a hugetlbfs: the most that a mount may have, what is reserved for it, and its files."""

import errno
import signal
from collections.abc import Mapping
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import open_file
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.pool_view import read_pool_view
from hugepage_qa.cases.race import RACERS, race
from hugepage_qa.kernel.uapi import AT_FDCWD
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

LIMITS = Area("reservation/mount-limits")
SIZE = f"{HUGETLB_DOC} size; mm/hugetlb.c hugepage_subpool_get_pages()"
MIN_SIZE = f"{HUGETLB_DOC} min_size; mm/hugetlb.c hugepage_new_subpool()"
#: of a number of bytes that is not below 0
_SIZE_BITS = 63


@LIMITS.case("size= is the most that the mappings of the mount can have, however large the pool is", SIZE, pages=2)
def size_limits_mappings(live: Live) -> None:
    point = live.mount(size=live.size)
    file = open_file(live, f"{point}/file")
    for shared in (False, True):
        live.expect_errno(errno.ENOMEM, file.map, 2, shared=shared)
        live.expect_pool(nr=2, free=2)
    file.map(1)
    live.expect_pool(nr=2, free=2, resv=1)
    other = open_file(live, f"{point}/other")
    live.expect_errno(errno.ENOMEM, other.map, 1)
    live.expect_pool(nr=2, free=2, resv=1)
    live.map(1)
    live.expect_pool(nr=2, free=2, resv=2)


@LIMITS.case("size= is the most that faults and fallocate(2) can have", SIZE, pages=2)
def size_limits_faults(live: Live) -> None:
    file = open_file(live, f"{live.mount(size=live.size)}/file")
    file.truncate(2)
    memory = file.map(2, noreserve=True)
    memory.touch(0, 1)
    live.expect_signal(signal.SIGBUS, memory.touch, 1)
    live.expect_pool(nr=2, free=1)
    live.expect_errno(errno.ENOSPC, file.allocate, 1, 1)
    live.expect_pool(nr=2, free=1)
    live.expect("the page that there is", 1, memory.read(0))


@LIMITS.case(
    "statfs(2) shows the limit in huge pages, and what is left of it; private pages count, too, and of a full mount"
    " there is none",
    SIZE,
    pages=3,
)
def statfs_of_a_limit(live: Live) -> None:
    point = live.mount(size=2 * live.size)
    expect_blocks(live, point, 2, 2)
    file = open_file(live, f"{point}/file")
    memory = file.map(1)
    expect_blocks(live, point, 2, 1)
    memory.touch()
    expect_blocks(live, point, 2, 1)
    for is_touched in (False, True):
        private = file.map(1, shared=False)
        expect_blocks(live, point, 2, 0)
        if is_touched:
            private.touch(value=2)
            expect_blocks(live, point, 2, 0)
        live.expect_errno(errno.ENOMEM, file.map, 1, shared=False)
        # the page of the file can be read, and not copied
        copy = file.map(1, shared=False, noreserve=True)
        live.expect("what the file holds", 1, copy.read())
        live.expect_signal(signal.SIGBUS, copy.touch)
        copy.unmap()
        private.unmap()
        expect_blocks(live, point, 2, 1)
        live.expect_pool(nr=3, free=2)
    memory.unmap()
    expect_blocks(live, point, 2, 1)
    file.truncate(0)
    expect_blocks(live, point, 2, 2)


def expect_blocks(live: Live, point: str, blocks: int, free: int, known: Mapping[Quirk, int] | None = None) -> None:
    """Expect a file system of ``blocks`` huge pages of which ``free`` are left; ``known`` tells with which bug not."""
    use = live.host.file_system(point)
    deviations = {quirk: (live.size, blocks, left) for quirk, left in (known or {}).items()}
    live.expect("statfs", (live.size, blocks, free), (use.block_size, use.blocks, use.free_blocks), deviations)


@LIMITS.case(
    "an access or an allocation for which the pool has no page takes nothing of the limit of the mount",
    f"{SIZE}; hugepage_subpool_put_pages()",
    pages=1,
)
def no_page_leaves_the_limit(live: Live) -> None:
    point = live.mount(size=2 * live.size)
    file = open_file(live, f"{point}/file")
    file.truncate(2)
    shared, private = (file.map(2, shared=shared, noreserve=True) for shared in (True, False))
    thief = live.map(1)
    thief.touch()
    for memory in (shared, private):
        for access in (memory.touch, memory.read):
            live.expect_signal(signal.SIGBUS, access, 1)
            expect_blocks(live, point, 2, 2, {Quirk.SUBPOOL_USE_LOST_AT_FAULT: 1})
    live.expect_errno(errno.ENOSPC, file.allocate, 1)
    expect_blocks(live, point, 2, 2)
    thief.unmap()
    shared.touch()
    expect_blocks(live, point, 2, 1)
    live.expect_pool(nr=1, free=0)


@LIMITS.case("a refused mapping leaves the limit as it was", SIZE, pages=1)
def refused_mapping_keeps_no_limit(live: Live) -> None:
    point = live.mount(size=2 * live.size)
    file = open_file(live, f"{point}/file")
    for _turn in range(3):
        live.expect_errno(errno.ENOMEM, file.map, 2)
        expect_blocks(live, point, 2, 2, {Quirk.SUBPOOL_USE_LOST_AT_MMAP: 0})
        live.expect_pool(nr=1, free=1)
    file.map(1)
    expect_blocks(live, point, 2, 1)


@LIMITS.case(
    "of processes that want a page of a mount at the same moment as many get one as size= allows",
    SIZE,
    pages=RACERS,
    sizes=Sizes.BUDDY,
)
def race_for_the_limit(live: Live) -> None:
    point = live.mount(size=live.size)
    for noreserve in (False, True):
        got = race(live, open_file(live, f"{point}/file"), noreserve=noreserve)
        live.expect(f"processes that got a page, {'at a fault' if noreserve else 'by a mapping'}", {1}, got)
        live.expect_pool(nr=RACERS, free=RACERS)
        expect_blocks(live, point, 1, 1)


@LIMITS.case(
    "size= in percent is that part of the persistent pool, rounded down to whole pages once the pages are multiplied",
    f"{SIZE}; fs/hugetlbfs/inode.c hugetlbfs_size_to_hpages()",
    sizes=Sizes.BUDDY,
    # of most pools a hundredth of a page is no whole number, and a fifth of the pool is one
    pages=5,
)
def size_in_percent(live: Live) -> None:
    live.let_grow(4)
    live.map(9)
    pool = read_pool_view(live.host).pools[live.size]
    for percent in range(5, 101, 5):
        expected = (pool.nr - pool.surplus) * percent // 100
        point = live.mount(size=f"{percent}%")
        with live.about(f"size={percent}%"):
            expect_blocks(live, point, expected, expected)
        live.unmount(point)


@LIMITS.case(
    "size= in percent of a mount of gigantic pages is that part of their pool, whatever the default pool has",
    f"{SIZE}; fs/hugetlbfs/inode.c hugetlbfs_size_to_hpages()",
    sizes=Sizes.GIGANTIC,
    pages=2,
)
def size_in_percent_of_gigantic_pages(live: Live) -> None:
    pool = read_pool_view(live.host).pools[live.size]
    for percent in (50, 100):
        expected = (pool.nr - pool.surplus) * percent // 100
        expect_blocks(live, live.mount(size=f"{percent}%"), expected, expected)


@LIMITS.case("a limit is rounded down to whole pages", SIZE, pages=1)
def size_is_rounded_down(live: Live) -> None:
    expect_blocks(live, live.mount(size=2 * live.size - 1), 1, 1)


@LIMITS.case("min_size= reserves at the mount, and its files take from that first", MIN_SIZE, pages=2)
def min_size_reserves(live: Live) -> None:
    point = live.mount(min_size=live.size)
    live.expect_pool(nr=2, free=2, resv=1)
    file = open_file(live, f"{point}/file")
    memory = file.map(1)
    live.expect_pool(nr=2, free=2, resv=1)
    more = file.map(2)
    live.expect_pool(nr=2, free=2, resv=2)
    more.touch(0)
    live.expect_pool(nr=2, free=1, resv=1)
    memory.unmap()
    more.unmap()
    file.truncate(0)
    live.expect_pool(nr=2, free=2, resv=1)


@LIMITS.case(
    "a mapping of more pages than min_size= reserves uses these up and reserves the others; each page that goes is"
    " reserved again, up to min_size=, and no other is",
    f"{MIN_SIZE}; hugepage_subpool_get_pages(), hugepage_subpool_put_pages()",
    pages=5,
)
def mapping_beyond_the_promise(live: Live) -> None:
    # without size= the kernel does not count what the mount uses, and reserves a page again that goes while others stay
    point = live.mount(min_size=2 * live.size, size=5 * live.size)
    files = [open_file(live, f"{point}/{name}") for name in ("first", "second")]
    live.expect_pool(nr=5, free=5, resv=2)
    for shared in (True, False):
        memory = files[0].map(3, shared=shared)
        live.expect_pool(nr=5, free=5, resv=3)
        other = files[1].map(1, shared=shared)
        live.expect_pool(nr=5, free=5, resv=4)
        memory.touch(0)
        live.expect_pool(nr=5, free=4, resv=3)
        other.unmap()
        files[1].truncate(0)
        live.expect_pool(nr=5, free=4, resv=2)
        memory.unmap()
        files[0].truncate(0)
        live.expect_pool(nr=5, free=5, resv=2)


@LIMITS.case("nobody else gets what min_size= reserved", MIN_SIZE, pages=1)
def min_size_is_for_the_mount(live: Live) -> None:
    point = live.mount(min_size=live.size)
    live.expect_errno(errno.ENOMEM, live.map, 1)
    thief = live.map(1, noreserve=True)
    live.expect_signal(signal.SIGBUS, thief.touch)
    file = open_file(live, f"{point}/file")
    file.map(1).touch()
    live.expect_pool(nr=1, free=0)


@LIMITS.case(
    "a mount whose min_size= the pool does not have is refused, and reserves nothing, whichever bit of a number of"
    " bytes is set, and with a page more, which the pool has, too",
    MIN_SIZE,
    pages=1,
)
def min_size_beyond_the_pool(live: Live) -> None:
    one = live.size
    for most in (1 << bit for bit in range(one.bit_length(), _SIZE_BITS)):
        for options in ({"min_size": most}, {"min_size": most + one}, {"min_size": most, "size": most + one}):
            with live.about(str(options)):
                live.expect_errno(errno.ENOMEM, partial(live.mount, **options))
    live.expect_pool(nr=1, free=1)


@LIMITS.case("with both limits there is what min_size= reserves and no more than size=", MIN_SIZE, pages=2)
def both_limits(live: Live) -> None:
    point = live.mount(min_size=live.size, size=live.size)
    live.expect_pool(nr=2, free=2, resv=1)
    file = open_file(live, f"{point}/file")
    live.expect_errno(errno.ENOMEM, file.map, 2)
    live.expect_pool(nr=2, free=2, resv=1)
    memory = file.map(1)
    memory.touch()
    live.expect_pool(nr=2, free=1)
    memory.unmap()
    file.truncate(0)
    live.expect_pool(nr=2, free=2, resv=1)


@LIMITS.case(
    "min_size= in percent reserves that part of the persistent pool, less than a page nothing",
    f"{MIN_SIZE}; fs/hugetlbfs/inode.c hugetlbfs_size_to_hpages()",
    sizes=Sizes.BUDDY,
    pages=5,
)
def min_size_in_percent(live: Live) -> None:
    persistent = read_pool_view(live.host).pools[live.size].nr
    percent = -(-3 * 100 // persistent)
    reserved = persistent * percent // 100
    if reserved > 5:
        raise CannotRun("of the pages of this pool a percent is more than a case has")
    for part, pages in ((percent, reserved), (0, 0)):
        point = live.mount(min_size=f"{part}%")
        live.expect_pool(nr=5, free=5, resv=pages)
        live.unmount(point)
        live.expect_pool(nr=5, free=5)
    expect_blocks(live, live.mount(min_size=f"{percent}%", size="100%"), persistent, persistent)
    live.expect_pool(nr=5, free=5, resv=reserved)


@LIMITS.case("what min_size= reserved is free again when the mount has gone", MIN_SIZE, pages=2)
def min_size_goes_with_the_mount(live: Live) -> None:
    for _turn in range(2):
        point = live.mount(min_size=2 * live.size)
        live.expect_pool(nr=2, free=2, resv=2)
        live.unmount(point)
        live.expect_pool(nr=2, free=2)
        live.map(2).unmap()


@LIMITS.case("nr_inodes= is the most files and directories, the root included", f"{HUGETLB_DOC} nr_inodes")
def number_of_files(live: Live) -> None:
    # without size= or min_size= statfs(2) tells nothing (hugetlbfs_statfs())
    point = live.mount(nr_inodes=3, size=live.size)
    actor = live.actor()
    expect_files(live, point, 2)
    for left, name in ((1, "first"), (0, "second")):
        live.open(actor, f"{point}/{name}")
        expect_files(live, point, left)
    live.expect_errno(errno.ENOSPC, live.open, actor, f"{point}/third")
    first = open_file(live, f"{point}/first")
    first.actor.call("unlinkat", AT_FDCWD, f"{point}/first", 0)
    live.expect_errno(errno.ENOSPC, live.open, actor, f"{point}/third")
    first.close()
    expect_files(live, point, 0)
    actor.end()
    expect_files(live, point, 1)
    live.open(live.actor(), f"{point}/third")
    expect_files(live, point, 0)


def expect_files(live: Live, point: str, free: int) -> None:
    """Expect a file system of 3 files of which ``free`` are left."""
    use = live.host.file_system(point)
    live.expect("f_files, f_ffree", (3, free), (use.files, use.free_files))


class MountLimits(LiveTest):
    def test_mount_limits(self) -> None:
        self.run_area(LIMITS)
