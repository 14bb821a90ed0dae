"""Whose the files of a hugetlbfs are: who may change and open them, and with which mode, owner and kind they begin."""

import errno
import mmap
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

from hugepage_qa.cases.capabilities import become_nobody, become_user
from hugepage_qa.cases.case import Area
from hugepage_qa.cases.file_status import FileStatus
from hugepage_qa.cases.hugetlb_files import HugeFile, look_at, new_memfd, open_directory, open_file
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.shown_mounts import mounted_options
from hugepage_qa.kernel.uapi import AT_EMPTY_PATH, AT_FDCWD, AT_REMOVEDIR, MS_BIND, MS_REMOUNT, NOBODY, O_NOATIME
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor
from hugepage_qa.sizes import GIB

OWNERS = Area("reservation/hugetlbfs-owners")
FILES = "fs/hugetlbfs/inode.c"
_ROOT, _OTHER = 0, 4711
_MODE = 0o644
# include/uapi/linux/mount.h
_MS_RDONLY = 1 << 0


# --- who may change a file -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attempt:
    """What somebody tries on a file that NOBODY owns: the errno for the owner, another and root, and what comes of it.

    ``after`` are mode, owner and group where it succeeds.
    """

    what: str
    act: Callable[[Actor], object]
    owner: int
    other: int
    root: int = 0
    after: tuple[int, int, int] = (_MODE, NOBODY, NOBODY)

    def number(self, user: int) -> int:
        return {NOBODY: self.owner, _OTHER: self.other, _ROOT: self.root}[user]


def _attempts(live: Live, root: int) -> Iterator[Attempt]:
    def call(name: str, *words: int | bytes) -> Callable[[Actor], object]:
        return lambda actor: actor.call(name, root, "file", *words)

    not_owner, refused = errno.EPERM, errno.EACCES
    times = live.host.uapi.pack("4q", 1000, 0, 2000, 0)
    yield Attempt("chmod(2)", call("fchmodat", 0o640), 0, not_owner, after=(0o640, NOBODY, NOBODY))
    yield Attempt("chmod(2) to what it is", call("fchmodat", _MODE), 0, not_owner)
    yield Attempt("chown(2)", call("fchownat", _OTHER, _OTHER, 0), not_owner, not_owner, after=(_MODE, _OTHER, _OTHER))
    yield Attempt("chown(2) to who owns it", call("fchownat", NOBODY, NOBODY, 0), 0, not_owner)
    group = call("fchownat", -1, _OTHER, 0)
    yield Attempt("chown(2) of the group", group, not_owner, not_owner, after=(_MODE, NOBODY, _OTHER))
    yield Attempt("utimensat(2)", call("utimensat", times, 0), 0, not_owner)
    yield Attempt("utimensat(2) to now", call("utimensat", 0, 0), 0, refused)
    yield Attempt("open(2) to read", call("openat", os.O_RDONLY, 0), 0, 0)
    yield Attempt("open(2) O_NOATIME", call("openat", os.O_RDONLY | O_NOATIME, 0), 0, not_owner)
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC, os.O_WRONLY | os.O_APPEND):
        yield Attempt(f"open(2) with flags {flags:#o}", call("openat", flags, 0), 0, refused)


@OWNERS.case(
    "who owns a file changes its mode and its times, and root also its owner; others change nothing, and open it as its"
    " mode allows",
    f"chmod(2), chown(2), utimensat(2), open(2) ERRORS; {FILES} hugetlbfs_setattr()",
)
def changed_by_its_owner_alone(live: Live) -> None:
    point, actor = live.mount(mode="777"), live.actor()
    root = open_directory(live, actor, point)
    file = open_file(live, f"{point}/file", actor)
    users = {_ROOT: actor, NOBODY: actor.fork(), _OTHER: actor.fork()}
    for user in (NOBODY, _OTHER):
        become_user(users[user], user)
    for attempt, (user, one) in product(_attempts(live, root.descriptor), users.items()):
        actor.call("fchown", file.descriptor, NOBODY, NOBODY)
        actor.call("fchmod", file.descriptor, _MODE)
        before = file.status()
        number = attempt.number(user)
        with live.about(f"{attempt.what} by user {user}"):
            if number:
                live.expect_errno(number, attempt.act, one)
            else:
                live.expect_success(attempt.act, one)
            after = file.status()
            expected = (_MODE, NOBODY, NOBODY) if number else attempt.after
            live.expect("mode, owner and group before it", (_MODE, NOBODY, NOBODY), _identity(before))
            live.expect("mode, owner and group", expected, _identity(after))
            if number:
                live.expect("what else stat(2) tells", before, after)
    # who has it open to write is not who owns it
    for one in (users[NOBODY], users[_OTHER]):
        for words in (("fchmod", file.descriptor, 0o777), ("fchown", file.descriptor, NOBODY, NOBODY)):
            actor.call("fchown", file.descriptor, _ROOT, _ROOT)
            live.expect_errno(errno.EPERM, one.call, *words)
    live.expect("mode, owner and group", (_MODE, _ROOT, _ROOT), _identity(file.status()))


def _identity(status: FileStatus) -> tuple[int, int, int]:
    return status.mode, status.owner, status.group


@OWNERS.case(
    "the set-user-ID and set-group-ID bits of a file go with another owner, with another length by who has no right to"
    " keep them, and the latter with a mode by who is not in its group",
    f"chown(2), chmod(2) NOTES; inode(7) S_ISUID; {FILES} hugetlbfs_setattr(); fs/attr.c setattr_copy()",
)
def bits_that_do_not_stay(live: Live) -> None:
    actor = live.actor()
    file = open_file(live, f"{live.mount()}/file", actor)
    owner = actor.fork()
    become_nobody(owner)
    fd = file.descriptor
    for what, one, words, group, mode in (
        ("chown(2) by root", actor, ("fchown", fd, NOBODY, NOBODY), NOBODY, 0o755),
        ("chown(2) by root of the user", actor, ("fchown", fd, NOBODY, -1), NOBODY, 0o755),
        ("chown(2) of the group by the owner", owner, ("fchown", fd, -1, NOBODY), NOBODY, 0o755),
        ("ftruncate(2) by root", actor, ("ftruncate", fd, live.size), NOBODY, 0o6755),
        ("ftruncate(2) by the owner", owner, ("ftruncate", fd, live.size), NOBODY, 0o755),
        ("chmod(2) by root", actor, ("fchmod", fd, 0o6755), _ROOT, 0o6755),
        ("chmod(2) by the owner", owner, ("fchmod", fd, 0o6755), NOBODY, 0o6755),
        ("chmod(2) by the owner, who is not in the group", owner, ("fchmod", fd, 0o6755), _ROOT, 0o4755),
    ):
        file.truncate(0)
        actor.call("fchown", fd, NOBODY, group)
        actor.call("fchmod", fd, 0o6755)
        with live.about(what):
            live.expect("the mode before it", 0o6755, file.status().mode)
            live.expect_success(one.call, *words)
            live.expect("the mode", oct(mode), oct(file.status().mode))


# --- what a new file is ----------------------------------------------------------------------------------------------


@OWNERS.case(
    "a new file, directory, fifo and file without a name has the mode that was asked for without what umask(2) takes,"
    " and is of who makes it",
    f"open(2), mkdir(2), mknod(2), umask(2); {FILES} hugetlbfs_get_inode(), hugetlbfs_tmpfile();"
    " fs/namei.c vfs_tmpfile(): ac6800e279a2",
)
def mode_of_a_new_file(live: Live) -> None:
    point, actor = live.mount(mode="777"), live.actor()
    # on a machine that is put back all that the suite starts has a group of its own
    actor.call("setresgid", _ROOT, _ROOT, _ROOT)
    root = open_directory(live, actor, point)
    maker = actor.fork()
    become_nobody(maker)
    here = root.descriptor
    create, unnamed = os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_RDWR | live.host.uapi.o_tmpfile
    kinds = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFIFO)
    for one, umask, mode in product((actor, maker), (0, 0o027, 0o777), (0o644, 0o600, 0o421, 0o777, 0o1777, 0o4755)):
        one.call("umask", umask)
        user = NOBODY if one is maker else _ROOT
        one.call("mkdirat", here, "directory", mode)
        one.call("mknodat", here, "fifo", stat.S_IFIFO | mode, 0)
        one.call("mknodat", here, "regular", stat.S_IFREG | mode, 0)
        opened = (
            HugeFile(live, one, one.call("openat", here, "file", create, mode)),
            HugeFile(live, one, one.call("openat", here, ".", unnamed, mode)),
        )
        named = [look_at(live, actor, here, name) for name in ("regular", "directory", "fifo")]
        with live.about(f"mode {mode:o}, umask {umask:o}, user {user}"):
            for kind, links, file in zip(
                (stat.S_IFREG, stat.S_IFREG, *kinds), (1, 0, 1, 2, 1), (*opened, *named), strict=True
            ):
                # mkdir(2) takes permissions and the sticky bit alone
                asked = mode & 0o1777 if kind == stat.S_IFDIR else mode
                found = file.status()
                wanted = (oct(kind), oct(asked & ~umask), user, user, links)
                told = (oct(found.type), oct(found.mode), found.owner, found.group, found.links)
                live.expect(f"type, mode, owner, group and links of a {oct(kind)}", wanted, told)
                file.close()
        for name in ("regular", "fifo", "file"):
            actor.call("unlinkat", here, name, 0)
        actor.call("unlinkat", here, "directory", AT_REMOVEDIR)


@OWNERS.case(
    "stat(2) tells of each kind of file the huge page as its block, its length and what its pages occupy",
    f"stat(2) st_blksize, st_size, st_blocks; {FILES} hugetlbfs_fill_super()",
    pages=2,
)
def blocks_of_a_file(live: Live) -> None:
    point, actor = live.mount(), live.actor()
    files = (
        open_file(live, f"{point}/file", actor),
        open_file(live, point, actor, os.O_RDWR | live.host.uapi.o_tmpfile),
        new_memfd(live, actor),
    )
    root = open_directory(live, actor, point).status().block_size
    # i_blocksize() is an unsigned int
    if live.size < 4 * GIB:
        live.expect("st_blksize of the root of the mount", live.size, root)
    for file in files:
        for act, length, pages in (
            (lambda _file: None, 0, 0),
            (lambda file: file.truncate(3), 3, 0),
            (lambda file: file.map(1).touch(), 3, 1),
            (lambda file: file.allocate(1, 3), 4, 2),
            (lambda file: file.punch(1), 4, 1),
            (lambda file: file.truncate(0), 0, 0),
        ):
            act(file)
            found = file.status()
            wanted = root, length * live.size, pages * live.size
            live.expect("st_blksize, st_size, st_blocks", wanted, (found.block_size, found.size, found.occupied))
        file.close()
    live.expect_pool(nr=2, free=2)


@OWNERS.case(
    "a file without a name gets one by link(2) and keeps what it holds, with O_EXCL it gets none",
    f"open(2) O_TMPFILE; {FILES} hugetlbfs_tmpfile(); fs/libfs.c simple_link(); fs/namei.c vfs_tmpfile(): 406c706c7b7f",
    pages=1,
)
def name_for_a_nameless_file(live: Live) -> None:
    point, actor = live.mount(), live.actor()
    root = open_directory(live, actor, point)
    unnamed = os.O_RDWR | live.host.uapi.o_tmpfile
    file = open_file(live, point, actor, unnamed)
    file.map(1).fill(5)
    live.expect("links of a file without a name", 0, file.links)
    actor.call("linkat", file.descriptor, "", root.descriptor, "file", AT_EMPTY_PATH)
    live.expect("links of a file with a name", 1, file.links)
    file.close()
    open_file(live, f"{point}/file", actor, os.O_RDWR).map(1).expect_filled(5)
    live.expect_pool(nr=1, free=0)
    exclusive = open_file(live, point, actor, unnamed | os.O_EXCL)
    live.expect_errno(
        errno.ENOENT, actor.call, "linkat", exclusive.descriptor, "", root.descriptor, "other", AT_EMPTY_PATH
    )
    live.expect_errno(errno.EINVAL, live.open, actor, point, os.O_RDONLY | live.host.uapi.o_tmpfile)
    live.expect_errno(errno.ENOENT, live.open, actor, f"{point}/none", unnamed)
    live.expect_errno(errno.ENOTDIR, live.open, actor, f"{point}/file", unnamed)


# --- what nobody may -------------------------------------------------------------------------------------------------


@OWNERS.case(
    "of a mount that is read only nothing is changed: EROFS; it is mapped and read, and cannot be made read only while"
    " somebody has a file open to write",
    "mount(2) MS_REMOUNT, EBUSY; open(2) EROFS; fs/namespace.c mnt_want_write()",
    pages=1,
)
def read_only_mount(live: Live) -> None:
    point, actor = live.mount(), live.actor()
    writer, path = open_file(live, f"{point}/file"), f"{point}/file"
    writer.map(1).fill(5)
    read_only = [MS_REMOUNT | _MS_RDONLY | flags for flags in (MS_BIND, 0)]
    for flags in read_only:
        live.expect_errno(errno.EBUSY, actor.call, "mount", "none", point, 0, flags, 0)
        live.expect(f"ro in /proc/mounts with flags {flags:#x}", False, _is_read_only(live, point))
    writer.actor.end()
    for flags in read_only:
        with live.about(f"flags {flags:#x}"):
            actor.call("mount", "none", point, 0, flags, 0)
            live.expect("ro in /proc/mounts", True, _is_read_only(live, point))
            reader = open_file(live, path, actor, os.O_RDONLY)
            memory = reader.map(1, prot=mmap.PROT_READ)
            before = reader.status()
            memory.expect_filled(5)
            live.expect_errno(errno.EACCES, reader.map, 1)
            for words in _writes(live, point):
                live.expect_errno(errno.EROFS, actor.call, *words)
            live.expect("what stat(2) tells", before, reader.status())
            live.expect_pool(nr=1, free=0)
            memory.unmap()
            actor.call("mount", "none", point, 0, flags & ~_MS_RDONLY, 0)
            live.expect("ro in /proc/mounts", False, _is_read_only(live, point))
            open_file(live, path, actor, os.O_RDWR).close()
    open_file(live, path, actor, os.O_RDWR | os.O_TRUNC)
    live.expect_pool(nr=1, free=1)


def _is_read_only(live: Live, point: str) -> bool:
    return "ro" in mounted_options(live, point)


def _writes(live: Live, point: str) -> Iterator[tuple[str, *tuple[int | str, ...]]]:
    """Yield system calls that would change something of a mount, with the words that they take."""
    file, new = f"{point}/file", f"{point}/new"
    for path, flags in (
        (file, os.O_RDWR),
        (file, os.O_WRONLY | os.O_APPEND),
        (file, os.O_RDONLY | os.O_TRUNC),
        (new, os.O_RDONLY | os.O_CREAT),
        (point, os.O_RDWR | live.host.uapi.o_tmpfile),
    ):
        yield "openat", AT_FDCWD, path, flags, 0o600
    yield "mkdirat", AT_FDCWD, new, 0o700
    yield "mknodat", AT_FDCWD, new, stat.S_IFIFO | 0o600, 0
    yield "symlinkat", "elsewhere", AT_FDCWD, new
    yield "linkat", AT_FDCWD, file, AT_FDCWD, new, 0
    yield "renameat2", AT_FDCWD, file, AT_FDCWD, new, 0
    yield "unlinkat", AT_FDCWD, file, 0
    yield "fchmodat", AT_FDCWD, file, 0o600
    yield "fchownat", AT_FDCWD, file, NOBODY, NOBODY, 0
    yield "utimensat", AT_FDCWD, file, 0, 0


@OWNERS.case(
    "extended attributes, which the file system does not keep, are neither set nor found: EOPNOTSUPP",
    f"setxattr(2), getxattr(2) ENOTSUP; {FILES} hugetlbfs_fill_super(): no s_xattr",
)
def no_extended_attributes(live: Live) -> None:
    point, actor = live.mount(), live.actor()
    for file in (open_file(live, f"{point}/file", actor), new_memfd(live, actor)):
        for name in ("user.name", "trusted.name"):
            fd = file.descriptor
            live.expect_errno(errno.EOPNOTSUPP, actor.call, "fsetxattr", fd, name, b"value", 5, 0)
            live.expect_errno(errno.EOPNOTSUPP, actor.call, "fgetxattr", fd, name, bytes(8), 8)


class HugetlbfsOwners(LiveTest):
    def test_owners(self) -> None:
        self.run_area(OWNERS)
