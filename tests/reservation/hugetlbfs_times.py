"""When a file or a directory of huge pages was accessed, modified and changed: which operation leaves which mark."""

import errno
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.file_status import FileStatus, Moment
from hugepage_qa.cases.hugetlb_files import HugeFile, file_of_each_kind, open_directory, open_file
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.shown_mounts import mounted_options
from hugepage_qa.kernel.uapi import AT_FDCWD, AT_REMOVEDIR, FALLOC_FL_KEEP_SIZE, MS_BIND, MS_REMOUNT, O_NOATIME
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

TIMES = Area("reservation/hugetlbfs-times")
MARKS = "inode(7) Time fields"
#: long ago, and neither is the other
_ACCESSED, _MODIFIED = (1000, 1), (2000, 2)
_MODE = 0o600
#: the kernel's clock goes on with each tick, of which it has 100 a second at least
_TICKS_SECONDS = 0.05
# include/uapi/linux/stat.h
_UTIME_NOW, _UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2
# include/uapi/linux/mount.h
_MS_NOATIME, _MS_RELATIME, _MS_STRICTATIME = 1 << 10, 1 << 21, 1 << 24

KEPT, NOW = "kept", "the moment of the change"
#: what is written down nowhere
EITHER = "either"


@dataclass(frozen=True)
class Change:
    """What is done to a file, and what it does to st_atim, st_mtim and st_ctim."""

    what: str
    act: Callable[[], object]
    accessed: str
    modified: str
    changed: str
    #: where the kernel refuses it
    number: int = 0


def _of_a_file(live: Live, file: HugeFile) -> Iterator[Change]:
    """Yield what can be done to any file of huge pages of two pages."""
    call, fd = file.actor.call, file.descriptor
    _belong_to_root(file)
    for what, shared, prot in (
        ("a shared mapping", True, mmap.PROT_READ | mmap.PROT_WRITE),
        ("a private mapping", False, mmap.PROT_READ | mmap.PROT_WRITE),
        ("a mapping to read", True, mmap.PROT_READ),
    ):
        yield Change(what, partial(_map_and_unmap, file, shared, prot), NOW, KEPT, KEPT)
    # pages are read without a mark of the access
    yield Change("read(2)", partial(call, "pread64", fd, bytes(8), 8, 0), EITHER, KEPT, KEPT)
    for pages in (3, 2, 2, 0, 2):
        yield Change(f"ftruncate(2) to {pages} pages", partial(file.truncate, pages), KEPT, NOW, NOW)
    half = live.size // 2
    yield Change("ftruncate(2) to half a page", partial(call, "ftruncate", fd, half), KEPT, KEPT, KEPT, errno.EINVAL)
    # what has more pages, or fewer, holds what it held, or zeroes: whether that is a modification is not said
    yield Change("fallocate(2) of a page", partial(file.allocate, 1), KEPT, EITHER, NOW)
    yield Change("fallocate(2) of a page that is there", partial(file.allocate, 1), KEPT, EITHER, NOW)
    keep = partial(file.allocate, 1, 2, FALLOC_FL_KEEP_SIZE)
    yield Change("fallocate(2) behind the end", keep, KEPT, EITHER, NOW)
    yield Change("a hole", partial(file.punch, 1), KEPT, EITHER, EITHER)
    yield Change("write(2)", partial(call, "write", fd, b"hugepage", 8), KEPT, KEPT, KEPT, errno.EINVAL)
    yield Change("fsync(2)", partial(call, "fsync", fd), KEPT, KEPT, KEPT)
    yield Change("lseek(2)", partial(call, "lseek", fd, 0, os.SEEK_SET), KEPT, KEPT, KEPT)
    yield Change("fchmod(2)", partial(call, "fchmod", fd, _MODE), KEPT, KEPT, NOW)
    yield Change("fchown(2)", partial(call, "fchown", fd, 0, 0), KEPT, KEPT, NOW)
    given = {_UTIME_NOW: NOW, _UTIME_OMIT: KEPT}
    for accessed, modified in ((_UTIME_NOW, _UTIME_OMIT), (_UTIME_OMIT, _UTIME_NOW), (_UTIME_NOW, _UTIME_NOW)):
        act = partial(_set_times, file, (0, accessed), (0, modified))
        yield Change("utimensat(2) UTIME_NOW", act, given[accessed], given[modified], NOW)
    omit = partial(_set_times, file, (0, _UTIME_OMIT), (0, _UTIME_OMIT))
    yield Change("utimensat(2) UTIME_OMIT", omit, KEPT, KEPT, KEPT)
    yield Change("utimensat(2) without times", partial(call, "utimensat", fd, 0, 0, 0), NOW, NOW, NOW)


def _belong_to_root(file: HugeFile) -> None:
    """Give ``file`` the mode and the owner that it is given again later."""
    file.actor.call("fchmod", file.descriptor, _MODE)
    file.actor.call("fchown", file.descriptor, 0, 0)


def _map_and_unmap(file: HugeFile, shared: bool, prot: int = mmap.PROT_READ) -> None:
    file.map(1, shared=shared, prot=prot, noreserve=True).unmap()


def _set_times(file: HugeFile, accessed: Moment, modified: Moment) -> None:
    times = file.actor.uapi.pack("4q", *accessed, *modified)
    file.actor.call("utimensat", file.descriptor, 0, times, 0)


def _of_a_name(file: HugeFile, root: int, path: str) -> Iterator[Change]:
    """Yield what is done to a file by its name, or to its names."""
    actor, call = file.actor, file.actor.call
    _belong_to_root(file)
    yield Change("open(2)", partial(_open_and_close, actor, path, os.O_RDWR), KEPT, KEPT, KEPT)
    yield Change("O_TRUNC", partial(_open_and_close, actor, path, os.O_RDWR | os.O_TRUNC), KEPT, NOW, NOW)
    yield Change("chmod(2)", partial(call, "fchmodat", AT_FDCWD, path, _MODE), KEPT, KEPT, NOW)
    yield Change("chown(2)", partial(call, "fchownat", AT_FDCWD, path, 0, 0, 0), KEPT, KEPT, NOW)
    yield Change("link(2)", partial(call, "linkat", root, "file", root, "other", 0), KEPT, KEPT, NOW)
    yield Change("rename(2)", partial(call, "renameat2", root, "other", root, "third", 0), KEPT, KEPT, NOW)
    yield Change("unlink(2)", partial(call, "unlinkat", root, "third", 0), KEPT, KEPT, NOW)


def _open_and_close(actor: Actor, path: str, flags: int) -> None:
    actor.call("close", actor.call("openat", AT_FDCWD, path, flags, 0))


@TIMES.case(
    "a mapping is an access, another length a modification and a change, another mode, owner or name, pages that are"
    " allocated and times that are set a change; what is refused is nothing",
    f"{MARKS}; ftruncate(2); utimensat(2); fs/hugetlbfs/inode.c hugetlbfs_file_mmap(), hugetlbfs_fallocate(),"
    " hugetlbfs_setattr()",
    pages=2,
)
def times_of_a_file(live: Live) -> None:
    for file in file_of_each_kind(live):
        file.truncate(2)
        _expect_marks(live, file, _of_a_file(live, file))
        file.truncate(0)
    point, actor = live.mount(), live.actor()
    root = open_directory(live, actor, point)
    file = open_file(live, f"{point}/file", actor)
    _expect_marks(live, file, _of_a_name(file, root.descriptor, f"{point}/file"))
    live.expect_pool(nr=2, free=2)


@TIMES.case(
    "what is made longer, shorter or empty by its name is modified and changed, as it is by a descriptor",
    f"truncate(2); {MARKS}; fs/open.c vfs_truncate(); fs/hugetlbfs/inode.c hugetlbfs_setattr()",
)
def times_after_truncate_by_name(live: Live) -> None:
    point, actor = live.mount(), live.actor()
    file = open_file(live, f"{point}/file", actor)
    lengths = (2, 1, 0)
    found = []
    for pages in lengths:
        before = _mark(live, file, "truncate(2)")
        live.host.pause(_TICKS_SECONDS)
        actor.call("truncate", f"{point}/file", pages * live.size)
        after = file.status()
        live.expect("st_size", pages * live.size, after.size)
        found.append(_marks(before, after, _mark(live, file, "truncate(2)")))
    live.expect_pool(nr=0, free=0)
    unmarked = [(KEPT, KEPT, KEPT)] * len(lengths)
    live.expect(
        f"st_atim, st_mtim, st_ctim when made {lengths} pages long",
        [(KEPT, NOW, NOW)] * len(lengths),
        found,
        {Quirk.TRUNCATE_BY_NAME_UNMARKED: unmarked},
    )


@TIMES.case(
    "each directory that has a name more or one less is modified and changed, and no other; to list it is an access",
    f"{MARKS}; fs/hugetlbfs/inode.c hugetlbfs_mknod(); fs/libfs.c simple_link(), simple_unlink(), simple_rename()",
)
def times_of_directories(live: Live) -> None:
    point, actor = live.mount(), live.actor()
    call = actor.call
    call("mkdirat", AT_FDCWD, f"{point}/inside", 0o700)
    root, inside = (open_directory(live, actor, path) for path in (point, f"{point}/inside"))
    here, there = root.descriptor, inside.descriptor
    create = os.O_RDWR | os.O_CREAT
    for what, act, changed in (
        ("open(2) O_CREAT", partial(call, "openat", here, "file", create, 0o600), (root,)),
        ("open(2) of what is there", partial(call, "openat", here, "file", create, 0o600), ()),
        ("mkdir(2)", partial(call, "mkdirat", here, "directory", 0o700), (root,)),
        ("mknod(2)", partial(call, "mknodat", there, "fifo", 0o010600, 0), (inside,)),
        ("link(2)", partial(call, "linkat", here, "file", there, "other", 0), (inside,)),
        ("rename(2) within", partial(call, "renameat2", there, "other", there, "third", 0), (inside,)),
        ("rename(2) of a file", partial(call, "renameat2", there, "third", here, "third", 0), (root, inside)),
        ("rename(2) of a directory", partial(call, "renameat2", here, "directory", there, "moved", 0), (root, inside)),
        ("rename(2) over a name", partial(call, "renameat2", here, "third", there, "fifo", 0), (root, inside)),
        ("unlink(2)", partial(call, "unlinkat", there, "fifo", 0), (inside,)),
        ("rmdir(2)", partial(call, "unlinkat", there, "moved", AT_REMOVEDIR), (inside,)),
    ):
        before = [_mark(live, directory, what) for directory in (root, inside)]
        live.host.pause(_TICKS_SECONDS)
        act()
        after = [directory.status() for directory in (root, inside)]
        for directory, name, old, new in zip((root, inside), ("the root", "the one in it"), before, after, strict=True):
            marks = (KEPT, NOW, NOW) if directory in changed else (KEPT, KEPT, KEPT)
            end = _mark(live, directory, what)
            live.expect(f"marks of {name} after {what}", marks, _marks(old, new, end))
    _expect_marks(live, root, [Change("a look", partial(_list, actor, root), NOW, KEPT, KEPT)])


def _list(actor: Actor, directory: HugeFile) -> None:
    actor.call("lseek", directory.descriptor, 0, os.SEEK_SET)
    actor.call("getdents64", directory.descriptor, bytes(1024), 1024)


def _expect_marks(live: Live, file: HugeFile, changes: Iterable[Change]) -> None:
    """Expect each of ``changes`` to mark ``file`` as it says, and nothing else of its mode and owner to be another."""
    for change in changes:
        before = _mark(live, file, change.what)
        live.host.pause(_TICKS_SECONDS)
        with live.about(change.what):
            if change.number:
                live.expect_errno(change.number, change.act)
            else:
                live.expect_success(change.act)
            after = file.status()
            wanted = change.accessed, change.modified, change.changed
            found = _marks(before, after, _mark(live, file, change.what))
            told = tuple(EITHER if each is EITHER else mark for each, mark in zip(wanted, found, strict=True))
            live.expect("st_atim, st_mtim, st_ctim", wanted, told)
            live.expect("mode, owner and block size", _rest(before), _rest(after))


def _mark(live: Live, file: HugeFile, what: str) -> FileStatus:
    """Set the times of ``file`` to what they were never, and return what stat(2) tells then: st_ctim is now."""
    _set_times(file, _ACCESSED, _MODIFIED)
    status = file.status()
    with live.about(f"before and after {what}"):
        live.expect("times that were set", (_ACCESSED, _MODIFIED), (status.accessed_at, status.modified_at))
    return status


def _marks(before: FileStatus, after: FileStatus, end: FileStatus) -> tuple[str, ...]:
    """Tell what became of the three times between ``before`` and ``end``, whose st_ctim are when they were told."""
    pairs = (
        (before.accessed_at, after.accessed_at),
        (before.modified_at, after.modified_at),
        (before.changed_at, after.changed_at),
    )
    return tuple(_became(old, new, before.changed_at, end.changed_at) for old, new in pairs)


def _became(old: Moment, new: Moment, begin: Moment, end: Moment) -> str:
    if new == old:
        return KEPT
    return NOW if begin < new <= end else f"{new[0]}.{new[1]:09}"


def _rest(status: FileStatus) -> FileStatus:
    """Return what no change here is about."""
    never = (0, 0)
    return replace(status, accessed_at=never, modified_at=never, changed_at=never, size=0, links=0, occupied=0)


@TIMES.case(
    "with noatime, or O_NOATIME, a mapping is no access; with relatime it is one where the last is older than the last"
    " change, and with strictatime each is one",
    "mount(2) MS_NOATIME, MS_RELATIME, MS_STRICTATIME; open(2) O_NOATIME; fs/inode.c atime_needs_update()",
)
def access_that_leaves_no_mark(live: Live) -> None:
    point, actor = live.mount(), live.actor()
    file = open_file(live, f"{point}/file", actor)
    file.truncate(1)
    unmarked = open_file(live, f"{point}/file", actor, os.O_RDWR | O_NOATIME)
    for flags, option, marks in (
        (_MS_NOATIME, "noatime", (KEPT, KEPT)),
        (_MS_RELATIME, "relatime", (NOW, KEPT)),
        (_MS_STRICTATIME, None, (NOW, NOW)),
    ):
        actor.call("mount", "none", point, 0, MS_REMOUNT | MS_BIND | flags, 0)
        options = mounted_options(live, point)
        shown = [name for name in ("noatime", "relatime") if name in options]
        live.expect("what /proc/mounts shows of access times", [option] if option else [], shown)
        with live.about(option or "strictatime"):
            _expect_marks(
                live, unmarked, [Change("O_NOATIME", partial(_map_and_unmap, unmarked, True), KEPT, KEPT, KEPT)]
            )
            begin = _mark(live, file, "mappings")
            statuses = [begin]
            for _time in range(2):
                live.host.pause(_TICKS_SECONDS)
                _map_and_unmap(file, True)
                statuses.append(file.status())
            end = _mark(live, file, "mappings")
            found = tuple(_marks(begin, new, end)[0] for new in statuses[1:])
            # the second is looked at against the first
            again = KEPT if statuses[2].accessed_at == statuses[1].accessed_at else found[1]
            live.expect("st_atim after a mapping, after another one", marks, (found[0], again))
            others = [(status.modified_at, status.changed_at) for status in statuses]
            live.expect("st_mtim and st_ctim", [others[0]] * 3, others)
    live.expect_pool(nr=0, free=0)


class HugetlbfsTimes(LiveTest):
    def test_times(self) -> None:
        self.run_area(TIMES)
