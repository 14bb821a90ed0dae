"""What PROCMAP_QUERY (Linux 6.11), the ioctl of /proc/PID/maps, tells of a mapping of huge pages at an address."""

import errno
import mmap
import os
from dataclasses import dataclass
from enum import IntFlag

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.places import ordinary_memory
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import huge_pages
from hugepage_qa.cases.thp_shared_memory import expect_shared, let_only_pmd_inherit, map_start, mount_tmpfs
from hugepage_qa.kernel.uapi import iowr
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

QUERIED = Area("accounting/queried-mappings", sizes=Sizes.EACH)

SOURCE = "Documentation/filesystems/proc.rst PROCMAP_QUERY; fs/proc/task_mmu.c do_procmap_query()"
#: struct procmap_query: nine of 64 bits, four of 32 bits and two addresses
_LAYOUT = "9Q4I2Q"


class Vma(IntFlag):
    """What is asked for, and what a mapping is: PROCMAP_QUERY_VMA_* of include/uapi/linux/fs.h, and two more."""

    READABLE = 1
    WRITABLE = 2
    SHARED = 8
    COVERING_OR_NEXT = 16
    FILE_BACKED = 32


_WRITABLE = Vma.READABLE | Vma.WRITABLE
#: what the kernel calls hugetlb pages that no file was named for
_ANONYMOUS = "/anon_hugepage (deleted)"


@dataclass(frozen=True)
class _Told:
    """What is told of a mapping: addresses, the size of its pages and its place in a file in bytes."""

    start: int
    end: int
    kind: Vma
    page_size: int
    offset: int
    name: str


@QUERIED.case(
    "at each address of a mapping of hugetlb pages, touched or not, PROCMAP_QUERY tells where it begins and ends, what"
    " its protection is, the size of its pages, its place in its file and the name of that",
    SOURCE,
    pages=2,
    since="6.11",
)
def hugetlb_mappings(live: Live) -> None:
    actor = live.actor()
    path = f"{live.mount()}/file"
    file = live.open(actor, path, os.O_CREAT | os.O_RDWR)
    private = live.map(3, actor, noreserve=True)
    shared = live.map(1, actor, shared=True, fd=file, first=1)
    private.touch(1)
    _expect_told(live, private, _WRITABLE, live.size, 0, _ANONYMOUS)
    _expect_told(live, shared, _WRITABLE | Vma.SHARED, live.size, live.size, path)
    shared.protect(mmap.PROT_READ)
    _expect_told(live, shared, Vma.READABLE | Vma.SHARED, live.size, live.size, path)
    with live.about("asked for one that may be written"):
        live.expect_errno(errno.ENOENT, _query, live, actor, shared.address, Vma.WRITABLE)
    private.unmap(1, 1)
    hole, behind = private.at(1), Memory(live, actor, private.at(2), 1, live.size)
    _expect_told(live, behind, _WRITABLE, live.size, 2 * live.size, _ANONYMOUS)
    for place in (0, live.size - 1):
        with live.about(f"{place} bytes into a hole"):
            live.expect_errno(errno.ENOENT, _query, live, actor, hole + place)
            found = _query(live, actor, hole + place, Vma.COVERING_OR_NEXT | Vma.FILE_BACKED)
            live.expect("where the next one begins", behind.address, found.start)


@QUERIED.case(
    "the name of a mapping of hugetlb pages is told to who has room for it and the byte that ends it, and with a byte"
    " less it is ENAMETOOLONG",
    SOURCE,
    pages=1,
    since="6.11",
)
def room_for_a_name(live: Live) -> None:
    actor = live.actor()
    path = f"{live.mount()}/file"
    shared = live.map(1, actor, shared=True, fd=live.open(actor, path, os.O_CREAT | os.O_RDWR))
    private = live.map(1, actor, noreserve=True)
    for memory, name in ((shared, path), (private, _ANONYMOUS)):
        room = len(name) + 1
        live.expect("name", name, _query(live, actor, memory.address, room=room).name)
        live.expect_errno(errno.ENAMETOOLONG, _query, live, actor, memory.address, room=room - 1)


@QUERIED.case(
    "of transparent huge pages, anonymous and of a file of a tmpfs, PROCMAP_QUERY tells the size of a base page",
    SOURCE,
    since="6.11",
    sizes=Sizes.ONCE,
)
def other_mappings(live: Live) -> None:
    memory = huge_pages(live, 2)
    _expect_told(live, memory, _WRITABLE, live.base_page, 0, "")
    live.expect_errno(errno.ENOENT, _query, live, memory.actor, memory.address, Vma.FILE_BACKED)
    let_only_pmd_inherit(live)
    actor = live.actor()
    path = f"{mount_tmpfs(live, 'always')}/file"
    file = live.open(actor, path, os.O_CREAT | os.O_RDWR)
    whole = map_start(live, actor, file, 2)
    expect_shared(live, whole, True, "huge=always")
    size = pmd_size(live)
    part = Memory(live, actor, actor.mmap(size, READ_WRITE, mmap.MAP_PRIVATE, file, size), 1, size)
    _expect_told(live, whole, _WRITABLE | Vma.SHARED, live.base_page, 0, path)
    _expect_told(live, part, _WRITABLE, live.base_page, size, path)


def _expect_told(live: Live, memory: Memory, kind: Vma, page_size: int, offset: int, name: str) -> None:
    end = memory.address + memory.length
    for place in (0, live.base_page + 1, memory.length - 1):
        with live.about(f"{place} bytes into a mapping of {name or 'anonymous memory'}"):
            found = _query(live, memory.actor, memory.address + place, room=live.base_page)
            wanted = _Told(memory.address, end, kind, page_size, offset, name)
            live.expect("what is told", wanted, found)


def _query(live: Live, actor: Actor, address: int, asked: int = 0, room: int = 0) -> _Told:
    """Return what is told of a mapping of ``actor`` at ``address``, or of the next one. Raises Refused.

    Its name is told where there is ``room`` for it, in bytes.
    """
    uapi = live.host.uapi
    size = len(uapi.pack(_LAYOUT, *[0] * 15))
    buffer = ordinary_memory(live, actor, 1)
    maps = live.open(actor, "/proc/self/maps")
    try:
        argument = uapi.pack(_LAYOUT, size, asked, address, *[0] * 8, room, 0, buffer.address if room else 0, 0)
        _zero, (answer,) = actor.call_with_buffers("ioctl", maps, iowr(ord("f"), 17, size), argument)
        _size, _flags, _at, start, end, kind, page_size, offset, _inode, *rest = uapi.unpack(_LAYOUT, answer)
        # with the byte that ends it, or none
        length = max(rest[2] - 1, 0)
        words = [actor.read(buffer.address + at) for at in range(0, length, WORD)]
        name = uapi.pack(f"{len(words)}Q", *words)[:length].decode()
    finally:
        actor.call("close", maps)
        buffer.unmap()
    return _Told(start, end, Vma(kind), page_size, offset, name)


class QueriedMappings(LiveTest):
    def test_queried_mappings(self) -> None:
        self.run_area(QUERIED)
