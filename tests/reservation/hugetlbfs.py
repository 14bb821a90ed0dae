"""The hugetlbfs: what its options do, and what its files keep when nobody looks."""

import errno
import mmap
import os
import signal
from functools import partial
from itertools import product

from hugepage_qa.cases.capabilities import become_nobody
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import HugeFile, open_file
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.places import ordinary_memory
from hugepage_qa.cases.shown_mounts import mounted_options, shown_page_size
from hugepage_qa.kernel.uapi import AT_FDCWD, NOBODY
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor
from hugepage_qa.sizes import format_size

HUGETLBFS = Area("reservation/hugetlbfs")
OPTIONS = f"{HUGETLB_DOC} Using Huge Pages; fs/hugetlbfs/inode.c hugetlbfs_parse_param(), hugetlbfs_validate()"
FILES = f"{HUGETLB_DOC} Using Huge Pages; fs/hugetlbfs/inode.c"
#: what a buffer holds that nothing was read to: no zeroes, for these are what a hole reads as
_BEFORE = b"\xff" * 8
#: what no option can be: the largest number stands for no user and no group
_SENSELESS = {
    "size": ("x", "-1"),
    "min_size": ("x", "-1"),
    "nr_inodes": ("x", "-1"),
    "mode": ("9", "x"),
    "uid": (f"{2**32 - 1}", "x", "-1"),
    "gid": (f"{2**32 - 1}", "x", "-1"),
    "pagesize": ("12345", "0", "x"),
}


@HUGETLBFS.case("pagesize= gives the files of a mount pages of that size, also where none can be had", OPTIONS)
def page_size_of_a_mount_without_pages(live: Live) -> None:
    point = live.mount()
    size = format_size(live.size)
    blocks = live.host.file_system(point).block_size
    live.expect(f"f_bsize of a mount with pagesize={size}", size, format_size(blocks))
    found = open_file(live, f"{point}/file").map(1, noreserve=True).smaps().kernel_page_size
    live.expect(f"KernelPageSize of a file with pagesize={size}", size, format_size(found))
    live.expect_pool(nr=0, free=0)


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
    shown = mounted_options(live, point)
    for name, value in {"pagesize": shown_page_size(live), **given}.items():
        live.expect(f"{name}= in /proc/mounts", f"{value}", shown.get(name))


@HUGETLBFS.case("options that make no sense are refused", OPTIONS, pages=1)
def senseless_options(live: Live) -> None:
    live.expect_errno(errno.EINVAL, live.mount, min_size=2 * live.size, size=live.size)
    for name, words in _SENSELESS.items():
        for word in words:
            with live.about(f"{name}={word}"):
                live.expect_errno(errno.EINVAL, partial(live.mount, **{name: word}))
    live.expect_errno(errno.EINVAL, live.host.mount, "unknown=1")
    live.expect_pool(nr=1, free=1)


@HUGETLBFS.case("a mount without pagesize= has pages of the default size", OPTIONS, sizes=Sizes.DEFAULT)
def default_page_size(live: Live) -> None:
    use = live.host.file_system(live.mount_other("", "hugetlbfs"))
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
        live.expect("mode= in /proc/mounts", mode, mounted_options(live, point).get("mode"))


def create_in(actor: Actor, directory: int) -> None:
    """Create a file in an open directory. Raises OSError."""
    actor.call("openat", directory, "file", os.O_RDWR | os.O_CREAT, 0o600)


@HUGETLBFS.case("a file keeps its pages and what is in them when the process has gone", FILES, pages=1)
def file_outlives_its_process(live: Live) -> None:
    path = f"{live.mount()}/file"
    first = open_file(live, path)
    first.map(1).touch(value=5)
    first.actor.end()
    live.expect_pool(nr=1, free=0)
    second = open_file(live, path)
    live.expect("what the file holds", 5, second.map(1).read())
    second.actor.call("unlinkat", AT_FDCWD, path, 0)
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
    file.actor.call("unlinkat", AT_FDCWD, path, 0)
    live.expect_pool(nr=1, free=0)
    live.expect("what it holds", 5, memory.read())
    memory.unmap()
    live.expect_pool(nr=1, free=1)


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


@HUGETLBFS.case(
    "read(2) to memory that ends gives what has room there, of a page and of a hole, EFAULT where nothing has; of an"
    " empty file it gives nothing",
    f"read(2) EFAULT; {FILES} hugetlbfs_read_iter()",
    pages=1,
)
def read_to_where_memory_ends(live: Live) -> None:
    file, base = open_file(live, f"{live.mount()}/file"), live.base_page
    live.expect("bytes of an empty file", (0, _BEFORE), read_8(file, 0))
    file.truncate(2)
    page = file.map(1)
    for start, length in ((0, 3 * base), (live.size - base, base)):
        file.actor.fill(page.address + start, length, WORD, 7 + start)
    room = ordinary_memory(live, file.actor, 2)
    room.unmap(1)
    buffer = Memory(live, file.actor, room.address, 1, base)
    # in the page, from the page on into the hole, in the hole
    for offset, written in ((base, base), (live.size - base // 2, base // 2), (live.size, 0)):
        with live.about(f"from byte {offset} on"):
            buffer.fill(9)
            read = file.actor.call("pread64", file.descriptor, buffer.address, 2 * base, offset)
            live.expect("bytes read", base, read)
            wrong = file.actor.check(buffer.address, written, WORD, 7 + offset) if written else 0
            live.expect("words of the page that are wrong", 0, wrong)
            rest = base - written
            live.expect("words of the hole", 0, file.actor.nonzero(buffer.at(1) - rest, rest) if rest else 0)
            live.expect_errno(errno.EFAULT, file.actor.call, "pread64", file.descriptor, buffer.at(1), base, offset)
    live.expect_pool(nr=1, free=0)


@HUGETLBFS.case(
    "read(2) goes on where the last one ended, in a page, at its end, in a hole and at the end of the file; pread(2)"
    " moves nothing, and who shares the descriptor reads on from there",
    f"read(2), pread(2), lseek(2); {FILES} hugetlbfs_read_iter()",
    pages=2,
)
def next_read(live: Live) -> None:
    file, base, size = open_file(live, f"{live.mount()}/file"), live.base_page, live.size
    end = 2 * size + base + 4
    memory, call, fd = file.map(1), file.actor.call, file.descriptor
    written = ((0, 3 * base), (size - 3 * base, 3 * base))
    for start, length in written:
        file.actor.fill(memory.address + start, length, WORD, 7 + start)
    # the second page is a hole, and the last one is zero to the end
    call("fallocate", fd, 0, 2 * size, base + 4)
    buffer = ordinary_memory(live, file.actor, 3)
    others = HugeFile(live, file.actor, call("dup", fd)), HugeFile(live, file.actor.fork(), fd)
    for start in (0, base + 1, size - 2 * base, size - 3, 2 * size - 5, 2 * size - base, end - base - 1, end, end + 9):
        for length in (1, 5, base - 1, base, base + 905, 2 * base):
            with live.about(f"{length} bytes at {start}"):
                live.expect("where lseek(2) went", start, call("lseek", fd, start, os.SEEK_SET))
                place = start
                # read by the descriptor, by another of the same open file and by a child that has it
                for reader in (file, *others):
                    count = max(0, min(length, end - place))
                    read = reader.actor.call("read", reader.descriptor, buffer.address, length)
                    place += count
                    live.expect("bytes read, and where the next read begins", (count, place), (read, _place(file)))
                live.expect("bytes that are next", _bytes_at(live, place, written, end), _next_8(file))
                read_8(file, 0)
                left = max(0, min(8, end - place))
                live.expect("where the next read begins, after pread(2)", place + left, _place(file))
    live.expect_pool(nr=2, free=0)


@HUGETLBFS.case(
    "read(2) goes on where the last one ended however far into a file that is, and finds there what a mapping stored:"
    " behind what 31 bits count, and 32, and 40",
    f"read(2), lseek(2); {FILES} hugetlbfs_read_iter()",
    pages=1,
)
def read_far_into_a_file(live: Live) -> None:
    file = open_file(live, f"{live.mount()}/file")
    word = b"hugepage"
    for far in (1 << 31, 1 << 32, 1 << 40):
        with live.about(f"{far} bytes into the file"):
            # the page behind a hole, also where the page is larger than that, and another hole behind it
            first = -(-far // live.size) + 1
            file.truncate(first + 2)
            page = file.map(1, first=first)
            page.touch(value=int.from_bytes(word, live.host.byte_order))
            start = first * live.size
            found = {start - 12: bytes(8), start - 4: bytes(4) + word[:4], start + 4: word[4:] + bytes(4)}
            file.actor.call("lseek", file.descriptor, start - 12, os.SEEK_SET)
            for place, expected in found.items():
                live.expect("bytes that are next", expected, _next_8(file))
                live.expect("where the next read begins", place + 8, _place(file))
            live.expect("bytes at the page's begin", (8, word), read_8(file, start))
            page.unmap()
            file.truncate(0)
            live.expect_pool(nr=1, free=1)


def _place(file: HugeFile) -> int:
    return file.actor.call("lseek", file.descriptor, 0, os.SEEK_CUR)


def _next_8(file: HugeFile) -> bytes:
    _count, buffers = file.actor.call_with_buffers("read", file.descriptor, _BEFORE, 8)
    return buffers[0]


def _bytes_at(live: Live, place: int, written: tuple[tuple[int, int], ...], end: int) -> bytes:
    """Return 8 bytes of a file that holds zeroes up to its ``end``, but for what was ``written``: 7 + the place."""
    first = place - place % WORD
    words = (
        7 + word if any(start <= word < start + length for start, length in written) else 0
        for word in (first, first + WORD)
    )
    left = max(0, min(8, end - place))
    return live.host.uapi.pack("2Q", *words)[place - first :][:left].ljust(8, _BEFORE[:1])


@HUGETLBFS.case(
    "lseek(2) goes where it is told, behind the end, too, and not before the start; to it all up to the end is data,"
    " and the hole is the end",
    "lseek(2) SEEK_DATA, SEEK_HOLE, EINVAL, ENXIO; fs/read_write.c default_llseek()",
)
def places_in_a_file(live: Live) -> None:
    file, size = open_file(live, f"{live.mount()}/file"), live.size
    file.truncate(2)
    end, call, fd = 2 * size, file.actor.call, file.descriptor
    for whence, offset, place in (
        (os.SEEK_SET, 0, 0),
        (os.SEEK_SET, size + 1, size + 1),
        (os.SEEK_CUR, 0, size + 1),
        (os.SEEK_CUR, -size, 1),
        (os.SEEK_CUR, end, end + 1),
        (os.SEEK_END, 0, end),
        (os.SEEK_END, -1, end - 1),
        (os.SEEK_END, 5 * size, 7 * size),
        (os.SEEK_DATA, 0, 0),
        (os.SEEK_DATA, size + 5, size + 5),
        (os.SEEK_DATA, end - 1, end - 1),
        (os.SEEK_HOLE, 0, end),
        (os.SEEK_HOLE, end - 1, end),
    ):
        with live.about(f"lseek(2) by {offset} from {whence}"):
            live.expect("where it went", place, call("lseek", fd, offset, whence))
            live.expect("where the file is read", place, _place(file))
    for whence, offset, number in (
        (os.SEEK_SET, -1, errno.EINVAL),
        (os.SEEK_CUR, -end - 1, errno.EINVAL),
        (os.SEEK_END, -end - 1, errno.EINVAL),
        (os.SEEK_DATA, end, errno.ENXIO),
        (os.SEEK_HOLE, end, errno.ENXIO),
        (5, 0, errno.EINVAL),
    ):
        with live.about(f"lseek(2) by {offset} from {whence}"):
            live.expect_errno(number, call, "lseek", fd, offset, whence)
            live.expect("where the file is read", end, _place(file))
    live.expect_pool(nr=0, free=0)


def _read_before_the_end(left: int) -> bytes:
    """Return what the buffer of ``read_8`` holds when ``left`` bytes could be read, which are zero."""
    return bytes(max(left, 0)) + _BEFORE[max(left, 0) :]


def read_8(file: HugeFile, offset: int) -> tuple[int, bytes]:
    """Return how many of 8 bytes at ``offset`` could be read, and what the buffer holds then."""
    count, buffers = file.actor.call_with_buffers("pread64", file.descriptor, _BEFORE, 8, offset)
    return count, buffers[0]


@HUGETLBFS.case("write(2) is refused: files of huge pages are written through mappings", FILES, pages=1)
def write_a_file(live: Live) -> None:
    path = f"{live.mount()}/file"
    for flags in (0, os.O_APPEND):
        file = open_file(live, path, flags=os.O_RDWR | os.O_CREAT | flags)
        file.truncate(1)
        file.actor.call("lseek", file.descriptor, 5, os.SEEK_SET)
        for words in (("write", file.descriptor, b"text", 4), ("pwrite64", file.descriptor, b"text", 4, 0)):
            live.expect_errno(errno.EINVAL, file.actor.call, *words)
            live.expect("where the file is read", 5, _place(file))
        live.expect("the size of the file", live.size, file.size)
        live.expect_pool(nr=1, free=1)


@HUGETLBFS.case(
    "a descriptor that is open to read alone gives shared mappings that write neither by mmap(2) nor by mprotect(2),"
    " EACCES, and private ones; one that is open to write alone gives none; one that is open for both gives all",
    "mmap(2) EACCES; mprotect(2) EACCES; mm/mmap.c do_mmap(); Documentation/filesystems/proc.rst VmFlags mw",
    pages=1,
)
def what_descriptors_allow(live: Live) -> None:
    path = f"{live.mount()}/file"
    open_file(live, path).map(1).touch(value=5)
    prots = (0, mmap.PROT_READ, mmap.PROT_WRITE, READ_WRITE)
    for flags, shared, prot in product((os.O_RDONLY, os.O_WRONLY, os.O_RDWR), (True, False), prots):
        file, may_write = open_file(live, path, flags=flags), flags == os.O_RDWR or not shared
        with live.about(f"flags {flags:#o}, shared {shared}, protection {prot}"):
            if flags == os.O_WRONLY or (prot & mmap.PROT_WRITE and not may_write):
                live.expect_errno(errno.EACCES, file.map, 1, shared=shared, prot=prot, noreserve=True)
            else:
                memory = file.map(1, shared=shared, prot=prot, noreserve=True)
                live.expect("mw in VmFlags", may_write, "mw" in memory.smaps().flags)
                if not may_write:
                    live.expect_errno(errno.EACCES, memory.protect, READ_WRITE)
                    live.expect_signal(signal.SIGSEGV, memory.touch)
                memory.protect(READ_WRITE if may_write else mmap.PROT_READ)
                live.expect("what is in the page", 5, memory.read())
        file.actor.end()
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
    def test_hugetlbfs(self) -> None:
        self.run_area(HUGETLBFS)
