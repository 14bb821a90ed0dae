"""Files in large folios that are read and written with flags: preadv2(2), pwritev2(2)."""

import errno
import os
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.file_contents import KnownFile
from hugepage_qa.cases.file_transfers import Transfer
from hugepage_qa.cases.frames import unwritten_places
from hugepage_qa.cases.large_folios import DISKS, block_size, file_case
from hugepage_qa.cases.live import Live
from hugepage_qa.plugins.avocado_test import LiveTest

FLAGGED = Area("files/flagged-io", sizes=Sizes.ONCE, uncleared=True)

case = partial(file_case, FLAGGED)
# include/uapi/linux/fs.h
_DSYNC, _SYNC, _NOWAIT, _APPEND, _NOAPPEND, _DONTCACHE, _UNKNOWN = 2, 4, 8, 16, 32, 128, 1 << 30
# include/uapi/asm-generic/fcntl.h
_F_SETFL = 4


def _places(live: Live, file: KnownFile) -> tuple[tuple[int, int], ...]:
    """Return where what is carried begins, and how long it is: in a folio, over the end of one, up to the last byte."""
    base, block, whole = live.base_page, block_size(live), file.contents.length
    return (0, base), (base + 8, 16), (block // 2 - 8, 2 * base + 16), (block - base, 2 * base), (whole - base, base)


def _carrier(call: str, flags: int) -> Transfer:
    """Return what carries bytes between a file and two buffers with ``flags``."""

    def carry(file: KnownFile, address: int, first: int, length: int) -> int:
        half = length // 16 * 8
        parts = file.actor.uapi.pack("4Q", address, half, address + half, length - half)
        return file.actor.call(call, file.descriptor, parts, 2, first, 0, flags)

    return carry


@case(
    "a write with RWF_DSYNC or RWF_SYNC puts what it was given where it begins, and it is on the disk then, wherever in"
    " a folio it is, also where that was dirty",
    "pwritev2(2) RWF_DSYNC, RWF_SYNC; include/linux/fs.h generic_write_sync()",
    on=DISKS,
)
def written_through(live: Live, file: KnownFile) -> None:
    memory = file.map()
    for flags, (first, length) in product((_DSYNC, _SYNC), _places(live, file)):
        with live.about(f"flags {flags}, {length} bytes at {first}"):
            file.store(memory, first, length)
            file.write_by(_carrier("pwritev2", flags), first, length)
            pages = sorted({at // live.base_page * live.base_page for at in (first, first + length - 1)})
            # a page that moves meanwhile leaves its frame to another one
            dirty = live.host.last_look(partial(unwritten_places, live, memory, pages), lambda left: not left, 1.0)
            live.expect("pages that are still dirty", [], dirty)
            file.expect_mapped(memory)
    file.expect("written through")


@case(
    "a write with RWF_APPEND goes to the end of the file, whatever offset it has, and changes nothing else",
    "pwritev2(2) RWF_APPEND; include/linux/fs.h kiocb_set_rw_flags()",
)
def appended(live: Live, file: KnownFile) -> None:
    base, block, whole = live.base_page, block_size(live), file.contents.length
    for end, offset, length in (
        (whole, 0, 2 * base + 8),
        (whole, 2 * whole, 16),
        (block - 8, block, 16),
        (block - 8, 0, 2 * base + 8),
        (block // 2 + 8, block // 2 + 8, base),
        (block // 2 + 8, 8, 16),
    ):
        with live.about(f"{length} bytes, offset {offset}, end {end}"):
            file.truncate(end)
            write = _carrier("pwritev2", _APPEND)

            def to_the_end(
                file: KnownFile, address: int, _end: int, length: int, write: Transfer = write, offset: int = offset
            ) -> int:
                return write(file, address, offset, length)

            file.write_by(to_the_end, end, length)
            file.expect("appended to")


@case(
    "a write with RWF_NOAPPEND to a file that is open to be appended to goes to its offset, and one without to the end;"
    " both flags at once are EINVAL, and change nothing",
    "pwritev2(2) RWF_NOAPPEND; include/linux/fs.h kiocb_set_rw_flags()",
    since="6.9",
)
def not_appended(live: Live, file: KnownFile) -> None:
    actor, whole = file.actor, file.contents.length
    actor.call("fcntl", file.descriptor, _F_SETFL, os.O_APPEND)
    for first, length in _places(live, file):
        with live.about(f"{length} bytes at {first}"):
            file.write_by(_carrier("pwritev2", _NOAPPEND), first, length)
            file.expect("written, and not appended to")
    write = _carrier("pwritev2", 0)
    file.write_by(lambda file, address, _end, length: write(file, address, 0, length), whole, live.base_page)
    _expect_refused(live, file, _APPEND | _NOAPPEND, errno.EINVAL)
    actor.call("fcntl", file.descriptor, _F_SETFL, 0)
    file.expect("appended to")


def _expect_refused(live: Live, file: KnownFile, flags: int, number: int) -> None:
    write = _carrier("pwritev2", flags)
    live.expect(f"what comes of flags {flags}", -number, file.tried(write, 0, live.base_page))


@case(
    "a read or write with RWF_DONTCACHE, where the file system has that, gives or takes what it should, in memory or"
    " not, also what a mapping has made dirty, which stays as it is",
    "preadv2(2) RWF_DONTCACHE; mm/filemap.c filemap_read()",
    since="6.14",
)
def not_kept(live: Live, file: KnownFile) -> None:
    write, read = _carrier("pwritev2", _DONTCACHE), _carrier("preadv2", _DONTCACHE)
    base = live.base_page
    if _is_unsupported(file, read):
        _expect_refused(live, file, _DONTCACHE, errno.EOPNOTSUPP)
        file.expect("not written to")
        return
    for is_mapped, (first, length) in product((False, True), _places(live, file)):
        with live.about(f"mapped {is_mapped}, {length} bytes at {first}"):
            memory = file.map() if is_mapped else None
            if memory:
                file.store(memory, first // base * base, base)
            else:
                file.evict()
            file.expect_read(read, first, length)
            file.write_by(write, first, length)
            file.expect_read(read, first, length)
            if memory:
                file.expect_mapped(memory)
                memory.unmap()
    file.expect("read and written, and not kept")


def _is_unsupported(file: KnownFile, read: Transfer) -> bool:
    return file.tried(read, 0, 16) == -errno.EOPNOTSUPP


@case(
    "a read with RWF_NOWAIT gives what stands where it begins, or less of it, or EAGAIN, in memory or not; flags that"
    " nobody knows are EOPNOTSUPP, for reads and writes, and change nothing",
    "preadv2(2) RWF_NOWAIT; mm/filemap.c filemap_get_pages(); include/linux/fs.h kiocb_set_rw_flags()",
    # a tmpfs has it not
    on=DISKS,
)
def not_waited_for(live: Live, file: KnownFile) -> None:
    for is_there, (first, length) in product((True, False), _places(live, file)):
        with live.about(f"in memory {is_there}, {length} bytes at {first}"):
            if is_there:
                file.read(file.contents.length)
            else:
                file.evict()
            found = file.tried(_carrier("preadv2", _NOWAIT), first, length)
            allowed = found == -errno.EAGAIN or 0 < found <= length
            live.expect(f"EAGAIN, or 1 to {length} bytes: {found}", True, allowed)
            live.expect("words that are wrong", 0, file.wrong_of_tried(first, max(found, 0) // 8 * 8))
    for call in ("preadv2", "pwritev2"):
        live.expect(f"flags that nobody knows, {call}", -errno.EOPNOTSUPP, file.tried(_carrier(call, _UNKNOWN), 0, 16))
    file.expect("read without a wait")


class ThpFlaggedIo(LiveTest):
    def test_flagged_io(self) -> None:
        self.run_area(FLAGGED)
