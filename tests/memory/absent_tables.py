"""Memory with page tables that are not there: what is done to a mapping is done to the pages far inside it, too.

Where there is no table, what it would cover is passed over (hugetlb_mask_last_page() in mm/hugetlb.c), and no more.
"""

import mmap
import os
import signal
from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import product

from hugepage_qa.cases.behind_absent_tables import see_behind_absent_tables
from hugepage_qa.cases.case import Area
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.hugetlb_of_a_process import expect_hugetlb, forked, moved_whole
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import PAGEMAP, PRESENT, Memory, read_entries
from hugepage_qa.cases.pages_in_memory import expect_in_memory
from hugepage_qa.cases.places import free_place, place_of_tables
from hugepage_qa.cases.process_counters import process_status
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault
from hugepage_qa.kernel.uapi import MADV_DONTNEED, MAP_FIXED_NOREPLACE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor
from hugepage_qa.sizes import GIB

ABSENT = Area("memory/absent-tables")
WALK = "mm/hugetlb.c hugetlb_mask_last_page()"
#: that a mapping spans, or a part of the first of them and the others: the first and the third are not there
_TABLES = 4
_FIRST, _LAST = 5, 6
#: base pages in front of a huge page and of it that one request asks for, at most of each
_ASKED = 512
#: bytes from which on mremap(2) may lose what it moves (move-length-truncated)
_LONGEST_MOVED = 4 * GIB


def with_absent_tables(
    live: Live, actor: Actor, *, shared: bool = False, fd: int | None = None, start: int = 0
) -> tuple[Memory, int, int]:
    """Return memory without a reservation, and its two touched pages: the first of a table, and the last of another.

    In front of each a whole table is not there, the even one of two; of the first the mapping has what comes from page
    ``start`` on. They hold ``_FIRST`` and ``_LAST``. Raises KnownBug where a kernel passes over them.
    """
    pages = live.mmu.table(live.size) // live.size
    table = pages * live.size
    place = place_of_tables(live, actor, _TABLES * table, 2 * table) + start * live.size
    flags = MAP_FIXED_NOREPLACE
    memory = live.map(_TABLES * pages - start, actor, shared=shared, noreserve=True, fd=fd, at=place, flags=flags)
    first, last = pages - start, memory.pages - 1
    memory.touch(first, _FIRST)
    memory.touch(last, _LAST)
    see_behind_absent_tables(live, memory, (first, last))
    return memory, first, last


def starts_in_a_table(live: Live) -> list[int]:
    """Return the pages of a table that a mapping is begun at: what is passed over ends with the table all the same."""
    pages = live.mmu.table(live.size) // live.size
    return sorted({0, 1, pages // 2, pages - 1})


def about_start(live: Live, start: int, shared: bool) -> AbstractContextManager[None]:
    """Have what is found in the block tell which part of the first table the mapping has."""
    return live.about(f"from page {start} of a table on, shared {shared}")


def expect_writable(live: Live, memory: Memory, touched: Sequence[int]) -> None:
    """Expect the two touched pages to be written, and to be free when their process ends."""
    for page in touched:
        memory.touch(page, 9)
    live.expect_pool(nr=2, free=0)
    memory.actor.end()
    live.expect_pool(nr=2, free=2)


def expect_held(live: Live, memory: Memory, first: int, last: int) -> None:
    """Expect the two touched pages to hold what they held."""
    live.expect("what the two pages hold", (_FIRST, _LAST), (memory.read(first), memory.read(last)))


@ABSENT.case(
    "a child has the pages that its parent has touched, wherever they stand, and no others",
    f"fork(2); {WALK}, copy_hugetlb_page_range()",
    pages=2,
)
def inherited(live: Live) -> None:
    for shared, start in product((True, False), starts_in_a_table(live)):
        with about_start(live, start, shared):
            memory, *touched = with_absent_tables(live, live.actor(), shared=shared, start=start)
            child = memory.fork() if shared else forked(live, memory, pages=2, apart=True)
            expect_held(live, child, *touched)
            live.expect_pool(nr=2, free=0)
            memory.actor.exit()
            expect_held(live, child, *touched)
            child.actor.end()
            live.expect_pool(nr=2, free=2)


@ABSENT.case(
    "a protection holds for all pages of a mapping, wherever they stand, and so does the end of it",
    f"mprotect(2); {WALK}, hugetlb_change_protection()",
    pages=2,
)
def protected(live: Live) -> None:
    for shared, start in product((False, True), starts_in_a_table(live)):
        with about_start(live, start, shared):
            memory, *touched = with_absent_tables(live, live.actor(), shared=shared, start=start)
            memory.protect(mmap.PROT_READ)
            for page in touched:
                live.expect_signal(signal.SIGSEGV, memory.touch, page, 9)
            expect_held(live, memory, *touched)
            memory.protect(0)
            for page in touched:
                live.expect_signal(signal.SIGSEGV, memory.read, page)
            memory.protect(READ_WRITE)
            expect_held(live, memory, *touched)
            expect_writable(live, memory, touched)


@ABSENT.case(
    "userfaultfd protects all pages of a mapping, wherever they stand, and those that are not there",
    "Documentation/admin-guide/mm/userfaultfd.rst Write Protect Notifications; mm/hugetlb.c"
    " hugetlb_change_protection()",
    since="5.19",
    pages=2,
)
def protected_by_the_program(live: Live) -> None:
    for start in starts_in_a_table(live):
        with about_start(live, start, shared=True):
            memory, *touched = with_absent_tables(live, live.actor(), shared=True, start=start)
            fault = Userfault(memory, Mode.WRITE_PROTECTED, Feature.WP_HUGETLBFS_SHMEM)
            fault.write_protect(length=memory.length)
            for page in (0, *touched):
                live.expect_signal(signal.SIGBUS, memory.touch, page, 9)
            expect_held(live, memory, *touched)
            fault.write_protect(on=False, length=memory.length)
            expect_writable(live, memory, touched)


@ABSENT.case(
    "MADV_DONTNEED and munmap(2) give all pages of a mapping back, wherever they stand",
    f"madvise(2); munmap(2); {WALK}, __unmap_hugepage_range()",
    since="5.18",
    pages=2,
)
def given_back(live: Live) -> None:
    for start in starts_in_a_table(live):
        with about_start(live, start, shared=False):
            memory, *touched = with_absent_tables(live, live.actor(), start=start)
            memory.advise(MADV_DONTNEED)
            expect_hugetlb(live, memory)
            live.expect_pool(nr=2, free=2)
            for page in touched:
                live.expect("what a page holds that was given back", 0, memory.read(page))
            live.expect_pool(nr=2, free=0)
            memory.unmap()
            live.expect("HugetlbPages", 0, process_status(live, memory.actor).hugetlb_pages)
            live.expect_pool(nr=2, free=2)


@ABSENT.case(
    "mremap(2) moves all pages of a mapping that begins within what a page table covers, wherever they stand, with what"
    " they hold to a place as far within another one, and leaves none behind",
    "mremap(2); mm/mremap.c; mm/hugetlb.c move_hugetlb_page_tables(), hugetlb_mask_last_page()",
    since="5.16",
    pages=2,
)
def moved(live: Live) -> None:
    table = live.mmu.table(live.size)
    if _TABLES * table > _LONGEST_MOVED:
        raise CannotRun("longer mappings, as those of several tables are here, have a bug of their own when they move")
    # from the start of a table on it is as long
    for start in starts_in_a_table(live)[1:]:
        with about_start(live, start, shared=False):
            memory, *touched = with_absent_tables(live, live.actor(), start=start)
            room = free_place(live, memory.actor, (_TABLES + 2) * table // live.size)
            target = -(-room // table) * table + start * live.size
            moved = moved_whole(live, memory, target, touched=2)
            expect_held(live, moved, *touched)
            expect_hugetlb(live, moved, private=2, apart=True)
            for page in touched:
                live.expect_signal(signal.SIGSEGV, memory.read, page)
            expect_writable(live, moved, touched)


@ABSENT.case(
    "a hole, and the new end of a shorter file, take the pages out of its mappings, wherever they stand",
    f"ftruncate(2); fallocate(2); {WALK}; fs/hugetlbfs/inode.c hugetlb_vmdelete_list()",
    pages=2,
)
def taken_out_of_a_file(live: Live) -> None:
    for start in starts_in_a_table(live):
        with about_start(live, start, shared=True):
            file = new_memfd(live)
            memory, *touched = with_absent_tables(live, file.actor, shared=True, fd=file.descriptor, start=start)
            first, last = touched
            expect_hugetlb(live, memory, private=2, apart=True)
            file.punch(last, first=1)
            expect_hugetlb(live, memory)
            live.expect_pool(nr=2, free=2)
            memory.touch(first, _FIRST)
            memory.touch(last, _LAST)
            expect_held(live, memory, first, last)
            file.truncate(1)
            expect_hugetlb(live, memory)
            live.expect_pool(nr=2, free=2)
            for page in touched:
                live.expect_signal(signal.SIGBUS, memory.read, page)
            live.expect_pool(nr=2, free=2)
            file.actor.end()


@ABSENT.case(
    "smaps, numa_maps, pagemap and status show all pages of a mapping, wherever they stand, and no others",
    "Documentation/filesystems/proc.rst smaps, status; mm/pagewalk.c walk_hugetlb_range()",
    pages=2,
)
def shown(live: Live) -> None:
    for start in starts_in_a_table(live):
        with about_start(live, start, shared=False):
            memory, *touched = with_absent_tables(live, live.actor(), start=start)
            expect_hugetlb(live, memory, private=2, apart=True)
            if live.nodes:
                live.expect("pages on nodes", 2, sum(memory.numa_maps().nodes.values()))
            beside = [page + step for page in touched for step in (-1, 0, 1) if page + step < memory.pages]
            entries = memory.pagemap(memory.at(page) for page in beside)
            there = [page for page, entry in zip(beside, entries, strict=True) if entry & PRESENT]
            live.expect("pages that pagemap shows", touched, there)
            live.expect_pool(nr=2, free=0)
            memory.actor.end()


@ABSENT.case(
    "mincore(2), and pagemap when it is read at once, tell of each base page of a hole without a table and of those"
    " behind it, each in its place",
    "mincore(2); Documentation/admin-guide/mm/pagemap.rst; mm/pagewalk.c walk_hugetlb_range(); mm/mincore.c"
    " mincore_unmapped_range(); fs/proc/task_mmu.c pagemap_pte_hole()",
    pages=2,
)
def told_in_their_places(live: Live) -> None:
    memory, *touched = with_absent_tables(live, live.actor())
    pagemap = live.open(memory.actor, PAGEMAP, os.O_RDONLY)
    count = min(live.size // live.base_page, _ASKED)
    # the last page that was touched has none behind it, and others of its table in front of it
    for page, before, there in product(touched, (1, 3, count), (1, count)):
        address = memory.at(page) - before * live.base_page
        with live.about(f"{before} base pages in front of page {page}, and {there} of it"):
            states = [*(False for _ in range(before)), *(True for _ in range(there))]
            expect_in_memory(live, memory.actor, address, states)
            entries = read_entries(memory.actor, pagemap, address // live.base_page, before + there)
            live.expect("whether pagemap shows them", states, [bool(entry & PRESENT) for entry in entries])
    live.expect_pool(nr=2, free=0)


class AbsentTables(LiveTest):
    def test_absent_tables(self) -> None:
        self.run_area(ABSENT)
