"""The hugetlbfs: its limits, its promises, and what it keeps when nobody looks."""

import errno
import mmap
import os
import signal
from collections.abc import Mapping
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import HugeFile, open_file
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.pool_view import read_pool_view
from hugepage_qa.cases.race import RACERS, race
from hugepage_qa.kernel.proc_tables import find_mount
from hugepage_qa.kernel.uapi import NOBODY
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor, become_nobody
from hugepage_qa.sizes import KIB, MIB, format_size

HUGETLBFS = Area("hugetlbfs")
SIZE = f"{HUGETLB_DOC} size; mm/hugetlb.c hugepage_subpool_get_pages()"
MIN_SIZE = f"{HUGETLB_DOC} min_size; mm/hugetlb.c hugepage_new_subpool()"
OPTIONS = f"{HUGETLB_DOC} Using Huge Pages; fs/hugetlbfs/inode.c hugetlbfs_parse_param(), hugetlbfs_validate()"
FILES = f"{HUGETLB_DOC} Using Huge Pages; fs/hugetlbfs/inode.c"


# --- size= -----------------------------------------------------------------------------------------------------------


@HUGETLBFS.case("size= is the most that the mappings of the mount can have, however large the pool is", SIZE, pages=2)
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


@HUGETLBFS.case("size= is the most that faults and fallocate(2) can have", SIZE, pages=2)
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


@HUGETLBFS.case(
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


@HUGETLBFS.case(
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


@HUGETLBFS.case("pagesize= gives the files of a mount pages of that size, also where none can be had", SIZE)
def page_size_of_a_mount_without_pages(live: Live) -> None:
    point = live.mount()
    size = format_size(live.size)
    blocks = live.host.file_system(point).block_size
    live.expect(f"f_bsize of a mount with pagesize={size}", size, format_size(blocks))
    found = open_file(live, f"{point}/file").map(1, noreserve=True).smaps().kernel_page_size
    live.expect(f"KernelPageSize of a file with pagesize={size}", size, format_size(found))
    live.expect_pool(nr=0, free=0)


@HUGETLBFS.case("a refused mapping leaves the limit as it was", SIZE, pages=1)
def refused_mapping_keeps_no_limit(live: Live) -> None:
    point = live.mount(size=2 * live.size)
    file = open_file(live, f"{point}/file")
    for _turn in range(3):
        live.expect_errno(errno.ENOMEM, file.map, 2)
        expect_blocks(live, point, 2, 2, {Quirk.SUBPOOL_USE_LOST_AT_MMAP: 0})
        live.expect_pool(nr=1, free=1)
    file.map(1)
    expect_blocks(live, point, 2, 1)


@HUGETLBFS.case(
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


@HUGETLBFS.case("size= in percent is that part of the persistent pool", SIZE, sizes=Sizes.BUDDY, pages=4)
def size_in_percent(live: Live) -> None:
    live.let_grow(4)
    live.map(8)
    pool = read_pool_view(live.host).pools[live.size]
    expected = (pool.nr - pool.surplus) * 50 // 100
    expect_blocks(live, live.mount(size="50%"), expected, expected)


@HUGETLBFS.case("a limit is rounded down to whole pages", SIZE, pages=1)
def size_is_rounded_down(live: Live) -> None:
    expect_blocks(live, live.mount(size=2 * live.size - 1), 1, 1)


# --- min_size= -------------------------------------------------------------------------------------------------------


@HUGETLBFS.case("min_size= reserves at the mount, and its files take from that first", MIN_SIZE, pages=2)
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


@HUGETLBFS.case("nobody else gets what min_size= reserved", MIN_SIZE, pages=1)
def min_size_is_for_the_mount(live: Live) -> None:
    point = live.mount(min_size=live.size)
    live.expect_errno(errno.ENOMEM, live.map, 1)
    thief = live.map(1, noreserve=True)
    live.expect_signal(signal.SIGBUS, thief.touch)
    file = open_file(live, f"{point}/file")
    file.map(1).touch()
    live.expect_pool(nr=1, free=0)


@HUGETLBFS.case("a mount whose min_size= the pool does not have is refused, and reserves nothing", MIN_SIZE, pages=1)
def min_size_beyond_the_pool(live: Live) -> None:
    live.expect_errno(errno.ENOMEM, live.mount, min_size=2 * live.size)
    live.expect_pool(nr=1, free=1)
    live.expect_errno(errno.ENOMEM, live.mount, min_size=2 * live.size, size=4 * live.size)
    live.expect_pool(nr=1, free=1)


@HUGETLBFS.case("with both limits there is what min_size= promises and no more than size=", MIN_SIZE, pages=2)
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


@HUGETLBFS.case(
    "min_size= in percent promises that part of the persistent pool, less than a page nothing",
    f"{MIN_SIZE}; fs/hugetlbfs/inode.c hugetlbfs_size_to_hpages()",
    sizes=Sizes.BUDDY,
    pages=4,
)
def min_size_in_percent(live: Live) -> None:
    persistent = read_pool_view(live.host).pools[live.size].nr
    percent = -(-3 * 100 // persistent)
    promised = persistent * percent // 100
    if promised > 4:
        raise CannotRun("of the pages of this pool a percent is more than a case has")
    for part, pages in ((percent, promised), (0, 0)):
        point = live.host.mount(f"pagesize={live.size},min_size={part}%")
        live.expect_pool(nr=4, free=4, resv=pages)
        live.host.unmount(point)
        live.expect_pool(nr=4, free=4)
    expect_blocks(live, live.mount(min_size=f"{percent}%", size="100%"), persistent, persistent)
    live.expect_pool(nr=4, free=4, resv=promised)


@HUGETLBFS.case("what min_size= reserved is free again when the mount has gone", MIN_SIZE, pages=2)
def min_size_goes_with_the_mount(live: Live) -> None:
    for _turn in range(2):
        point = live.host.mount(f"pagesize={live.size},min_size={2 * live.size}")
        live.expect_pool(nr=2, free=2, resv=2)
        live.host.unmount(point)
        live.expect_pool(nr=2, free=2)
        live.map(2).unmap()


# --- the other options -----------------------------------------------------------------------------------------------


@HUGETLBFS.case("nr_inodes= is the most files and directories, the root included", f"{HUGETLB_DOC} nr_inodes")
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
    first.actor.call("unlinkat", -100, f"{point}/first", 0)
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


@HUGETLBFS.case(
    "a mount shows its options as it got them, sizes in bytes and the page size with its unit",
    "Documentation/admin-guide/mm/hugetlbpage.rst Using Huge Pages; fs/hugetlbfs/inode.c hugetlbfs_show_options()",
    pages=1,
)
def shown_options(live: Live) -> None:
    given: dict[str, str | int] = {
        "size": 2 * live.size,
        "min_size": live.size,
        "nr_inodes": 3,
        "mode": "700",
        "uid": 1,
        "gid": 2,
    }
    point = live.mount(**given)
    mount = find_mount(ObservedTree(live.host), point)
    page_size = f"{live.size // MIB}M" if live.size >= MIB else f"{live.size // KIB}K"
    for name, value in {"pagesize": page_size, **given}.items():
        live.expect(f"{name}= in /proc/mounts", f"{value}", mount.option(name) if mount else None)


@HUGETLBFS.case("options that make no sense are refused", OPTIONS, pages=1)
def senseless_options(live: Live) -> None:
    live.expect_errno(errno.EINVAL, live.mount, min_size=2 * live.size, size=live.size)
    for options in ({"size": "x"}, {"min_size": "x"}, {"nr_inodes": "x"}, {"mode": "9"}, {"pagesize": "12345"}):
        live.expect_errno(errno.EINVAL, partial(live.mount, **options))
    live.expect_errno(errno.EINVAL, live.host.mount, "unknown=1")
    live.expect_pool(nr=1, free=1)


@HUGETLBFS.case("a mount without pagesize= has pages of the default size", OPTIONS, sizes=Sizes.DEFAULT)
def default_page_size(live: Live) -> None:
    point = live.host.mount("")
    use = live.host.file_system(point)
    live.host.unmount(point)
    live.expect("block size", live.size, use.block_size)


@HUGETLBFS.case("uid=, gid= and mode= say who may use the mount", OPTIONS)
def permissions(live: Live) -> None:
    actor = live.actor()
    options: tuple[dict[str, str | int], ...] = (
        {"mode": "0700"},
        {"mode": "0700", "gid": NOBODY},
        {"mode": "1777"},
        {"mode": "0700", "uid": NOBODY},
        {"mode": "0070", "gid": NOBODY},
    )
    # opened before: the directories above the mounts are not for everyone
    directories = [live.open(actor, live.mount(**each), os.O_RDONLY | live.host.uapi.o_directory) for each in options]
    become_nobody(actor)
    for directory in directories[:2]:
        live.expect_errno(errno.EACCES, create_in, actor, directory)
    for directory in directories[2:]:
        create_in(actor, directory)


@HUGETLBFS.case("mode= keeps the sticky bit: nobody removes the files of others", OPTIONS)
def sticky_mount(live: Live) -> None:
    actor = live.actor()
    mounts = [live.mount(mode=mode) for mode in ("1777", "777")]
    sticky, plain = (live.open(actor, point, os.O_RDONLY | live.host.uapi.o_directory) for point in mounts)
    for directory in (sticky, plain):
        create_in(actor, directory)
    become_nobody(actor)
    live.expect_errno(errno.EPERM, actor.call, "unlinkat", sticky, "file", 0)
    actor.call("unlinkat", plain, "file", 0)
    live.expect_errno(errno.ENOENT, actor.call, "unlinkat", plain, "file", 0)
    for point, mode in zip(mounts, ("1777", "777"), strict=True):
        mount = find_mount(ObservedTree(live.host), point)
        live.expect("mode= in /proc/mounts", mode, mount.option("mode") if mount else None)


def create_in(actor: Actor, directory: int) -> None:
    """Create a file in an open directory. Raises OSError."""
    actor.call("openat", directory, "file", os.O_RDWR | os.O_CREAT, 0o600)


# --- files -----------------------------------------------------------------------------------------------------------


@HUGETLBFS.case("a file keeps its pages and what is in them when the process has gone", FILES, pages=1)
def file_outlives_its_process(live: Live) -> None:
    path = f"{live.mount()}/file"
    first = open_file(live, path)
    first.map(1).touch(value=5)
    first.actor.end()
    live.expect_pool(nr=1, free=0)
    second = open_file(live, path)
    live.expect("what the file holds", 5, second.map(1).read())
    second.actor.call("unlinkat", -100, path, 0)
    live.expect_pool(nr=1, free=0)
    second.actor.end()
    live.expect_pool(nr=1, free=1)


@HUGETLBFS.case("a deleted file keeps its pages until its last mapping has gone", FILES, pages=1)
def deleted_file(live: Live) -> None:
    path = f"{live.mount()}/file"
    file = open_file(live, path)
    memory = file.map(1)
    memory.touch(value=5)
    file.close()
    file.actor.call("unlinkat", -100, path, 0)
    live.expect_pool(nr=1, free=0)
    live.expect("what it holds", 5, memory.read())
    memory.unmap()
    live.expect_pool(nr=1, free=1)


#: what a buffer holds that nothing was read to: no zeroes, for these are what a hole reads as
_BEFORE = b"\xff" * 8


@HUGETLBFS.case("read(2) shows what is in the file, and zeroes where no page is", FILES, pages=1)
def read_a_file(live: Live) -> None:
    file = open_file(live, f"{live.mount()}/file")
    file.truncate(2)
    memory = file.map(1, first=1)
    memory.touch(value=int.from_bytes(b"hugepage", live.host.byte_order))
    for offset, expected in ((0, bytes(8)), (live.size, b"hugepage"), (live.size - 4, bytes(4) + b"huge")):
        live.expect(f"8 bytes at {offset}", (8, expected), read_8(file, offset))
    live.expect("bytes behind the end", (0, _BEFORE), read_8(file, 2 * live.size))
    live.expect_pool(nr=1, free=0)


@HUGETLBFS.case(
    "read(2) of a file that ends inside a page ends there, too, and lseek(2) knows no other end",
    f"read(2); fallocate(2); {FILES} hugetlbfs_read_iter()",
    pages=2,
)
def read_a_file_to_its_end(live: Live) -> None:
    for whole in (0, 1):
        file = open_file(live, f"{live.mount()}/file")
        end = whole * live.size + live.base_page + 4
        file.actor.call("fallocate", file.descriptor, 0, 0, end)
        live.expect("the size of the file", end, file.size)
        for left in (8, 4, 0, -8):
            found = read_8(file, end - left)
            live.expect(f"8 bytes, {left} in front of the end", (max(left, 0), _read_before_the_end(left)), found)
        live.expect("bytes in the last page", (0, _BEFORE), read_8(file, (whole + 1) * live.size - 8))
        live.expect_pool(nr=2, free=1 - whole)
        file.truncate(0)
        live.expect_pool(nr=2, free=2)


def _read_before_the_end(left: int) -> bytes:
    """Return what the buffer of ``read_8`` holds when ``left`` bytes could be read, which are zero."""
    return bytes(max(left, 0)) + _BEFORE[max(left, 0) :]


def read_8(file: HugeFile, offset: int) -> tuple[int, bytes]:
    """Return how many of 8 bytes at ``offset`` could be read, and what the buffer holds then."""
    count, buffers = file.actor.call_with_buffers("pread64", file.descriptor, _BEFORE, 8, offset)
    return count, buffers[0]


@HUGETLBFS.case("write(2) is refused: files of huge pages are written through mappings", FILES, pages=1)
def write_a_file(live: Live) -> None:
    file = open_file(live, f"{live.mount()}/file")
    live.expect_errno(errno.EINVAL, file.actor.call, "write", file.descriptor, b"text", 4)
    live.expect("the size of the file", 0, file.size)
    live.expect_pool(nr=1, free=1)


@HUGETLBFS.case("a file that is open to read cannot be mapped shared to write", "mmap(2) EACCES", pages=1)
def read_only_file(live: Live) -> None:
    path = f"{live.mount()}/file"
    writer = open_file(live, path)
    writer.map(1).touch(value=5)
    reader = open_file(live, path, flags=os.O_RDONLY)
    live.expect_errno(errno.EACCES, reader.map, 1)
    memory = reader.map(1, prot=mmap.PROT_READ)
    live.expect("what the reader sees", 5, memory.read())
    live.expect_signal(signal.SIGSEGV, memory.touch)
    live.expect_pool(nr=1, free=0)


@HUGETLBFS.case(
    "a mapping that cannot write leaves the file as long as it was",
    f"{FILES} hugetlbfs_file_mmap(); mmap(2) SIGBUS",
    pages=2,
)
def mapping_to_read_beyond_the_end(live: Live) -> None:
    file = open_file(live, f"{live.mount()}/file")
    for shared in (True, False):
        reader = file.map(2, prot=mmap.PROT_READ, shared=shared, noreserve=not shared)
        live.expect("the size of the file", 0, file.size)
        live.expect_signal(signal.SIGBUS, reader.read, 0)
        reader.unmap()
    live.expect_pool(nr=2, free=2, resv=2)
    memory = file.map(1)
    live.expect("the size of the file, mapped to write", live.size, file.size)
    reader = file.map(2, prot=mmap.PROT_READ)
    live.expect("the size of the file", live.size, file.size)
    memory.touch(value=5)
    live.expect("what the reader sees", 5, reader.read(0))
    live.expect_signal(signal.SIGBUS, reader.read, 1)
    live.expect_pool(nr=2, free=1, resv=1)


class Hugetlbfs(LiveTest):
    """Cases on the hugetlbfs with every page size of the machine.

    :avocado: enable
    """

    def test_hugetlbfs(self) -> None:
        """Every case for every page size."""
        self.run_area(HUGETLBFS)
