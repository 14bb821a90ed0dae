"""Holes that fallocate(2) punches into files of huge pages: which pages and reservations they give back."""

import signal
from collections.abc import Collection
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import file_of_each_kind, new_memfd
from hugepage_qa.cases.hugetlb_of_a_process import forked
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.places import free_place
from hugepage_qa.kernel.uapi import FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, MAP_FIXED
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor

PUNCHED = Area("reservation/punched-files", uncleared=True)
PUNCH = "fallocate(2) FALLOC_FL_PUNCH_HOLE; fs/hugetlbfs/inode.c hugetlbfs_punch_hole(), remove_inode_hugepages()"

#: PAGEVEC_SIZE, 15 before Linux 6.10; more than twice as many
_LOOKED_UP, _MANY = 31, 70


@PUNCHED.case("a hole gives its pages back and reads as zeroes, the rest stays", PUNCH, pages=2)
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


@PUNCHED.case(
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


@PUNCHED.case(
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


@PUNCHED.case(
    "a hole, and a shorter end, that reaches further than a mapping of the file takes nothing of what is mapped before"
    " and behind that: private and shared memory, other parts of the file and other files",
    "fallocate(2); ftruncate(2); fs/hugetlbfs/inode.c hugetlb_vmdelete_list(), vma_offset_start(), vma_offset_end()",
    pages=5,
)
def punch_beside_neighbours(live: Live) -> None:
    for make, shared, is_shortened in product((_private, _shared, _of_another_file), (True, False), (False, True)):
        file = new_memfd(live, pages=3)
        actor = file.actor
        place = free_place(live, actor, 3)
        memory = file.map(1, shared=shared, noreserve=True, first=1, flags=MAP_FIXED, at=place + live.size)
        neighbours = [make(live, actor, place + at * live.size) for at in (0, 2)]
        # read, a private mapping has the page of the file
        live.expect("what is read of the file", 0, memory.read())
        for value, neighbour in enumerate(neighbours, start=1):
            neighbour.fill(value)
        with live.about(f"{make.__name__.strip('_')}, mapping shared {shared}, shortened {is_shortened}"):
            live.expect_pool(nr=5, free=2)
            if is_shortened:
                file.truncate(0)
            else:
                file.punch(3)
            live.expect_pool(nr=5, free=3)
            for value, neighbour in enumerate(neighbours, start=1):
                neighbour.expect_filled(value)
            if is_shortened:
                live.expect_signal(signal.SIGBUS, memory.read)
            else:
                live.expect("what is read of the hole", 0, memory.read())
        actor.end()
        live.expect_pool(nr=5, free=5)


def _private(live: Live, actor: Actor, at: int) -> Memory:
    return live.map(1, actor, flags=MAP_FIXED, at=at)


def _shared(live: Live, actor: Actor, at: int) -> Memory:
    return live.map(1, actor, shared=True, flags=MAP_FIXED, at=at)


def _of_another_file(live: Live, actor: Actor, at: int) -> Memory:
    # a private copy, too, is found by the file that is mapped
    return new_memfd(live, actor, pages=1).map(1, shared=False, flags=MAP_FIXED, at=at)


@PUNCHED.case("the page of a hole belongs to all: another may take it, then it gets SIGBUS", PUNCH, pages=1)
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


@PUNCHED.case("a hole where no page was changes nothing, and keeps the reservations", PUNCH, pages=2)
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


@PUNCHED.case("a hole keeps the reservations before and behind it, wherever it is", PUNCH, pages=4)
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


@PUNCHED.case(
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


@PUNCHED.case(
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


@PUNCHED.case(
    "a hole, and a shorter end, over more pages than the kernel looks up at once gives all of them back and reads as"
    " zeroes, the rest stays",
    PUNCH,
    sizes=Sizes.BUDDY,
    pages=_MANY,
)
def over_many_pages(live: Live) -> None:
    file = new_memfd(live, pages=_MANY)
    memory = file.map(_MANY)
    for first, pages in ((0, _MANY), (1, _MANY - 2), (_LOOKED_UP, _LOOKED_UP + 1), (0, _LOOKED_UP + 1)):
        memory.fill()
        with live.about(f"a hole from page {first} on, over {pages} pages"):
            file.punch(pages, first)
            live.expect_pool(nr=_MANY, free=pages)
            _expect_kept(live, memory, [*range(first), *range(first + pages, _MANY)])
    for pages in (0, 1, _MANY - _LOOKED_UP - 1):
        memory.fill()
        with live.about(f"the first {pages} pages are left"):
            file.truncate(pages)
            live.expect_pool(nr=_MANY, free=_MANY - pages)
            file.truncate(_MANY)
            _expect_kept(live, memory, range(pages))


def _expect_kept(live: Live, memory: Memory, kept: Collection[int]) -> None:
    """Expect the first words of these pages to be as they were filled, and those of all others zero."""
    wanted = [1 + page * live.size if page in kept else 0 for page in range(memory.pages)]
    live.expect("what the pages begin with", wanted, [memory.read(page) for page in range(memory.pages)])


class PunchedFiles(LiveTest):
    def test_punched_files(self) -> None:
        self.run_area(PUNCHED)
