"""fallocate(2) on files of huge pages: pages ahead of their use."""

import errno
import signal
from itertools import product
from typing import Final

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.hugetlb_files import HugeFile, file_of_each_kind, open_file
from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.uapi import (
    FALLOC_FL_COLLAPSE_RANGE,
    FALLOC_FL_KEEP_SIZE,
    FALLOC_FL_PUNCH_HOLE,
    FALLOC_FL_ZERO_RANGE,
    RLIMIT_FSIZE,
)
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused, hold_back, is_waiting

FALLOCATE = Area("reservation/fallocate", uncleared=True)
ALLOCATE = "fallocate(2); fs/hugetlbfs/inode.c hugetlbfs_fallocate()"
#: loff_t has no more
_LONGEST: Final = (1 << 63) - 1
_CAME = "what came of fallocate, and bytes that the file occupies"
_TOO_FAR = "EFBIG", 0


@FALLOCATE.case("fallocate takes zeroed pages, which a mapping then needs no more", ALLOCATE, pages=2)
def allocate_pages(live: Live) -> None:
    for file in file_of_each_kind(live):
        file.allocate(2)
        live.expect_pool(nr=2, free=0)
        live.expect("the size of the file", 2 * live.size, file.size)
        memory = file.map(2)
        live.expect_pool(nr=2, free=0)
        for page in (0, 1):
            memory.expect_zero(page)
        memory.touch(1)
        live.expect_pool(nr=2, free=0)
        memory.unmap()
        file.truncate(0)
        live.expect_pool(nr=2, free=2)


@FALLOCATE.case(
    "the next user of a page sees nothing of what was in it, from its first word to its last, where fallocate brings"
    " it: with others or alone, for a part of it, behind the end, into a hole, reserved by a mapping or not",
    f"{ALLOCATE}, clear_huge_page()",
    pages=2,
)
def allocated_pages_are_cleared(live: Live) -> None:
    size = live.size
    # calls that bring both pages, or one, and a touch the other
    ways = (
        (0, ((0, 2 * size),)),
        (0, ((size, size), (0, size))),
        (0, ((size - 1, 2),)),
        (FALLOC_FL_KEEP_SIZE, ((0, 2 * size),)),
        (0, ((0, 1),)),
    )
    rows = list(product(ways, zip((False, True), file_of_each_kind(live), strict=True)))
    # a row takes half a minute with gigantic pages
    for (mode, calls), (reserved, file) in rows[:1] if live.is_gigantic else rows:
        with live.about(f"mode {mode}, {calls}, reserved {reserved}"):
            before = live.map(2)
            before.fill(7)
            before.actor.end()
            memory = file.map(2, noreserve=not reserved)
            for _again in range(2):
                for offset, length in calls:
                    file.actor.call("fallocate", file.descriptor, mode, offset, length)
                memory.expect_zero(0, 2)
                live.expect_pool(nr=2, free=0)
                memory.fill(9)
                # the pages of the hole are the next ones that are free
                file.punch(2)
            memory.unmap()
            file.truncate(0)


@FALLOCATE.case("fallocate takes the pages that a mapping has reserved", ALLOCATE, pages=2)
def allocate_reserved_pages(live: Live) -> None:
    for file in file_of_each_kind(live):
        memory = file.map(2)
        memory.touch(0, 5)
        live.expect_pool(nr=2, free=1, resv=1)
        file.allocate(2)
        live.expect_pool(nr=2, free=0)
        live.expect("what was there", 5, memory.read(0))
        memory.expect_zero(1)
        file.truncate(0)
        live.expect_pool(nr=2, free=2)


@FALLOCATE.case(
    "a file occupies the pages that it has, and nothing for a hole or for pages that are only reserved",
    "stat(2) st_blocks; mm/hugetlb.c hugetlb_add_to_page_cache(), hugetlb_unreserve_pages()",
    pages=2,
)
def blocks_of_a_file(live: Live) -> None:
    for file in file_of_each_kind(live):
        memory = file.map(2)
        live.expect("bytes that the file occupies: none was touched", 0, file.blocks)
        file.allocate(2)
        live.expect("bytes that the file occupies: 2 pages", 2 * live.size, file.blocks)
        file.punch(1)
        live.expect("bytes that the file occupies: a hole and a page", live.size, file.blocks)
        memory.touch(0)
        live.expect("bytes that the file occupies: 2 pages again", 2 * live.size, file.blocks)
        memory.unmap()
        file.truncate(0)
        live.expect("bytes that the file occupies: truncated", 0, file.blocks)


@FALLOCATE.case("fallocate beyond the pool is ENOSPC and leaves the file as long as it was", ALLOCATE, pages=2)
def allocate_beyond_the_pool(live: Live) -> None:
    for file in file_of_each_kind(live):
        live.expect_errno(errno.ENOSPC, file.allocate, 3)
        live.expect("the size of the file", 0, file.size)
        file.truncate(0)
        live.expect_pool(nr=2, free=2)


@FALLOCATE.case("fallocate cannot take what others have reserved", ALLOCATE, pages=1)
def allocate_what_others_reserved(live: Live) -> None:
    owner = live.map(1)
    for file in file_of_each_kind(live):
        live.expect_errno(errno.ENOSPC, file.allocate, 1)
        live.expect_pool(nr=1, free=1, resv=1)
    owner.touch()
    live.expect_pool(nr=1, free=0)


@FALLOCATE.case("fallocate with FALLOC_FL_KEEP_SIZE takes pages behind the end", ALLOCATE, pages=1)
def allocate_behind_the_end(live: Live) -> None:
    for file in file_of_each_kind(live):
        file.allocate(1, mode=FALLOC_FL_KEEP_SIZE)
        live.expect("the size of the file", 0, file.size)
        live.expect_pool(nr=1, free=0)
        memory = file.map(1)
        memory.expect_zero(0)
        live.expect_pool(nr=1, free=0)
        memory.unmap()
        file.truncate(0)
        live.expect_pool(nr=1, free=1)


@FALLOCATE.case("a part of a page takes the whole page", ALLOCATE, pages=2)
def allocate_parts(live: Live) -> None:
    for file in file_of_each_kind(live):
        file.actor.call("fallocate", file.descriptor, 0, 0, 1)
        live.expect_pool(nr=2, free=1)
        live.expect("the size of the file", 1, file.size)
        file.actor.call("fallocate", file.descriptor, FALLOC_FL_KEEP_SIZE, live.size - 1, 1)
        live.expect_pool(nr=2, free=1)
        file.actor.call("fallocate", file.descriptor, FALLOC_FL_KEEP_SIZE, live.size - 1, 2)
        live.expect_pool(nr=2, free=0)
        file.truncate(0)
        live.expect_pool(nr=2, free=2)


@FALLOCATE.case(
    "no file is made longer than RLIMIT_FSIZE: EFBIG and SIGXFSZ, and no page is taken",
    "setrlimit(2) RLIMIT_FSIZE; fs/attr.c inode_newsize_ok()",
    pages=2,
)
def limit_on_the_size_of_a_file(live: Live) -> None:
    pack = live.host.uapi.pack
    for file in file_of_each_kind(live):
        call = file.actor.call
        # the limit is one page; the signal waits, for it would end the actor
        call("setrlimit", RLIMIT_FSIZE, pack("2Q", live.size, live.size))
        hold_back(file.actor, signal.SIGXFSZ)
        file.allocate(1)
        live.expect("whether SIGXFSZ waits", False, is_waiting(file.actor, signal.SIGXFSZ))
        live.expect_errno(errno.EFBIG, file.allocate, 1, 1)
        live.expect_errno(errno.EFBIG, file.allocate, 1, 1, FALLOC_FL_KEEP_SIZE)
        live.expect_errno(errno.EFBIG, file.truncate, 2)
        live.expect("whether SIGXFSZ waits", True, is_waiting(file.actor, signal.SIGXFSZ))
        live.expect("the size of the file", live.size, file.size)
        live.expect_pool(nr=2, free=1)
        file.truncate(0)
        live.expect_pool(nr=2, free=2)


@FALLOCATE.case(
    "the last bytes that a file can have take their page and no other, or are too far for it: EFBIG; so is what ends"
    " behind them",
    f"{ALLOCATE}; fallocate(2) EFBIG, ENOSPC; fs/open.c vfs_fallocate()",
    since="6.7",  # before, what goes over a file counts in huge pages, and does not find the last one either: a BUG
    pages=2,
)
def allocate_the_last_bytes(live: Live) -> None:
    size, base = live.size, live.base_page
    # a kernel that goes on behind the last page takes all, and ends in a BUG when it does not find them again: with
    # size= of a page there is none but that page, which it finds
    file = open_file(live, f"{live.mount(size=size)}/file")
    last = _LONGEST + 1 - size
    in_front = [(last - size, size), (last - size, base), (last - 1, 1)]
    places = [*in_front, (last, size - 1), (last, 1), (_LONGEST - base, base), (_LONGEST - 1, 1)]
    rows = [(place, mode) for place in places for mode in (0, FALLOC_FL_KEEP_SIZE)]
    for (offset, length), mode in rows[::3] if live.is_gigantic else rows:
        with live.about(f"mode {mode}, {length} bytes at {offset}"):
            found = _came_of(file, mode, offset, length)
            too_far = offset >= last and found == _TOO_FAR
            known = {Quirk.LAST_BYTES_TAKE_ALL_PAGES: ("ENOSPC", size)} if offset >= last else None
            live.expect(_CAME, _TOO_FAR if too_far else ("success", size), found, known)
            file.truncate(0)
            live.expect_pool(nr=2, free=2)
    for offset, length in ((_LONGEST, 1), (1, _LONGEST), (_LONGEST, _LONGEST)):
        live.expect(_CAME, _TOO_FAR, _came_of(file, 0, offset, length))
    live.expect_pool(nr=2, free=2)


@FALLOCATE.case("what fallocate does not do on huge pages is refused and does nothing", ALLOCATE, pages=1)
def refused_calls(live: Live) -> None:
    for file in file_of_each_kind(live):
        file.map(1).touch(value=5)
        for mode in (FALLOC_FL_PUNCH_HOLE, FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_ZERO_RANGE):
            live.expect_errno(errno.EOPNOTSUPP, file.allocate, 1, 0, mode)
        call = file.actor.call
        for offset, length in ((0, 0), (-live.size, live.size), (0, -live.size)):
            live.expect_errno(errno.EINVAL, call, "fallocate", file.descriptor, 0, offset, length)
        live.expect_pool(nr=1, free=0)
        live.expect("what the page holds", 5, file.map(1).read())
        file.truncate(0)


def _came_of(file: HugeFile, mode: int, offset: int, length: int) -> tuple[str, int]:
    """Return what came of fallocate(2), and the bytes that the file occupies then."""
    try:
        file.actor.call("fallocate", file.descriptor, mode, offset, length)
    except Refused as error:
        return errno.errorcode[error.errno or 0], file.blocks
    return "success", file.blocks


class Fallocate(LiveTest):
    def test_fallocate(self) -> None:
        self.run_area(FALLOCATE)
