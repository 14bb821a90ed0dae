"""Directories of a hugetlbfs: what they count, the names in them, and whose the files are that are made there."""

import errno
import mmap
import os
import stat
from itertools import product

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.file_status import FileStatus
from hugepage_qa.cases.hugetlb_files import HugeFile, look_at, open_directory, open_file
from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.uapi import AT_FDCWD, AT_REMOVEDIR, NOBODY
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

DIRECTORIES = Area("reservation/hugetlbfs-directories")
FILES = "fs/hugetlbfs/inode.c"
_OWN_GROUP = 4711
_SPECIAL = {"fifo": stat.S_IFIFO, "socket": stat.S_IFSOCK, "device": stat.S_IFCHR}
# include/uapi/linux/fs.h
_RENAME_NOREPLACE, _RENAME_EXCHANGE = 1 << 0, 1 << 1


@DIRECTORIES.case(
    "a directory counts the directories in it, and a file its names",
    f"inode(7) st_nlink; {FILES} hugetlbfs_mkdir()",
)
def links(live: Live) -> None:
    point, actor = live.mount(), live.actor()
    root = open_directory(live, actor, point)
    live.expect("links of the root of the mount", 2, root.links)
    for count, name in enumerate(("first", "second"), start=3):
        actor.call("mkdirat", root.descriptor, name, 0o700)
        live.expect("links of a directory with directories in it", count, root.links)
    first, second = (open_directory(live, actor, f"{point}/{name}") for name in ("first", "second"))
    live.expect("links of the directories in it", (2, 2), (first.links, second.links))
    file = open_file(live, f"{point}/first/file", actor)
    actor.call("linkat", first.descriptor, "file", root.descriptor, "other", 0)
    live.expect("links of a file with two names", 2, file.links)
    live.expect("links of the directories", (2, 4), (first.links, root.links))
    actor.call("renameat2", root.descriptor, "second", first.descriptor, "inside", 0)
    live.expect("links of the directories, one of which has moved", (3, 3), (first.links, root.links))
    live.expect_errno(errno.ENOTEMPTY, actor.call, "unlinkat", root.descriptor, "first", AT_REMOVEDIR)
    actor.call("unlinkat", root.descriptor, "other", 0)
    live.expect("links of a file with one name", 1, file.links)
    actor.call("unlinkat", first.descriptor, "file", 0)
    live.expect("links of a file without a name", 0, file.links)
    actor.call("unlinkat", first.descriptor, "inside", AT_REMOVEDIR)
    live.expect("links of the directories, one of which has gone", (2, 3), (first.links, root.links))
    actor.call("unlinkat", root.descriptor, "first", AT_REMOVEDIR)
    live.expect("links of the root of the mount", 2, root.links)


@DIRECTORIES.case(
    "what is made in a directory with the set-group-ID bit is of its group, a directory with the bit, too; elsewhere it"
    " is of the group of who makes it",
    f"inode(7) S_ISGID; {FILES} hugetlbfs_get_inode(), inode_init_owner()",
)
def groups(live: Live) -> None:
    actor = live.actor()
    # on a machine that is put back all that the suite starts has the group that the mount is given here
    actor.call("setresgid", _OWN_GROUP, _OWN_GROUP, _OWN_GROUP)
    for mode, group, bit in ((0o755, _OWN_GROUP, 0), (0o2755, NOBODY, 0o2000)):
        point = live.mount(gid=NOBODY)
        root = open_directory(live, actor, point)
        actor.call("fchmod", root.descriptor, mode)
        file = open_file(live, f"{point}/file", actor)
        without_name = open_file(live, point, actor, os.O_RDWR | live.host.uapi.o_tmpfile)
        actor.call("mkdirat", root.descriptor, "inside", 0o700)
        inside = open_directory(live, actor, f"{point}/inside")
        with live.about(f"mode {mode:o}"):
            live.expect(
                "groups of a file, one without a name, a directory",
                (group,) * 3,
                (file.group, without_name.group, inside.group),
            )
            live.expect("mode of the directory", oct(0o700 | bit), oct(inside.mode))


@DIRECTORIES.case(
    "what is made has each bit of its mode but those of the umask: files, one without a name, a fifo, a socket, a"
    " device, and directories, of which the sticky bit and the permissions are asked for alone",
    f"umask(2), open(2), mknod(2), mkdir(2) NOTES; {FILES} hugetlbfs_mkdir(), hugetlbfs_mknod(), hugetlbfs_tmpfile()",
)
def modes(live: Live) -> None:
    point, actor = live.mount(), live.actor()
    call, here = actor.call, open_directory(live, actor, point).descriptor
    without_name = os.O_RDWR | live.host.uapi.o_tmpfile
    for mask, bits in (*((0, 1 << bit) for bit in range(12)), *product((0o22, 0o757), (0o1777, 0o7777))):
        call("umask", mask)
        call("openat", here, "file", os.O_RDWR | os.O_CREAT, bits)
        for kind, of_kind in _SPECIAL.items():
            call("mknodat", here, kind, of_kind | bits, 0)
        call("mkdirat", here, "directory", bits)
        nameless = HugeFile(live, actor, call("openat", here, ".", without_name, bits))
        found = {name: look_at(live, actor, here, name).mode for name in ("file", *_SPECIAL, "directory")}
        with live.about(f"mode {bits:o}, umask {mask:o}"):
            wanted = {**dict.fromkeys(("file", *_SPECIAL), bits & ~mask), "directory": bits & ~mask & 0o1777}
            live.expect("modes", _in_octal(wanted), _in_octal(found))
            live.expect("mode of a file without a name", oct(bits & ~mask), oct(nameless.mode))
        for name in found:
            call("unlinkat", here, name, AT_REMOVEDIR if name == "directory" else 0)


def _in_octal(modes: dict[str, int]) -> dict[str, str]:
    return {name: oct(mode) for name, mode in modes.items()}


@DIRECTORIES.case(
    "a fifo, a socket and a device are files of a mount that take one of its nr_inodes= each, and no page; a fifo"
    " carries what is written to it",
    f"mknod(2) ENOSPC; {FILES} hugetlbfs_mknod(), hugetlbfs_get_inode()",
    pages=1,
)
def special_files(live: Live) -> None:
    point, actor = live.mount(nr_inodes=len(_SPECIAL) + 1, size=live.size), live.actor()
    for _time in range(2):
        expect_left(live, point, len(_SPECIAL))
        for left, (name, kind) in zip((2, 1, 0), _SPECIAL.items(), strict=True):
            actor.call("mknodat", AT_FDCWD, f"{point}/{name}", kind | 0o600, 0)
            expect_left(live, point, left)
        live.expect_errno(errno.ENOSPC, actor.call, "mknodat", AT_FDCWD, f"{point}/more", stat.S_IFIFO | 0o600, 0)
        live.expect_errno(errno.ENOENT, live.open, actor, f"{point}/more", os.O_RDWR)
        fifo = live.open(actor, f"{point}/fifo", os.O_RDWR | os.O_NONBLOCK)
        live.expect("bytes written", 8, actor.call("write", fifo, b"hugepage", 8))
        live.expect("bytes read", (8, (b"hugepage",)), actor.call_with_buffers("read", fifo, bytes(8), 8))
        live.expect_errno(errno.ENODEV, live.map, 1, actor, fd=fifo, shared=True)
        for name in _SPECIAL:
            actor.call("unlinkat", AT_FDCWD, f"{point}/{name}", 0)
        expect_left(live, point, 1 + 1)
        actor.call("close", fifo)
        live.expect_pool(nr=1, free=1)
    expect_left(live, point, len(_SPECIAL))


@DIRECTORIES.case(
    "a symbolic link, whose text has no place in pages that nobody writes to, is refused and leaves neither a name nor"
    " one file less to be made",
    f"{FILES} hugetlbfs_symlink(), hugetlbfs_write_begin()",
    pages=1,
)
def symbolic_link(live: Live) -> None:
    point, actor = live.mount(nr_inodes=2, size=live.size), live.actor()
    for _time in range(3):
        live.expect_errno(errno.EINVAL, actor.call, "symlinkat", "elsewhere", AT_FDCWD, f"{point}/link")
        live.expect_errno(errno.ENOENT, actor.call, "unlinkat", AT_FDCWD, f"{point}/link", 0)
        expect_left(live, point, 1)
    live.open(actor, f"{point}/file")
    expect_left(live, point, 0)
    live.expect_errno(errno.ENOSPC, actor.call, "symlinkat", "elsewhere", AT_FDCWD, f"{point}/link")
    expect_left(live, point, 0)
    live.expect_pool(nr=1, free=1)


@DIRECTORIES.case(
    "a name that a file is renamed to loses the file that it had, which gives its pages and its place back when nobody"
    " has it open; two names can be exchanged; what cannot be is refused, and changes nothing",
    "rename(2), link(2), open(2), mkdir(2) ERRORS; fs/libfs.c simple_rename()",
    # RENAME_EXCHANGE
    since="5.16",
    pages=2,
)
def renamed(live: Live) -> None:
    point, actor = live.mount(nr_inodes=5, size=2 * live.size), live.actor()
    call, here = actor.call, open_directory(live, actor, point).descriptor
    first, second = (open_file(live, f"{point}/{name}", actor) for name in ("first", "second"))
    for value, file in enumerate((first, second), start=1):
        file.map(1).fill(value)
    for name in ("directory", "empty"):
        call("mkdirat", here, name, 0o700)
    call("linkat", here, "first", here, "directory/link", 0)
    before = _names(live, here, actor)
    for number, words in (
        (errno.EEXIST, ("renameat2", here, "first", here, "second", _RENAME_NOREPLACE)),
        (errno.ENOENT, ("renameat2", here, "none", here, "other", 0)),
        (errno.ENOENT, ("renameat2", here, "first", here, "none", _RENAME_EXCHANGE)),
        (errno.EINVAL, ("renameat2", here, "first", here, "second", _RENAME_NOREPLACE | _RENAME_EXCHANGE)),
        (errno.EISDIR, ("renameat2", here, "first", here, "empty", 0)),
        (errno.ENOTDIR, ("renameat2", here, "empty", here, "first", 0)),
        (errno.ENOTEMPTY, ("renameat2", here, "empty", here, "directory", 0)),
        (errno.EINVAL, ("renameat2", here, "directory", here, "directory/inside", 0)),
        (errno.ENAMETOOLONG, ("renameat2", here, "first", here, 256 * "n", 0)),
        (errno.EEXIST, ("linkat", here, "first", here, "second", 0)),
        (errno.EPERM, ("linkat", here, "empty", here, "other", 0)),
        (errno.EEXIST, ("mkdirat", here, "first", 0o700)),
        (errno.EEXIST, ("mknodat", here, "empty", stat.S_IFIFO | 0o600, 0)),
        (errno.EEXIST, ("openat", here, "first", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)),
        (errno.EISDIR, ("openat", here, "empty", os.O_RDWR, 0)),
        (errno.EISDIR, ("unlinkat", here, "empty", 0)),
        (errno.ENOTDIR, ("unlinkat", here, "first", AT_REMOVEDIR)),
        (errno.ENOTEMPTY, ("unlinkat", here, "directory", AT_REMOVEDIR)),
    ):
        with live.about(f"{words}"):
            live.expect_errno(number, call, *words)
            live.expect("names", before, _names(live, here, actor))
    live.expect_pool(nr=2, free=0)
    call("renameat2", here, "first", here, "second", _RENAME_EXCHANGE)
    for name, value in (("second", 1), ("first", 2), ("directory/link", 1)):
        open_file(live, f"{point}/{name}", actor).map(1, prot=mmap.PROT_READ).expect_filled(value)
    longest = 255 * "n"
    call("renameat2", here, "second", here, longest, _RENAME_NOREPLACE)
    live.expect("links of the files", (2, 1), (first.links, second.links))
    # over the file of the other
    call("renameat2", here, longest, here, "first", 0)
    live.expect("links of the files", (2, 0), (first.links, second.links))
    live.expect_pool(nr=2, free=0)
    actor.end()
    live.expect_pool(nr=2, free=1)
    use = live.host.file_system(point)
    # the root, a file and two directories
    live.expect("f_ffree, f_bfree", (1, 1), (use.free_files, use.free_blocks))
    open_file(live, f"{point}/first").map(1).expect_filled(1)


def _names(live: Live, directory: int, actor: Actor) -> dict[str, FileStatus]:
    """Return what stat(2) tells of the files of ``renamed``."""
    found = {}
    for name in ("first", "second", "empty", "directory", "directory/link"):
        file = look_at(live, actor, directory, name)
        found[name] = file.status()
        file.close()
    return found


def expect_left(live: Live, point: str, files: int) -> None:
    """Expect a mount to have room for so many files, and all of its one page."""
    use = live.host.file_system(point)
    live.expect("f_ffree, f_bfree", (files, 1), (use.free_files, use.free_blocks))


class HugetlbfsDirectories(LiveTest):
    def test_directories(self) -> None:
        self.run_area(DIRECTORIES)
