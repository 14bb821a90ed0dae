"""Ranges of files in large folios that msync(2) and sync_file_range(2) have written back, and those they refuse."""

import errno
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.file_contents import KnownFile
from hugepage_qa.cases.fragmentation import with_blocks
from hugepage_qa.cases.frames import unwritten_places
from hugepage_qa.cases.large_folios import DISKS, block_size, file_case
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit, map_start, mount_tmpfs
from hugepage_qa.kernel.uapi import MS_ASYNC, MS_INVALIDATE, MS_SYNC
from hugepage_qa.plugins.avocado_test import LiveTest

SYNCED = Area("files/synced-ranges", sizes=Sizes.ONCE, uncleared=True)

case = partial(file_case, SYNCED, on=DISKS)
#: of sync_file_range(2): wait for what is being written, write, and wait for that
_WAIT_WRITE_WAIT = 7


@case(
    "msync(2) MS_SYNC and sync_file_range(2) have each page of their range written back, from wherever in a file a"
    " mapping begins, and with what is not mapped between them those of all mappings, though that is ENOMEM",
    "msync(2); sync_file_range(2); mm/msync.c; fs/sync.c sync_file_range()",
)
def written_back(live: Live, file: KnownFile) -> None:
    base, block, whole = live.base_page, block_size(live), file.contents.length
    actor, first = file.actor, 3 * base
    # what is mapped from the middle of the file on, a hole of two pages, and what is mapped behind that
    gap = whole // 2 // base * base
    memory = file.map()
    actor.call("munmap", memory.address, first)
    actor.call("munmap", memory.address + gap, 2 * base)

    def by_msync(start: int, length: int) -> int:
        return actor.result("msync", memory.address + start, length, MS_SYNC)

    def by_range(start: int, length: int) -> int:
        return actor.result("sync_file_range", file.descriptor, start, length, _WAIT_WRITE_WAIT)

    for start, length in (
        (first, base),
        (first, 5 * base),
        (gap - base, base),
        (gap - 2 * base, 6 * base),
        (block - base, 2 * base),
        (whole - base, base),
        (first, whole - first),
    ):
        over_the_gap = start < gap < start + length
        for sync, expected in ((by_msync, -errno.ENOMEM if over_the_gap else 0), (by_range, 0)):
            parts = [(start, gap - start), (gap + 2 * base, start + length - gap - 2 * base)]
            parts = parts if over_the_gap else [(start, length)]
            for at, size in parts:
                file.store(memory, at, size)
            found = sync(start, length)
            if sync is by_range and found == -errno.ENOSYS:
                continue  # powerpc has sync_file_range2() instead
            with live.about(f"{sync.__name__[3:]}, {length} bytes at {start}"):
                live.expect("what it returns", expected, found)
                pages = sorted(
                    {page for at, size in parts for page in (at, at + size // 2 // base * base, at + size - base)}
                )
                # a page that moves meanwhile leaves its frame to another one
                dirty = live.host.last_look(
                    partial(unwritten_places, live, memory, pages), lambda found: not found, 1.0
                )
                live.expect("pages that are still dirty", [], dirty)
    actor.call("munmap", memory.address, memory.length)
    file.expect("written back")


@SYNCED.case(
    "msync(2) tells what is wrong: a start within a page, two ways at once or unknown ones, a range that goes round the"
    " end of all addresses, what is not mapped, and locked memory that is to be invalidated; nothing is no error",
    "msync(2) EBUSY, EINVAL, ENOMEM; mm/msync.c",
)
def wrong_ranges(live: Live) -> None:
    let_only_pmd_inherit(live)
    actor, base, size = live.actor(), live.base_page, pmd_size(live)
    file = live.open(actor, f"{mount_tmpfs(live, 'always')}/file")
    memory = map_start(live, actor, file, 3)
    with_blocks(live, size, 3)
    memory.fill()
    start = memory.address
    actor.call("munmap", start + size, base)
    actor.call("mlock", start + 2 * size + base, base)
    locked = start + 2 * size + base
    for address, length, flags, expected in (
        (start, size, MS_SYNC, 0),
        (start, size - 1, MS_ASYNC, 0),
        (start, size, 0, 0),
        (start, 0, MS_SYNC, 0),
        (start + size, 0, MS_SYNC, 0),
        (start + 8, 0, MS_SYNC, errno.EINVAL),
        (start + base // 2, base, MS_SYNC, errno.EINVAL),
        (start, base, MS_SYNC | MS_ASYNC, errno.EINVAL),
        (start, base, 8, errno.EINVAL),
        (start, -base, MS_SYNC, errno.ENOMEM),
        (start + size, base, MS_SYNC, errno.ENOMEM),
        (start + size, base, MS_ASYNC, errno.ENOMEM),
        (start + size - base, base + 1, MS_SYNC, errno.ENOMEM),
        (start + size - base, 3 * base, MS_ASYNC, errno.ENOMEM),
        (start + size + base, size, MS_SYNC | MS_INVALIDATE, 0),
        (locked, base, MS_SYNC | MS_INVALIDATE, errno.EBUSY),
        (locked - base, 2 * base, MS_INVALIDATE, errno.EBUSY),
        (locked, base, MS_SYNC, 0),
        (locked - base, base, MS_INVALIDATE, 0),
        (locked + base, base, MS_INVALIDATE, 0),
    ):
        found = -actor.result("msync", address, length, flags)
        live.expect(f"errno of {length} bytes from {address - start} on, flags {flags}", expected, found)
    live.expect("words that changed", 0, memory.wrong(0, size) + memory.wrong(size + base, 2 * size - base))


class ThpSyncedRanges(LiveTest):
    def test_synced_ranges(self) -> None:
        self.run_area(SYNCED)
