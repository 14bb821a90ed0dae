"""Huge pages of which a part breaks while somebody holds them, so that they are not split: they stay as they are."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hugepage_qa.cases.broken_memory import EHWPOISON, break_page, mended_at_the_end, need_memory_failure, need_mending
from hugepage_qa.cases.checked_pages import checks_pages
from hugepage_qa.cases.hugetlb_files import HugeFile
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.pinned_pages import pipe_with, word_from
from hugepage_qa.cases.thp_shared_memory import (
    let_only_pmd_inherit,
    map_filled_file,
    mount_tmpfs,
)
from hugepage_qa.kernel.uapi import MADV_HWPOISON
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.version import KernelVersion

#: memory_failure() returns EHWPOISON where a huge page cannot be split
_TELLS_ALL = KernelVersion(6, 11)


def need_to_get_it_back(live: Live) -> None:
    """Raise CannotRun where a huge page of which a part broke is out of memory until the machine is rebooted, whole."""
    need_memory_failure(live)
    need_mending(live)
    if checks_pages(live):
        raise CannotRun("all of a huge page of which a part broke is lost where pages are checked: see init_on_alloc=0")


def answer_of_unsplit(live: Live) -> int:
    """Return what madvise(2) says of a broken base page whose huge page is not split."""
    return EHWPOISON if live.kernel_version >= _TELLS_ALL else errno.EBUSY


def break_while_held(live: Live, memory: Memory) -> tuple[int, int, int]:
    """Have a base page amid a huge page break while a pipe holds that, so that it is not split.

    Returned are where that base page is in ``memory``, its frame, and the end of the pipe that is read.
    """
    broken = memory.size // 2
    frame = memory.frame(broken)
    reader = pipe_with(live, memory)
    live.expect_errno(answer_of_unsplit(live), break_page, live, memory, broken, MADV_HWPOISON)
    return broken, frame, reader


@dataclass(frozen=True)
class BrokenPart:
    """A file that is a filled huge page of the tmpfs at ``point``, and mapped; a base page broke at byte ``place``."""

    point: str
    file: HugeFile
    memory: Memory
    place: int


@contextmanager
def tmpfs_page_broken_while_held(live: Live) -> Iterator[BrokenPart]:
    """Give a huge page of a tmpfs that a pipe holds, as it did when a base page amid it broke.

    Raises CannotRun as ``need_to_get_it_back`` does.
    """
    need_to_get_it_back(live)
    let_only_pmd_inherit(live)
    point = mount_tmpfs(live, "always")
    file, memory = map_filled_file(live, point, "always", 1)
    broken, frame, reader = break_while_held(live, memory)

    def give_back() -> None:
        file.actor.end()
        # with all of its files, of which an actor that is gone empties none
        live.unmount(point)

    # a kernel that keeps it apart may refuse
    with mended_at_the_end(live, frame, give_back, may_be_refused=True):
        yield BrokenPart(point, file, memory, broken)
        memory.unmap()
        file.truncate(0)
        live.expect("the word that is in the pipe", 1, word_from(live, file.actor, reader))
