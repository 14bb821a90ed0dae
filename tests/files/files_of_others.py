"""Files that somebody may read alone: what of them he pushes out of memory, and what he is told to be there."""

import errno
import mmap
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product

from hugepage_qa.cases.cache_counts import cached_pages
from hugepage_qa.cases.capabilities import become_nobody
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.group_memory import file_on_a_disk
from hugepage_qa.cases.hugetlb_files import HugeFile, new_memfd, open_again, open_file
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.lru_batches import drain_lru_batches
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.pages_in_memory import base_pages_in_memory
from hugepage_qa.cases.swapped import need_swap, parts_out
from hugepage_qa.cases.thp_memory import pmd_size, room_for
from hugepage_qa.cases.thp_shared_memory import expect_shared, let_only_pmd_inherit, map_start, mount_tmpfs
from hugepage_qa.kernel.uapi import MADV_PAGEOUT, MAP_FIXED, NOBODY
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.version import KernelVersion

OTHERS = Area("files/files-of-others")
PAGEOUT = "madvise(2) MADV_PAGEOUT; mm/madvise.c madvise_pageout(), madvise_cold_or_pageout_pte_range()"
TOLD = "mincore(2); mm/mincore.c can_do_mincore()"
#: before, cachestat(2) told whoever could open a file
_COUNTED_FOR_WRITERS = KernelVersion(6, 14)
#: a group that nobody is in otherwise
_GROUP = 4711


@dataclass(frozen=True)
class _Reader:
    """Who has a file mapped that has this mode, owner and group, and whether he might write to it if he opened it so.

    It may be somebody else, the user root, who gives advice about it.
    """

    name: str
    mode: int
    may: bool
    owner: int = 0
    group: int = 0
    is_root: bool = False
    asks_root: bool = False


_READERS = (
    _Reader("who may read alone", 0o644, False),
    _Reader("who may not even read any more", 0o600, False),
    _Reader("who is in the group that may read alone", 0o646, False, group=_GROUP),
    _Reader("who may write", 0o606, True),
    _Reader("who is in the group that may write", 0o660, True, group=_GROUP),
    _Reader("the owner, who may read alone", 0o400, True, owner=NOBODY),
    _Reader("root, of a file of another user", 0o600, True, owner=NOBODY, is_root=True),
)
#: root advises on memory of another process: who asks counts, not whose memory it is
_READERS_OR_ROOT = (*_READERS, _Reader("root, about memory of who may read alone", 0o644, True, asks_root=True))
#: returns a file of one huge page, filled as memory is, that nobody has mapped
Make = Callable[[Live], HugeFile]


@OTHERS.case(
    "MADV_PAGEOUT takes pages of a file on a disk out of memory where he who asks owns the file or might write to it,"
    " and none where he may read it alone, mapped shared or private",
    PAGEOUT,
    sizes=Sizes.ONCE,
    since="5.10",
)
def of_a_disk(live: Live) -> None:
    _expect_pushed_out(live, lambda live: file_on_a_disk(live, pmd_size(live)), "a file on a disk")


@OTHERS.case(
    "MADV_PAGEOUT swaps pages of a file of a tmpfs out, huge or not, where he who asks owns the file or might write to"
    " it, and none where he may read it alone, mapped shared or private",
    PAGEOUT,
    sizes=Sizes.ONCE,
    since="5.10",
)
def of_a_tmpfs(live: Live) -> None:
    for huge, point in _mounts(live).items():
        _expect_pushed_out(live, partial(_of_a_tmpfs, point=point, huge=huge), f"huge={huge}")


@OTHERS.case(
    "MADV_PAGEOUT of a private mapping of a file that he who asks may read alone swaps the copies out that are his own,"
    " and leaves what is of the file",
    PAGEOUT,
    sizes=Sizes.ONCE,
    since="6.3",  # before, it left the copies, too
)
def copies_of_ones_own(live: Live) -> None:
    size, base = pmd_size(live), live.base_page
    parts = (0, base), (size // 2, 9 * base), (base, size - base)
    for (huge, point), (start, length) in product(_mounts(live).items(), parts):
        file = _of_a_tmpfs(live, point, huge)
        again, memory = _map_as(live, file, _READERS[0], size, shared=False)
        with live.about(f"huge={huge}, {length} bytes at {start} are copies"):
            memory.fill_part(start, length)
            memory.expect_filled()

            def gone(memory: Memory = memory, length: int = length) -> bool:
                return memory.smaps().fields["Swap"] >= length

            live.host.wait_until(partial(parts_out, live, memory, [(0, memory.length)], gone))
            found = memory.smaps()
            _expect_left(live, "Swap, Rss", (length, size - length), (found.fields["Swap"], found.rss))
            memory.expect_filled()
        _end(file, again)


@OTHERS.case(
    "mincore(2) tells who owns a file of a tmpfs or might write to it which pages are in memory, and whoever else that"
    " all are; cachestat(2) tells the first alone, and who opened it to write",
    f"{TOLD}; mm/filemap.c can_do_cachestat()",
    sizes=Sizes.ONCE,
    since="5.10",
)
def told_of_a_tmpfs(live: Live) -> None:
    size = pmd_size(live)
    for (huge, point), reader, shared in product(_mounts(live).items(), _READERS, (True, False)):
        file = _of_a_tmpfs(live, point, huge)
        # the half behind it is a hole
        file.actor.call("ftruncate", file.descriptor, 2 * size)
        with live.about(f"huge={huge}, {reader.name}, shared {shared}"):
            again, memory = _map_as(live, file, reader, size, 2, shared=shared)
            _expect_told(live, memory, reader, 1)
            if live.kernel_version >= _COUNTED_FOR_WRITERS:
                _expect_counted(live, file, again, reader)
        _end(file, again)


@OTHERS.case(
    "mincore(2) tells who owns a file of hugetlb pages or might write to it which are in memory, and whoever else that"
    " all are",
    TOLD,
    pages=1,
    since="5.10",
)
def told_of_hugetlb_pages(live: Live) -> None:
    for reader, shared in product(_READERS, (True, False)):
        file = new_memfd(live, pages=2)
        file.allocate(1)
        with live.about(f"{reader.name}, shared {shared}"):
            again, memory = _map_as(live, file, reader, live.size, 2, shared=shared)
            _expect_told(live, memory, reader, 0)
        _end(file, again)
        live.expect_pool(nr=1, free=1)


def _mounts(live: Live) -> Mapping[str, str]:
    """Return where tmpfs are mounted that decide by themselves whether files get huge pages, by their huge=."""
    let_nobody_else_act(live)
    let_only_pmd_inherit(live)
    need_swap(live, 2 * pmd_size(live))
    return {huge: mount_tmpfs(live, huge) for huge in ("always", "never")}


def _of_a_tmpfs(live: Live, point: str, huge: str) -> HugeFile:
    """Return a file of the tmpfs at ``point``, which has ``huge``: it has no name, and is gone with its actor."""
    file = open_file(live, point, flags=os.O_RDWR | live.host.uapi.o_tmpfile)
    memory = map_start(live, file.actor, file.descriptor)
    expect_shared(live, memory, huge == "always", f"huge={huge}")
    # what several have mapped is passed over
    memory.unmap()
    return file


def _map_as(
    live: Live, file: HugeFile, reader: _Reader, size: int, pages: int = 1, *, shared: bool
) -> tuple[HugeFile, Memory]:
    """Have a new process open a file to read alone, become ``reader``, and map it; return both.

    Private memory may be written.
    """
    file.actor.call("fchown", file.descriptor, reader.owner, reader.group)
    file.actor.call("fchmod", file.descriptor, reader.mode)
    again = open_again(live, file, flags=os.O_RDONLY)
    actor, descriptor = again.actor, again.descriptor
    if not reader.is_root:
        # group 0 is the one of root, which has no part in the others' rights
        become_nobody(actor, *[reader.group] * (reader.group != 0))
    address = room_for(actor, pages, size)
    kind, prot = (mmap.MAP_SHARED, mmap.PROT_READ) if shared else (mmap.MAP_PRIVATE, READ_WRITE)
    actor.mmap(pages * size, prot, kind | MAP_FIXED | live.host.uapi.map_noreserve, descriptor, address=address)
    return again, Memory(live, actor, address, pages, size)


def _expect_pushed_out(live: Live, make: Make, kind: str) -> None:
    """Expect MADV_PAGEOUT to take files that are made out of memory where who asks for it might write to them."""
    for reader, shared in product(_READERS_OR_ROOT, (True, False)):
        file = make(live)
        again, memory = _map_as(live, file, reader, pmd_size(live), shared=shared)
        with live.about(f"{kind}, {reader.name}, shared {shared}"):
            memory.expect_filled()
            if reader.may:
                # what somebody has a hold of stays
                left = live.host.last_look(partial(_left, live, memory, reader), (0).__eq__)
            else:
                # others may push pages out meanwhile
                look = partial(_left_of_what_is_read, live, memory, reader)
                left = live.host.last_attempt(look, memory.length.__eq__)
            _expect_left(live, "Rss", 0 if reader.may else memory.length, left)
            memory.expect_filled()
        _end(file, again)


def _expect_left(live: Live, subject: str, expected: object, found: object) -> None:
    """Expect this of what was pushed out. Raises Failed: each of the others would be waited for as long."""
    if found != expected:
        live.fail(subject, expected, found)


def _left(live: Live, memory: Memory, reader: _Reader) -> int:
    """Have ``memory`` pushed out, and return what of it is mapped then."""
    if reader.asks_root:
        root = live.actor()
        live.expect("bytes that root advises on", memory.length, memory.advised_by(root, MADV_PAGEOUT))
        root.end()
    else:
        memory.advise(MADV_PAGEOUT)
    left = memory.smaps().rss
    if left and reader.may:
        # another CPU may have pages in a batch
        drain_lru_batches(live, memory.actor)
    return left


def _left_of_what_is_read(live: Live, memory: Memory, reader: _Reader) -> int:
    memory.expect_filled()
    return _left(live, memory, reader)


def _expect_told(live: Live, memory: Memory, reader: _Reader, word: int) -> None:
    """Expect mincore(2) to tell of the first of two pages, and of both where ``reader`` might not write to the file.

    The first one begins with ``word``.
    """
    live.expect("the first word", word, memory.read())
    count = memory.size // live.base_page
    for pages in (range(2), range(count - 1, count + 1), range(2 * count - 2, 2 * count)):
        wanted = {page for page in pages if page < count or not reader.may}
        told = base_pages_in_memory(live, memory.actor, memory.at(0), pages)
        live.expect(f"base pages among {pages} that are in memory", wanted, told)


def _expect_counted(live: Live, file: HugeFile, again: HugeFile, reader: _Reader) -> None:
    """Expect cachestat(2) to count pages of ``file`` for who has opened it to write, and a ``reader`` who might."""
    writer = open_again(live, file)
    become_nobody(writer.actor)
    for each, may in ((again, reader.may), (writer, True)):
        words = live, each.actor, each.descriptor
        if may:
            pages = pmd_size(live) // live.base_page
            live.expect("pages that cachestat(2) counts", pages, cached_pages(*words).cached)
        else:
            live.expect_errno(errno.EPERM, cached_pages, *words)
    writer.actor.end()


def _end(*files: HugeFile) -> None:
    for file in files:
        file.actor.end()


class FilesOfOthers(LiveTest):
    def test_files_of_others(self) -> None:
        self.run_area(OTHERS)
