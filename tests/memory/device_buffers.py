"""Pages of a file that a device may use: a buffer of udmabuf, which holds them whatever becomes of the file."""

import errno
import fcntl
import mmap
import os
from collections.abc import Sequence

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import HugeFile, new_memfd
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused

DEVICE_BUFFERS = Area("device-buffers", uncleared=True)
SOURCE = "drivers/dma-buf/udmabuf.c udmabuf_create(); mm/gup.c memfd_pin_folios() (89c1905d9c14)"
#: since when a buffer may be of huge pages, and takes those that its file has not yet (89c1905d9c14)
SINCE = "6.11"
_DEVICE = "/dev/udmabuf"
# include/uapi/linux/udmabuf.h: UDMABUF_CREATE_LIST is _IOW() of a head of eight bytes
_KIND, _CREATE_LIST, _HEAD, _CLOSED_BY_EXEC = ord("u"), 0x43, "2I", 1
_ITEM = "2I2Q"

Parts = Sequence[tuple[int, int]]


@DEVICE_BUFFERS.case(
    "a buffer of parts of a file is these parts, from one base page on and over several pages, in their order: what is"
    " in the file is read there, and what is written there is in the file, and nowhere else",
    SOURCE,
    since=SINCE,
    sizes=Sizes.BUDDY,  # a buffer has 64 MiB at most (size_limit_mb)
    pages=3,
)
def parts_of_a_file(live: Live) -> None:
    size, base = live.size, live.base_page
    table: tuple[Parts, ...] = (
        ((0, base),),
        ((base, 2 * base),),
        ((size - base, base),),
        ((size - base, 2 * base),),
        ((2 * size - 2 * base, 3 * base),),
        ((3 * size - base, base),),
        ((2 * size + base, base), (base, base), (size - base, 2 * base), (base, base)),
        ((0, size),),
        ((base, 2 * size),),
        ((size, 2 * size), (0, base)),
    )
    file = sealed_file(live)
    memory = file.map(3)
    memory.fill()
    actor = file.actor
    for parts in table:
        with live.about(f"parts {parts}"):
            buffer = new_buffer(live, file, parts)
            length = sum(each for _offset, each in parts)
            place = at = actor.mmap(length, READ_WRITE, mmap.MAP_SHARED, buffer)
            for offset, each in parts:
                live.expect("words that are not those of the file", 0, actor.check(at, each, WORD, 1 + offset))
                actor.fill(at, each, WORD, 5 + offset)
                live.expect(
                    "words that the file has not", 0, actor.check(memory.address + offset, each, WORD, 5 + offset)
                )
                actor.fill(at, each, WORD, 1 + offset)
                at += each
            actor.call("munmap", place, length)
            actor.call("close", buffer)
            memory.expect_filled()
            live.expect_pool(nr=3, free=0)


@DEVICE_BUFFERS.case(
    "a buffer takes the pages that its file has not yet out of what is reserved for it, all zeroes, holds them when"
    " they are punched out of the file, and gives them back when it is closed",
    f"{SOURCE}; mm/memfd.c memfd_alloc_folio()",
    since=SINCE,
    pages=3,
)
def pages_of_a_buffer(live: Live) -> None:
    dirty_pool(live, 3)
    file = sealed_file(live)
    memory = file.map(2)
    memory.touch(0, 7)
    live.expect_pool(nr=3, free=2, resv=1)
    buffer = new_buffer(live, file, first_base_pages(live))
    live.expect_pool(nr=3, free=1)
    live.expect("bytes that the file occupies", 2 * live.size, file.blocks)
    memory.expect_zero(1)
    memory.touch(1, 8)
    file.punch(2)
    live.expect("bytes that the file occupies", 0, file.blocks)
    live.expect_pool(nr=3, free=1)
    length = 2 * live.base_page
    place = file.actor.mmap(length, READ_WRITE, mmap.MAP_SHARED, buffer)
    live.expect("what the buffer holds", [7, 8], [file.actor.read(place + page * live.base_page) for page in range(2)])
    file.actor.call("close", buffer)
    live.expect_pool(nr=3, free=1)
    file.actor.call("munmap", place, length)
    live.expect_pool(nr=3, free=3)


@DEVICE_BUFFERS.case(
    "a buffer of a file for which nothing is reserved takes free pages, and none that others have reserved: ENOMEM,"
    " and it keeps none",
    f"{SOURCE}; mm/memfd.c memfd_alloc_folio(), hugetlb_reserve_pages()",
    since="6.17",
    pages=3,
)
def buffer_without_reservation(live: Live) -> None:
    dirty_pool(live, 3)
    for reserved in (1, 2, 3):
        others = live.map(reserved)
        file = sealed_file(live)
        with live.about(f"{reserved} pages are reserved by others"):
            if reserved == 1:
                buffer = new_buffer(live, file, first_base_pages(live))
                live.expect_pool(nr=3, free=1, resv=1)
                memory = file.map(2)
                live.expect_pool(nr=3, free=1, resv=1)
                memory.expect_zero(0, 2)
                file.actor.call("close", buffer)
            else:
                live.expect_errno(errno.ENOMEM, new_buffer, live, file, first_base_pages(live))
                # what it took before it found no more is the file's
                live.expect_pool(nr=3, free=reserved, resv=reserved)
            file.actor.end()
            live.expect_pool(nr=3, free=3, resv=reserved)
            others.actor.end()
            live.expect_pool(nr=3, free=3)


def sealed_file(live: Live) -> HugeFile:
    """Return a file of three pages without a name that cannot be made shorter, as a buffer wants it."""
    file = new_memfd(live, flags=os.MFD_ALLOW_SEALING)
    file.truncate(3)
    file.seal(fcntl.F_SEAL_SHRINK)
    return file


def first_base_pages(live: Live) -> Parts:
    """Return the first base page of each of two pages."""
    return [(page * live.size, live.base_page) for page in range(2)]


def new_buffer(live: Live, file: HugeFile, parts: Parts) -> int:
    """Return a buffer of ``parts`` of ``file``: offset and length of each in bytes.

    Raises Refused, and CannotRun where the kernel has no udmabuf.
    """
    uapi = live.host.uapi
    try:
        device = live.open(file.actor, _DEVICE, os.O_RDWR)
    except Refused as refusal:
        if refusal.errno not in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
            raise
        raise CannotRun("this kernel has no CONFIG_UDMABUF, or nobody has made its device") from refusal
    items = b"".join(uapi.pack(_ITEM, file.descriptor, 0, offset, length) for offset, length in parts)
    argument = uapi.pack(_HEAD, _CLOSED_BY_EXEC, len(parts)) + items
    try:
        return file.actor.call("ioctl", device, uapi.iow(_KIND, _CREATE_LIST, uapi.size_of(_HEAD)), argument)
    finally:
        file.actor.call("close", device)


def dirty_pool(live: Live, pages: int) -> None:
    """Have all pages of the pool hold something."""
    before = live.map(pages)
    before.fill(7)
    before.actor.end()


class DeviceBuffers(LiveTest):
    """Cases on buffers for devices of files of huge pages, for every page size of the machine.

    :avocado: enable
    """

    def test_device_buffers(self) -> None:
        """Every case for every page size."""
        self.run_area(DEVICE_BUFFERS)
