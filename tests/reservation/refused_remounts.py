"""Remounts of a tmpfs with huge pages, and of a hugetlbfs, that are refused: nothing is done of what they name."""

import errno
import mmap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.file_status import FileStatus, FileSystemStatus
from hugepage_qa.cases.hugetlb_files import HugeFile, open_directory, open_file
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.shown_mounts import mounted_options
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_shared_memory import expect_mapped_whole, let_only_pmd_inherit, map_filled_file
from hugepage_qa.kernel.uapi import MS_RDONLY, MS_REMOUNT
from hugepage_qa.oracle.rules import HUGETLB_DOC, THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

REFUSED_REMOUNTS = Area("reservation/refused-remounts")

_REFUSED = "mount(2) MS_REMOUNT, EINVAL, EBUSY; fs/super.c reconfigure_super()"
#: what names the same as another option
_OTHER_NAMES = {"nr_blocks": "size"}


@dataclass(frozen=True)
class _Mount:
    """A mount at ``point``, whose ``root`` is open."""

    live: Live
    point: str
    root: HugeFile

    def remount(self, options: str, flags: int = 0) -> None:
        self.root.actor.call("mount", "none", self.point, 0, MS_REMOUNT | flags, options)

    def told(self) -> tuple[Mapping[str, str], FileSystemStatus, FileStatus]:
        """Return what /proc/mounts, statfs(2) and stat(2) of the root tell of it."""
        return mounted_options(self.live, self.point), self.root.file_system(), self.root.status()

    def expect_refused(self, refused: Iterable[str], others: Iterable[str], flags: int = 0) -> None:
        """Expect EINVAL for each word of ``refused`` beside each other option, and nothing to change."""
        for word, other in product(refused, others):
            if _name(word) != _name(other):
                for options in (f"{word},{other}", f"{other},{word}"):
                    self.expect_error(errno.EINVAL, options, flags)

    def expect_error(self, error: int, options: str, flags: int = 0) -> None:
        """Expect a remount to be refused with ``error``, and nothing to change."""
        before = self.told()
        with self.live.about(f"{options}, flags {flags}"):
            self.live.expect_errno(error, self.remount, options, flags)
            for what, was, found in zip(("/proc/mounts", "statfs(2)", "the root"), before, self.told(), strict=True):
                self.live.expect(f"what is told by {what}", was, found)


def _mount(live: Live, kind: str, given: Mapping[str, str | int]) -> _Mount:
    """Mount a file system of a ``kind`` with options as ``given``."""
    words = ",".join(f"{name}={value}" for name, value in given.items())
    point = live.mount(**given) if kind == "hugetlbfs" else live.mount_other(words, kind)
    return _Mount(live, point, open_directory(live, live.actor(), point))


def _name(option: str) -> str:
    name = option.partition("=")[0]
    return _OTHER_NAMES.get(name, name)


@REFUSED_REMOUNTS.case(
    "a remount of a tmpfs that is refused, for what is in use, for a limit that the mount lacks, for a file that is"
    " written, or for a word that is wrong, does nothing of what it names beside: the options that are shown, the room,"
    " the root, and whether files can be written and get huge pages are as before",
    f"{_REFUSED}; Documentation/filesystems/tmpfs.rst remount; {THP_DOC} huge=; mm/shmem.c shmem_reconfigure()",
    sizes=Sizes.ONCE,
    since="5.9",  # inode32
)
def refused_of_a_tmpfs(live: Live) -> None:
    let_only_pmd_inherit(live)
    size = pmd_size(live)
    others = [f"size={16 * size}", "nr_inodes=2000", "mode=755", "uid=3", "gid=4", "inode32"]
    # unknown without CONFIG_NUMA
    others += ["mpol=local"] if live.nodes else []
    others += [f"huge={policy}" for policy in ("never", "within_size", "advise")]
    limits = {"size": 8 * size, "nr_inodes": 1000}
    mount = _mount(live, "tmpfs", {"huge": "always", **limits, "mode": "700", "uid": 1, "gid": 2})
    file, memory = map_filled_file(live, mount.point, "always", 2)
    too_small = f"size={size}", f"nr_blocks={size // live.base_page}", "nr_inodes=1"
    for word in (*too_small, "size=1x", "huge=sometimes", "unknown=1", "noswap"):
        mount.expect_refused([word], others)
        memory.advise(mmap.MADV_REMOVE, 1, 1)
        memory.fill()
        expect_mapped_whole(live, memory, 2, f"huge=always, remounts with {word} refused")
    for other in others:
        mount.expect_error(errno.EBUSY, other, MS_RDONLY)
    file.actor.end()
    mount.expect_refused(too_small, others, MS_RDONLY)
    open_file(live, f"{mount.point}/another").actor.end()
    boundless = _mount(live, "tmpfs", {"huge": "always", "size": 0, "nr_inodes": 0, "mode": "700"})
    retroactive = [f"{name}={value}" for name, value in limits.items()]
    for flags in (0, MS_RDONLY):
        boundless.expect_refused(retroactive, others, flags)
    open_file(live, f"{boundless.point}/file").actor.end()
    boundless.remount("", MS_RDONLY)
    boundless.expect_refused(retroactive, others)
    live.expect_errno(errno.EROFS, open_file, live, f"{boundless.point}/another")


@REFUSED_REMOUNTS.case(
    "a remount of a hugetlbfs that is refused, for a file that is written or for a word that is wrong, does nothing of"
    " what it names beside: the options that are shown, the room, the root and the pages are as before",
    f"{_REFUSED}; {HUGETLB_DOC} Using Huge Pages; fs/hugetlbfs/inode.c hugetlbfs_parse_param()",
    since="5.1",  # before, the options of a remount were not looked at
    pages=3,
)
def refused_of_a_hugetlbfs(live: Live) -> None:
    others = [f"size={live.size}", "nr_inodes=2K", "mode=777", "uid=3", "gid=4", f"min_size={2 * live.size}"]
    mount = _mount(live, "hugetlbfs", {"size": 2 * live.size, "nr_inodes": 3, "mode": "700", "uid": 1, "gid": 2})
    file = open_file(live, f"{mount.point}/file")
    memory = file.map(1)
    memory.fill()
    for flags in (0, MS_RDONLY):
        mount.expect_refused(("unknown=1", "size=x", "nr_inodes=x", "mode=8"), others, flags)
        live.expect_pool(nr=3, free=2)
    for other in others:
        mount.expect_error(errno.EBUSY, other, MS_RDONLY)
    memory.expect_filled()
    memory.unmap()
    file.map(2).touch(1)
    live.expect_pool(nr=3, free=1)
    # the pool has a page for it, and the mount may not have it
    live.expect_errno(errno.ENOMEM, file.map, 3)


class RefusedRemounts(LiveTest):
    def test_refused_remounts(self) -> None:
        self.run_area(REFUSED_REMOUNTS)
