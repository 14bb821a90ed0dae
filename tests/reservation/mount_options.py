"""What a hugetlbfs tells of its options: /proc/mounts, statfs(2) and its root, at the mount, in use and remounted."""

import errno
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.file_status import FileStatus, FileSystemStatus
from hugepage_qa.cases.hugetlb_files import HugeFile, new_memfd, open_directory, open_file
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.shown_mounts import mounted_options, shown_page_size
from hugepage_qa.kernel.uapi import AT_FDCWD, AT_REMOVEDIR, MS_REMOUNT, NOBODY
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor
from hugepage_qa.sizes import GIB, KIB, MIB

OPTIONS = Area("reservation/mount-options")
PARSED = f"{HUGETLB_DOC} Using Huge Pages; fs/hugetlbfs/inode.c hugetlbfs_parse_param()"
STATFS = "statfs(2); fs/hugetlbfs/inode.c hugetlbfs_statfs()"
# include/uapi/linux/magic.h, limits.h
_HUGETLBFS_MAGIC, _NAME_MAX = 0x958458F6, 255
#: what statfs(2) tells of a limit that is not set where another one is
_NO_LIMIT = (1 << 64) - 1
_UNITS = {"": 1, "k": KIB, "K": KIB, "m": MIB, "M": MIB, "g": GIB, "G": GIB, "t": KIB * GIB, "P": MIB * GIB}
#: real, effective, saved, and with files: who mounts is root, the effective user
_USERS = (0, 0, 0, 0), (1, 0, 3, 0), (1, 0, 3, 4)
_GROUPS = (0, 0, 0, 0), (1, 2, 3, 2), (1, 2, 3, 4), (1, 0, 3, 0)
_NAMES = ("pagesize", "size", "min_size", "nr_inodes", "mode", "uid", "gid")


def _shown(live: Live, point: str) -> dict[str, str]:
    """Return the options of hugetlbfs that /proc/mounts shows of a mount."""
    return {name: value for name, value in mounted_options(live, point).items() if name in _NAMES}


def _expect_shown(live: Live, given: Mapping[str, str], shown: Mapping[str, str]) -> str:
    """Mount with options as ``given``, expect these to be shown beside the page size, and return the mount."""
    point = live.mount(**given)
    with live.about(",".join(f"{name}={value}" for name, value in given.items())):
        live.expect("options in /proc/mounts", {"pagesize": shown_page_size(live), **shown}, _shown(live, point))
    return point


def _own_file(live: Live) -> FileStatus:
    """Return the status of a file of the suite: on a machine that is put back all that it starts has its own group."""
    return new_memfd(live, live.actor()).status()


@OPTIONS.case(
    "P, T, G, M and K, of either case, are units of pagesize=, size=, min_size= and nr_inodes=, whose numbers may be"
    " octal or hexadecimal; /proc/mounts and statfs(2) show what they come to, in whole pages",
    f"{PARSED}; lib/cmdline.c memparse()",
    pages=1,
)
def units(live: Live) -> None:
    group = _own_file(live).group
    own = {"gid": f"{group}"} if group else {}
    for unit, factor in _UNITS.items():
        for word, value in ((f"3{unit}", 3), (f"0x1f{unit}", 31), (f"010{unit}", 8)):
            files, size = value * factor, value * factor // live.size * live.size
            shown = {"nr_inodes": f"{files}", "size": f"{size}", **own}
            use = live.host.file_system(_expect_shown(live, {"nr_inodes": word, "size": word}, shown))
            found = use.files, use.free_files, use.blocks, use.free_blocks
            wanted = files, files - 1, size // live.size, size // live.size
            with live.about(word):
                live.expect("f_files, f_ffree, f_blocks, f_bfree", wanted, found)
        if live.size % factor == 0:
            word = f"{live.size // factor}{unit}"
            point = live.mount(pagesize=word, min_size=word)
            wanted_options = {"pagesize": shown_page_size(live), "min_size": f"{live.size}", **own}
            live.expect(f"options with pagesize={word},min_size={word}", wanted_options, _shown(live, point))
            live.expect_pool(nr=1, free=1, resv=1)
            live.unmount(point)
    live.expect_pool(nr=1, free=1)


@OPTIONS.case(
    "mode=, octal, is that of the root without the bits for set-user-ID and set-group-ID, uid= and gid= who owns it;"
    " what is not given is 0755 and of who mounts, and is not shown",
    f"{PARSED}, hugetlbfs_get_root(), hugetlbfs_show_options()",
)
def root_of_a_mount(live: Live) -> None:
    actor, mounter = live.actor(), _own_file(live)
    user, its_group = mounter.owner, mounter.group
    for given, mode, owner, group in (
        ({}, 0o755, user, its_group),
        ({"mode": "755", "uid": "0", "gid": "0"}, 0o755, 0, 0),
        ({"mode": "0"}, 0, user, its_group),
        ({"mode": "0700"}, 0o700, user, its_group),
        ({"mode": "1777"}, 0o1777, user, its_group),
        ({"mode": "7654"}, 0o1654, user, its_group),
        ({"uid": f"{NOBODY}"}, 0o755, NOBODY, its_group),
        ({"gid": "5"}, 0o755, user, 5),
        ({"mode": "21", "uid": "1", "gid": f"{2**32 - 2}"}, 0o21, 1, 2**32 - 2),
    ):
        shown = {
            **({"mode": f"{mode:o}"} if mode != 0o755 else {}),
            **({"uid": f"{owner}"} if owner else {}),
            **({"gid": f"{group}"} if group else {}),
        }
        root = open_directory(live, actor, _expect_shown(live, given, shown))
        status = root.status()
        found = oct(status.type), oct(status.mode), status.owner, status.group, status.links
        live.expect(f"the root with {given}", (oct(stat.S_IFDIR), oct(mode), owner, group, 2), found)


@OPTIONS.case(
    "who owns the root of a mount, of huge pages or of a tmpfs, and its group are, where uid= and gid= do not say it,"
    " those by which who mounts is judged with files, whatever the real, effective and saved ones are",
    f"mount(2); setfsuid(2); setfsgid(2); credentials(7); {PARSED}, hugetlbfs_init_fs_context(); mm/shmem.c"
    " shmem_init_fs_context()",
)
def owner_of_a_root(live: Live) -> None:
    actor = live.actor()
    for users, groups in product(_USERS, _GROUPS):
        mounter = actor.fork()
        mounter.call("setresgid", *groups[:3])
        mounter.call("setfsgid", groups[3])
        mounter.call("setresuid", *users[:3])
        for kind, given in product(("hugetlbfs", "tmpfs"), ({}, {"uid": 7}, {"gid": 8})):
            point, unmount = _mounted_by(live, mounter, users[3], kind, given)
            root = open_directory(live, actor, point)
            status, options = root.status(), mounted_options(live, point)
            # root is not shown
            shown = int(options.get("uid", "0")), int(options.get("gid", "0"))
            wanted = given.get("uid", users[3]), given.get("gid", groups[3])
            with live.about(f"a {kind} with {given} by users {users}, groups {groups}"):
                found = (status.owner, status.group), shown
                live.expect("owner and group of the root, and as /proc/mounts shows them", (wanted, wanted), found)
            root.close()
            unmount()
        mounter.end()


def _mounted_by(
    live: Live, mounter: Actor, user: int, kind: str, given: Mapping[str, int]
) -> tuple[str, Callable[[], None]]:
    """Have ``mounter`` mount a file system while it is ``user`` with files; return where, and what unmounts it."""
    point = live.host.mount_point()
    words = {**({"pagesize": live.size} if kind == "hugetlbfs" else {}), **given}
    options = ",".join(f"{name}={value}" for name, value in words.items())
    # the user may not come to it by its path
    mounter.call("chdir", point)
    mounter.call("fchmodat", AT_FDCWD, point, 0o755)
    mounter.call("setfsuid", user)
    mounter.call("mount", "none", ".", kind, 0, options)
    unmount = live.once_at_the_end(partial(live.host.unmount, point))
    mounter.call("setfsuid", 0)
    mounter.call("chdir", "/")
    return point, unmount


@OPTIONS.case(
    "statfs(2) tells what is left of the pages and the files of a mount with a limit of pages, as much for everybody,"
    " and of a limit that it lacks that there is none; of a mount without one it tells of none",
    f"{STATFS}; mm/hugetlb.c hugepage_subpool_get_pages()",
    pages=3,
)
def limits_in_use(live: Live) -> None:
    size = live.size
    cases: tuple[tuple[dict[str, int], int, int], ...] = (
        ({}, 0, 0),
        ({"nr_inodes": 3}, 0, 0),
        ({"size": 3 * size}, 3, _NO_LIMIT),
        ({"size": 3 * size, "nr_inodes": 4}, 3, 4),
        ({"min_size": size}, _NO_LIMIT, _NO_LIMIT),
        ({"min_size": size, "nr_inodes": 4}, _NO_LIMIT, 4),
        ({"min_size": size, "size": 2 * size, "nr_inodes": 5}, 2, 5),
    )
    for given, blocks, files in cases:
        point = live.mount(**given)
        with live.about(f"{given}"):
            file = open_file(live, f"{point}/file")
            whole = _nothing_used(live, blocks, files)
            _expect_use(live, file, whole, 0, 2, "a file")
            shared = file.map(1)
            _expect_use(live, file, whole, 1, 2, "a mapping")
            shared.touch()
            _expect_use(live, file, whole, 1, 2, "a page")
            private = file.map(1, shared=False)
            _expect_use(live, file, whole, 2, 2, "a private mapping")
            private.touch()
            _expect_use(live, file, whole, 2, 2, "a private page")
            private.unmap()
            shared.unmap()
            _expect_use(live, file, whole, 1, 2, "the page of the file")
            file.actor.call("mkdirat", AT_FDCWD, f"{point}/directory", 0o700)
            _expect_use(live, file, whole, 1, 3, "a directory")
            file.truncate(0)
            _expect_use(live, file, whole, 0, 3, "an empty file")
            file.actor.end()
        live.expect_pool(nr=3, free=3, resv=1 if "min_size" in given else 0)
        live.unmount(point)
        live.expect_pool(nr=3, free=3)
    # the kernel's own mount, which files without a name are on
    _expect_use(live, new_memfd(live), _nothing_used(live, 0, 0), 0, 0, "a file without a name")


def _nothing_used(live: Live, blocks: int, files: int) -> FileSystemStatus:
    return FileSystemStatus(
        type=_HUGETLBFS_MAGIC,
        block_size=live.size,
        blocks=blocks,
        free_blocks=blocks,
        available_blocks=blocks,
        files=files,
        free_files=files,
        longest_name=_NAME_MAX,
        fragment_size=live.size,
    )


def _expect_use(live: Live, file: HugeFile, whole: FileSystemStatus, pages: int, files: int, what: str) -> None:
    """Expect statfs(2) of ``file`` to tell of a ``whole`` file system that has ``pages`` and ``files`` in use."""

    def left(limit: int, used: int) -> int:
        return limit if limit in (0, _NO_LIMIT) else limit - used

    blocks = left(whole.blocks, pages)
    wanted = replace(whole, free_blocks=blocks, available_blocks=blocks, free_files=left(whole.files, files))
    found = vars(file.file_system())
    for name, value in vars(wanted).items():
        live.expect(f"{name} of statfs(2) with {what}", value, found[name])


@OPTIONS.case(
    "each kind of file takes one of nr_inodes= and gives it back when it has gone, another name takes none; where none"
    " is left each is refused with ENOSPC, and leaves no name",
    f"{HUGETLB_DOC} nr_inodes; open(2), mkdir(2), mknod(2), symlink(2) ENOSPC; fs/hugetlbfs/inode.c hugetlbfs_mknod(),"
    " hugetlbfs_tmpfile(), hugetlbfs_symlink()",
)
def files_of_each_kind(live: Live) -> None:
    # without size= statfs(2) tells of no files
    point, actor = live.mount(nr_inodes=3, size=live.size), live.actor()
    here = open_directory(live, actor, point).descriptor
    unnamed = os.O_RDWR | live.host.uapi.o_tmpfile
    create = os.O_RDWR | os.O_CREAT
    makers: dict[str, tuple[str, *tuple[int | str, ...]]] = {
        "file": ("openat", here, "new", create, 0o600),
        "directory": ("mkdirat", here, "new", 0o700),
        "fifo": ("mknodat", here, "new", stat.S_IFIFO | 0o600, 0),
        "socket": ("mknodat", here, "new", stat.S_IFSOCK | 0o600, 0),
        "regular": ("mknodat", here, "new", stat.S_IFREG | 0o600, 0),
        "file without a name": ("openat", here, ".", unnamed, 0o600),
    }
    full = open_file(live, f"{point}/first", actor)
    for (what, words), _time in product(makers.items(), range(2)):
        with live.about(what):
            _expect_files_left(live, full, 1)
            made = actor.call(*words)
            _expect_files_left(live, full, 0)
            actor.call("linkat", here, "first", here, "another name", 0)
            for name, other in (*makers.items(), ("link", ("symlinkat", "elsewhere", here, "new"))):
                at = (other[0], *(f"{name} more" if word == "new" else word for word in other[1:]))
                with live.about(f"{name} where none is left"):
                    live.expect_errno(errno.ENOSPC, actor.call, *at)
                    live.expect_errno(errno.ENOENT, actor.call, "openat", here, f"{name} more", os.O_PATH, 0)
            _expect_files_left(live, full, 0)
            actor.call("unlinkat", here, "another name", 0)
            if "new" in words:
                actor.call("unlinkat", here, "new", AT_REMOVEDIR if what == "directory" else 0)
            if words[0] == "openat":
                _expect_files_left(live, full, 0)
                actor.call("close", made)
    _expect_files_left(live, full, 1)


def _expect_files_left(live: Live, file: HugeFile, files: int) -> None:
    use = file.file_system()
    live.expect("f_files, f_ffree, f_blocks, f_bfree", (3, files, 1, 1), _counts(use))


def _counts(use: FileSystemStatus) -> tuple[int, int, int, int]:
    return use.files, use.free_files, use.blocks, use.free_blocks


@OPTIONS.case(
    "a remount leaves the limits, the page size, the mode and the owner of a mount as they are, and what it has in use",
    "fs/hugetlbfs/inode.c hugetlbfs_fs_context_ops without reconfigure; fs/super.c reconfigure_super()",
    pages=1,
)
def remounted(live: Live) -> None:
    given = {"size": f"{live.size}", "nr_inodes": "3", "mode": "700", "uid": "1", "gid": "2"}
    point = _expect_shown(live, given, given)
    file = open_file(live, f"{point}/file")
    root = open_directory(live, file.actor, point)
    file.map(1).fill(5)
    before, use = root.status(), file.file_system()
    for options in ("", "size=1G", "nr_inodes=2K", "mode=777,uid=3,gid=4", f"pagesize={live.size}", "min_size=0"):
        file.actor.call("mount", "none", point, 0, MS_REMOUNT, options)
        with live.about(f"remounted with {options!r}"):
            live.expect("options in /proc/mounts", {"pagesize": shown_page_size(live), **given}, _shown(live, point))
            live.expect("statfs(2)", use, file.file_system())
            live.expect("stat(2) of the root", before, root.status())
            live.expect_pool(nr=1, free=0)
    live.expect_errno(errno.EINVAL, file.actor.call, "mount", "none", point, 0, MS_REMOUNT, "unknown=1")
    live.expect_errno(errno.EINVAL, file.actor.call, "mount", "none", point, 0, MS_REMOUNT, "size=x")


class MountOptions(LiveTest):
    def test_mount_options(self) -> None:
        self.run_area(OPTIONS)
