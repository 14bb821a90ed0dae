"""fallocate(2) on files of huge pages: pages ahead of their use, and holes."""

import errno
import signal
from itertools import product
from typing import Final

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import HugeFile, file_of_each_kind, new_memfd, open_file
from hugepage_qa.cases.hugetlb_of_a_process import forked
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD
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
PUNCH = "fallocate(2) FALLOC_FL_PUNCH_HOLE; fs/hugetlbfs/inode.c hugetlbfs_punch_hole(), remove_inode_hugepages()"
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


@FALLOCATE.case("a hole gives its pages back and reads as zeroes, the rest stays", PUNCH, pages=2)
def punch_a_hole(live: Live) -> None:
    for file in file_of_each_kind(live):
        memory = file.map(2)
        memory.touch(0, 1)
        memory.touch(1, 2)
        file.punch(1, 1)
        live.expect_pool(nr=2, free=1)
        live.expect("the size of the file", 2 * live.size, file.size)
        memory.expect_zero(1)
        live.expect_pool(nr=2, free=0)
        live.expect("the page beside the hole", 1, memory.read(0))
        file.punch(2)
        live.expect_pool(nr=2, free=2)
        file.truncate(0)


@FALLOCATE.case(
    "a hole gives back each page that lies in it as a whole, and no other one, wherever the file ends: in that page, in"
    " front of it or behind it",
    f"{PUNCH}; fallocate(2): whole blocks are removed from the file",
    pages=2,
)
def punch_where_the_file_ends(live: Live) -> None:
    size = live.size
    ends = 1, size - 1, size, 2 * size - 1, size + 1
    holes = (
        *((size - 1, 2), (1, 2 * size - 2), (0, size), (0, size + 1), (size, size), (1, 2 * size - 1)),
        *((0, 1), (1, size), (0, 2 * size - 1), (0, 2 * size)),
    )
    rows = list(product(file_of_each_kind(live), ends))
    # each page of a hole is cleared again, which takes seconds with gigantic pages
    for file, end in rows[-1:] if live.is_gigantic else rows:
        file.actor.call("fallocate", file.descriptor, 0, 0, end)
        for offset, length in holes[-4:] if live.is_gigantic else holes:
            file.allocate(2, mode=FALLOC_FL_KEEP_SIZE)
            live.expect_pool(nr=2, free=0)
            file.punch_bytes(offset, length)
            with live.about(f"a hole of {length} bytes at {offset} in a file of {end} bytes"):
                whole = sum(offset <= page * size and (page + 1) * size <= offset + length for page in (0, 1))
                live.expect_pool(nr=2, free=whole)
                live.expect("the size of the file", end, file.size)
        file.truncate(0)
        live.expect_pool(nr=2, free=2)


@FALLOCATE.case(
    "a hole takes no private copy of its pages: who wrote it, and a child, keep what is in it",
    "mmap(2) MAP_PRIVATE; mm/truncate.c truncate_pagecache_range(); fs/hugetlbfs/inode.c hugetlb_vmdelete_list()",
    pages=3,
)
def punch_beside_private_copies(live: Live) -> None:
    for file in file_of_each_kind(live):
        file.allocate(2)
        memory = file.map(1, shared=False, first=1)
        memory.fill(7)
        child = forked(live, memory)
        live.expect_pool(nr=3, free=0)
        for start, length, free in ((live.size, live.base_page, 0), (live.size, live.size, 1), (0, 2 * live.size, 2)):
            with live.about(f"a hole of {length} bytes at {start}"):
                file.punch_bytes(start, length)
                live.expect("what the copy holds", 7, memory.read(), {Quirk.PUNCHING_TAKES_COPIES: 0})
                live.expect_pool(nr=3, free=free)
                for copy in (memory, child):
                    copy.expect_filled(7)
        child.actor.end()
        memory.unmap()
        live.expect_pool(nr=3, free=3)


@FALLOCATE.case("the page of a hole belongs to all: another may take it, then it gets SIGBUS", PUNCH, pages=1)
def hole_is_not_reserved(live: Live) -> None:
    for file in file_of_each_kind(live):
        memory = file.map(1)
        memory.touch()
        file.punch(1)
        live.expect_pool(nr=1, free=1)
        other = live.map(1)
        live.expect_signal(signal.SIGBUS, memory.touch)
        other.unmap()
        memory.touch(value=2)
        live.expect_pool(nr=1, free=0)
        file.truncate(0)
        live.expect_pool(nr=1, free=1)


@FALLOCATE.case("a hole where no page was changes nothing, and keeps the reservations", PUNCH, pages=2)
def punch_nothing(live: Live) -> None:
    for file in file_of_each_kind(live):
        memory = file.map(2)
        file.punch(2)
        live.expect_pool(nr=2, free=2, resv=2)
        memory.touch(1)
        live.expect_pool(nr=2, free=1, resv=1)
        file.punch(1)
        live.expect_pool(nr=2, free=1, resv=1)
        file.truncate(0)
        live.expect_pool(nr=2, free=2)


@FALLOCATE.case("a hole keeps the reservations before and behind it, wherever it is", PUNCH, pages=4)
def punch_between_reservations(live: Live) -> None:
    for file, first in product(file_of_each_kind(live), range(4)):
        memory = file.map(4)
        memory.touch(first)
        file.punch(1, first)
        live.expect_pool(nr=4, free=4, resv=3)
        # whoever maps the file again reserves what the hole lost, and nothing twice
        again = file.map(4)
        live.expect_pool(nr=4, free=4, resv=4)
        for one in (memory, again):
            one.unmap()
        file.truncate(0)
        live.expect_pool(nr=4, free=4)


@FALLOCATE.case(
    "a hole ends where it ends, inside a page, at one of its ends or over several: no word beside it changes",
    "fs/hugetlbfs/inode.c hugetlbfs_punch_hole(), hugetlbfs_zero_partial_page() (68d32527d340)",
    since="5.19",
    sizes=Sizes.BUDDY,  # it takes minutes to look at each word of gigantic pages again and again
    pages=3,
)
def holes_at_any_place(live: Live) -> None:
    size, base = live.size, live.base_page
    hole = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
    places = (
        *((0, base), (base, base), (base, size - 2 * base), (size - base, base), (0, size - base), (base, size - base)),
        *((size - base, 2 * base), (size - WORD, size + 2 * WORD), (WORD, 3 * size - 2 * WORD), (size, size)),
    )
    for offset, length in places:
        file = new_memfd(live, pages=3)
        memory = file.map(3)
        memory.fill()
        end = offset + length
        file.actor.call("fallocate", file.descriptor, hole, offset, length)
        whole = max(0, end // size - -(-offset // size))
        live.expect_pool(nr=3, free=whole)
        with live.about(f"a hole of {length} bytes at {offset}"):
            live.expect("words in front of it that changed", 0, memory.wrong(0, offset))
            live.expect("words behind it that changed", 0, memory.wrong(end, memory.length - end))
            live.expect("words in it that are not zero", 0, file.actor.nonzero(memory.address + offset, length))
        file.actor.end()


@FALLOCATE.case(
    "a hole in a part of a page zeroes that part and keeps the page, and gives the whole pages in it back",
    "fs/hugetlbfs/inode.c hugetlbfs_zero_partial_page() (68d32527d340)",
    since="5.19",
    pages=2,
)
def punch_parts(live: Live) -> None:
    half, hole = live.size // 2, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
    for file in file_of_each_kind(live):
        memory = file.map(2)
        places = [memory.at(page) + offset for page in (0, 1) for offset in (0, half - 8, half, live.size - 8)]
        for place in places:
            file.actor.write(place, 7)
        # from the middle of the first page to the middle of the second
        file.actor.call("fallocate", file.descriptor, hole, half, live.size)
        live.expect_pool(nr=2, free=0)
        found = [file.actor.read(place) for place in places]
        live.expect("what is left of the pages", [7, 7, 0, 0, 0, 0, 7, 7], found)
        file.actor.call("fallocate", file.descriptor, hole, 8, 8)
        live.expect("the word before the hole", 7, memory.read(0))
        for place in places:
            file.actor.write(place, 7)
        # all of the first page, and half of the second
        file.actor.call("fallocate", file.descriptor, hole, 0, live.size + half)
        live.expect_pool(nr=2, free=1)
        found = [file.actor.read(place) for place in places]
        live.expect("what is left of the pages", [0, 0, 0, 0, 0, 0, 7, 7], found)
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
