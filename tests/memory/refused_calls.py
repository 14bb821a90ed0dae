"""Calls that are refused for want of huge pages, again and again: nothing is left of them in the kernel."""

import errno
import mmap
import os
import stat
from collections.abc import Callable
from functools import partial

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.hugetlb_files import new_memfd, open_file
from hugepage_qa.cases.hugetlb_segments import IPC_CREAT, SHM_HUGETLB, get_segment
from hugepage_qa.cases.kept_memory import expect_nothing_kept
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.race import at_once
from hugepage_qa.kernel.uapi import AT_FDCWD, CLONE_NEWIPC, CLONE_NEWNS, MAP_HUGETLB, MS_PRIVATE, MS_REC
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor
from hugepage_qa.process.actor_link import Argument
from hugepage_qa.process.marks import KEY_PREFIX

REFUSED = Area("memory/refused-calls")
NO_PAGES = f"{HUGETLB_DOC} SHM_HUGETLB; shmget(2), mmap(2) ENOMEM; fs/hugetlbfs/inode.c hugetlb_file_setup()"
NO_FILES = f"{HUGETLB_DOC} nr_inodes, min_size; fs/hugetlbfs/inode.c hugetlbfs_get_inode(), hugetlbfs_fill_super()"

#: the error, the name of a system call, and its arguments
Call = tuple[int, str, *tuple[Argument, ...]]


@REFUSED.case(
    "a segment, a mapping and an allocation of more pages than there are is refused, ENOMEM, ENOSPC of a file, each"
    " time, and so is a segment between two pages, EINVAL: nothing is left of them in the memory of the kernel, no"
    " inode and no open file, and what there are pages for can be had afterwards",
    NO_PAGES,
    pages=2,
)
def for_want_of_pages(live: Live) -> None:
    for refused in (_segment, _segment_between_pages, _private_mapping, _shared_mapping, _mapped_file, _allocation):
        _expect_nothing_left(live, refused)
        live.expect_pool(nr=2, free=2)
    memory = get_segment(live, 2 * live.size).attach_for_good()
    memory.fill()
    memory.expect_filled()
    live.expect_pool(nr=2, free=0)


@REFUSED.case(
    "a file, a directory, a special file, a link and a file without a name in a hugetlbfs that has no inode left for"
    " them are refused, ENOSPC, each time, and so is a mount for which no pages can be reserved, ENOMEM: nothing is"
    " left of them in the memory of the kernel, no inode and no open file",
    NO_FILES,
)
def for_want_of_inodes(live: Live) -> None:
    for refused in (_file, _directory, _special_file, _symbolic_link, _file_without_a_name, _mount):
        _expect_nothing_left(live, refused)
        live.expect_pool(nr=0, free=0)


def _segment(live: Live, actor: Actor) -> Call:
    # one that is not refused goes with the actor where the kernel has namespaces of them; else it is known by its key
    actor.result("unshare", CLONE_NEWIPC)
    return errno.ENOMEM, "shmget", KEY_PREFIX << 16 | 3, 3 * live.size, SHM_HUGETLB | live.size_flag | IPC_CREAT | 0o600


def _segment_between_pages(live: Live, actor: Actor) -> Call:
    segment = get_segment(live, live.size, actor)
    memory = segment.attach_for_good()
    return errno.EINVAL, "shmat", segment.identifier, memory.at(1) + live.base_page, 0


def _private_mapping(live: Live, _actor: Actor) -> Call:
    return _mapping(live, mmap.MAP_PRIVATE)


def _shared_mapping(live: Live, _actor: Actor) -> Call:
    return _mapping(live, mmap.MAP_SHARED)


def _mapping(live: Live, flags: int) -> Call:
    flags |= mmap.MAP_ANONYMOUS | MAP_HUGETLB | live.size_flag
    return errno.ENOMEM, "mmap", 0, 3 * live.size, READ_WRITE, flags, -1, 0


def _mapped_file(live: Live, actor: Actor) -> Call:
    file = new_memfd(live, actor, pages=3)
    return errno.ENOMEM, "mmap", 0, 3 * live.size, READ_WRITE, mmap.MAP_SHARED, file.descriptor, 0


def _allocation(live: Live, actor: Actor) -> Call:
    # the first two of them are allocated
    return errno.ENOSPC, "fallocate", new_memfd(live, actor).descriptor, 0, 0, 3 * live.size


def _file(live: Live, _actor: Actor) -> Call:
    return errno.ENOSPC, "openat", AT_FDCWD, f"{_full_mount(live)}/other", os.O_RDWR | os.O_CREAT, 0o600


def _directory(live: Live, _actor: Actor) -> Call:
    return errno.ENOSPC, "mkdirat", AT_FDCWD, f"{_full_mount(live)}/other", 0o700


def _special_file(live: Live, _actor: Actor) -> Call:
    return errno.ENOSPC, "mknodat", AT_FDCWD, f"{_full_mount(live)}/other", stat.S_IFIFO | 0o600, 0


def _symbolic_link(live: Live, _actor: Actor) -> Call:
    return errno.ENOSPC, "symlinkat", "file", AT_FDCWD, f"{_full_mount(live)}/other"


def _file_without_a_name(live: Live, _actor: Actor) -> Call:
    return errno.ENOSPC, "openat", AT_FDCWD, _full_mount(live), os.O_RDWR | live.host.uapi.o_tmpfile, 0o600


def _mount(live: Live, actor: Actor) -> Call:
    point, options = live.mount(), f"pagesize={live.size},min_size={live.size}"
    # a mount that is not refused goes with the actor
    actor.call("unshare", CLONE_NEWNS)
    actor.call("mount", "none", "/", "", MS_REC | MS_PRIVATE, 0)
    return errno.ENOMEM, "mount", "none", point, "hugetlbfs", 0, options


def _full_mount(live: Live) -> str:
    """Return where a hugetlbfs is mounted that has inodes for its root and for a file, which is there."""
    point = live.mount(nr_inodes=2)
    open_file(live, f"{point}/file").actor.end()
    return point


def _expect_nothing_left(live: Live, refused: Callable[[Live, Actor], Call]) -> None:
    actor = live.actor()
    with live.about(refused.__name__.strip("_").replace("_", " ")):
        error, name, *words = refused(live, actor)
        if (found := actor.result(name, *words)) != -error:
            # what is not refused is not to be done thousands of times
            live.fail(f"{name}, or its error below 0", -error, found)
        expect_nothing_kept(live, partial(_refuse_often, live, actor, error, name, *words))
        actor.end()


def _refuse_often(live: Live, actor: Actor, error: int, name: str, *words: Argument) -> None:
    with at_once(live, actor) as threads:
        threads.be_refused(error, name, *words)


class RefusedCalls(LiveTest):
    def test_refused_calls(self) -> None:
        self.run_area(REFUSED)
