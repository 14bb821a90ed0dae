"""Memory that several processes map through one page table: what one of them does to its own mapping is its own."""

import mmap
import os
import signal
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.frames import kpagecount
from hugepage_qa.cases.hugetlb_files import HugeFile, new_memfd, open_again
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import FRAME, Memory
from hugepage_qa.cases.memory_policy import MOVE, MOVE_ALL, bind, node_of
from hugepage_qa.cases.places import (
    free_place,
    memory_of_one_table,
    ordinary_memory,
    place_of_a_table,
    place_of_tables,
)
from hugepage_qa.cases.process_counters import process_status
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault
from hugepage_qa.kernel.uapi import MADV_DONTNEED, MAP_FIXED, MAP_FIXED_NOREPLACE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.sizes import GIB, KIB

SHARED_TABLES = Area("memory/shared-tables")
SHARED = "mm/hugetlb.c huge_pmd_share(), huge_pmd_unshare()"
#: what is as long a kernel with this bug takes for shorter when it moves it
_CUT_OFF = 4 * GIB


def of_two_processes(live: Live, file: HugeFile | None = None) -> tuple[Memory, Memory]:
    """Return memory as two processes see it through one page table; its first page is there, and holds 1.

    It is anonymous, or that of ``file``.
    """
    ours = memory_of_one_table(live, file.actor, file.descriptor) if file else memory_of_one_table(live)
    ours.touch()
    theirs = ours.fork()
    # a fork leaves the table to the first access
    live.expect("what the other process sees", 1, theirs.read())
    return ours, theirs


@SHARED_TABLES.case("what one process touches the other one sees, and the last one takes it away", SHARED, pages=2)
def contents_and_end(live: Live) -> None:
    for order in (1, -1):
        both = of_two_processes(live)
        for writer, reader in (both, both[::-1]):
            writer.touch(1, writer.actor.pid)
            live.expect("what the other process sees", writer.actor.pid, reader.read(1))
        live.expect_pool(nr=2, free=0)
        first, last = both[::order]
        first.actor.exit()
        live.expect("what is left", both[1].actor.pid, last.read(1))
        live.expect_pool(nr=2, free=0)
        last.actor.end()
        live.expect_pool(nr=2, free=2)


@SHARED_TABLES.case(
    "two processes map a page by one table, in which it is mapped once, until one of them has no longer mapped all that"
    " the table covers",
    f"{SHARED}; Documentation/admin-guide/mm/pagemap.rst kpagecount",
    pages=2,
)
def mapped_once(live: Live) -> None:
    _need_shared_tables(live)
    ours, theirs = of_two_processes(live)
    theirs.touch(1, 2)
    live.expect("what the first process sees", 2, ours.read(1))
    entries = ours.pagemap((ours.address, ours.at(1)))
    frames = [entry & FRAME for entry in entries]
    live.expect("places where the pages are mapped", [1, 1], kpagecount(live, ours.actor, frames))
    theirs.unmap(theirs.pages - 1)
    live.expect("what the other process sees", 1, theirs.read())
    live.expect("places where the first is mapped then", [2], kpagecount(live, ours.actor, frames[:1]))
    live.expect_pool(nr=2, free=0)


@SHARED_TABLES.case(
    "a page of a file is mapped once in the table of all processes that may do the same with it: read and write it, or"
    " read it alone, of a file that was opened for both or to be read, whether they were forked or have opened it each",
    f"{SHARED}, hugetlb_vma_lock_alloc(); Documentation/admin-guide/mm/pagemap.rst kpagecount",
    pages=1,
)
def mapped_once_whatever_is_allowed(live: Live) -> None:
    _need_shared_tables(live)
    # it keeps the page, and maps it no longer: what is mapped to be read alone would bring zeroes
    file = new_memfd(live, pages=live.mmu.table(live.size) // live.size)
    writer = file.map(1)
    writer.touch(value=7)
    writer.unmap()
    for opened, prot in ((os.O_RDWR, READ_WRITE), (os.O_RDWR, mmap.PROT_READ), (os.O_RDONLY, mmap.PROT_READ)):
        for is_forked in (True, False):
            with live.about(f"opened with flags {opened}, protection {prot}, forked {is_forked}"):
                ours = _mapped_by_itself(live, file, opened, prot)
                live.expect("what the first process sees", 7, ours.read())
                theirs = ours.fork() if is_forked else _mapped_by_itself(live, file, opened, prot)
                live.expect("what the other process sees", 7, theirs.read())
                frames = [entry & FRAME for entry in ours.pagemap([ours.address])]
                live.expect("places where the page is mapped", [1], kpagecount(live, ours.actor, frames))
                ours.actor.exit()
                live.expect("what is left for the other process", 7, theirs.read())
                live.expect("places where it is mapped then", [1], kpagecount(live, theirs.actor, frames))
                theirs.actor.end()
    live.expect_pool(nr=1, free=0)


def _need_shared_tables(live: Live) -> None:
    if not live.mmu.may_be_shared(live.size):
        raise CannotRun("page tables are not shared on this architecture")


def _mapped_by_itself(live: Live, file: HugeFile, flags: int, prot: int) -> Memory:
    """Return the file as a new process has it by one page table, which has opened it with ``flags``."""
    again = open_again(live, file, flags=flags)
    return memory_of_one_table(live, again.actor, again.descriptor, prot)


@SHARED_TABLES.case(
    "of a mapping that begins before what a table covers, or ends behind it, processes share that table, whether they"
    " were forked or have mapped as much of the file or not, and none of what is covered in part",
    f"{SHARED}, want_pmd_share(), page_table_shareable(); Documentation/admin-guide/mm/pagemap.rst kpagecount",
    pages=4,
)
def mapped_once_within_a_mapping(live: Live) -> None:
    _need_shared_tables(live)
    # what a table covers, and a page on either side
    covered = live.mmu.table(live.size) // live.size
    file = new_memfd(live, pages=covered + 2)
    for page in _touched(covered):
        writer = file.map(1, first=page)
        writer.touch(value=1 + page)
        writer.unmap()
    ranges = [*product((0, 1), (covered + 1, covered + 2))]
    for (first, end), other in product(ranges, (None, *ranges)):
        how = "by a fork" if other is None else f"pages {other[0]} to {other[1]} by another process"
        with live.about(f"pages {first} to {end} of the file are mapped, {how}"):
            ours = _mapped_around_a_table(live, file, first, end)
            seen = _frames_seen(live, ours, first, covered)
            theirs = ours.fork() if other is None else _mapped_around_a_table(live, file, *other)
            also = _frames_seen(live, theirs, first if other is None else other[0], covered)
            frames = seen | also
            times = {page: 1 if 0 < page <= covered else (page in seen) + (page in also) for page in frames}
            found = dict(zip(frames, kpagecount(live, ours.actor, frames.values()), strict=True))
            live.expect("places where each page is mapped", times, found)
            for each in (theirs, ours):
                each.actor.end()
    live.expect_pool(nr=4, free=0)


def _touched(covered: int) -> tuple[int, ...]:
    """Return which pages of a file are there: on both sides of both ends of what a table covers."""
    return 0, 1, covered, covered + 1


def _mapped_around_a_table(live: Live, file: HugeFile, first: int, end: int) -> Memory:
    """Return pages of the file as a new process maps them, of which page 1 begins what a table covers."""
    again = open_again(live, file)
    table = live.mmu.table(live.size)
    place = place_of_tables(live, again.actor, 3 * table, table) + table + (first - 1) * live.size
    return again.map(end - first, first=first, noreserve=True, flags=MAP_FIXED_NOREPLACE, at=place)


def _frames_seen(live: Live, memory: Memory, first: int, covered: int) -> dict[int, int]:
    """Return the frame of each page of the file that is there and that ``memory``, page ``first`` of it on, reads."""
    pages = [page for page in _touched(covered) if first <= page < first + memory.pages]
    found = [memory.read(page - first) for page in pages]
    live.expect("what the process sees", [1 + page for page in pages], found)
    entries = memory.pagemap([memory.at(page - first) for page in pages])
    return {page: entry & FRAME for page, entry in zip(pages, entries, strict=True)}


@SHARED_TABLES.case(
    "mbind(2) of one process moves no page that another one has by the same table, unless it is to move all",
    f"mbind(2) MPOL_MF_MOVE, MPOL_MF_MOVE_ALL; {SHARED}; mm/mempolicy.c queue_folios_hugetlb()",
    nodes=2,
    sizes=Sizes.BUDDY,
)
def moved_by_a_policy(live: Live) -> None:
    nodes = live.nodes[:2]
    for node in nodes:
        live.reserve(2, node)
    both = of_two_processes(live)
    for mover in both:
        home = node_of(mover)
        away = next(node for node in nodes if node != home)
        for flags, node in ((MOVE, home), (MOVE_ALL, away)):
            with live.about(f"flags {flags:#x}"):
                bind(mover, [away], flags)
                # who moved it has it by no table any more
                for each in both:
                    live.expect("what the page holds", 1, each.read())
                live.expect("node of the page", node, node_of(mover))


@SHARED_TABLES.case(
    "memory that one process made read-only stays so for it, when the other one has written it, too",
    f"mprotect(2); {SHARED} (dff11abe280b), hugetlb_change_protection()",
    pages=2,
)
def protection(live: Live) -> None:
    ours, theirs = of_two_processes(live)
    ours.touch(1, 2)
    ours.protect(mmap.PROT_READ)
    for page, value in enumerate((5, 6)):
        theirs.touch(page, value)
        live.expect_signal(signal.SIGSEGV, ours.touch, page, 9)
        live.expect("what was written", value, ours.read(page))
    theirs.protect(0)
    live.expect_signal(signal.SIGSEGV, theirs.read)
    live.expect("what the process sees that may read", 5, ours.read())
    live.expect_pool(nr=2, free=0)


@SHARED_TABLES.case(
    "a part that one process unmaps, or gives back, is there for the other one, and again for the first",
    f"munmap(2); madvise(2) MADV_DONTNEED; {SHARED}, hugetlb_split() (081056dc00a2), __unmap_hugepage_range()",
    pages=2,
    since="5.18",  # MADV_DONTNEED
)
def parts(live: Live) -> None:
    ours, theirs = of_two_processes(live)
    theirs.touch(1, 2)
    ours.advise(MADV_DONTNEED, 0, 1)
    theirs.touch(0, 3)
    live.expect("what the first process sees", (3, 2), (ours.read(0), ours.read(1)))
    ours.unmap(1, ours.pages - 1)
    live.expect_signal(signal.SIGSEGV, ours.read, 1)
    live.expect("what the other process sees", (3, 2), (theirs.read(0), theirs.read(1)))
    theirs.touch(0, 4)
    live.expect("what is left for the first process", 4, ours.read())
    live.expect_pool(nr=2, free=0)


@SHARED_TABLES.case(
    "memory that one process moves, to a free place or in place of another mapping of the file, is at its new place for"
    " it, where it was for the other one, and the same memory",
    f"mremap(2); {SHARED}, move_hugetlb_page_tables()",
    pages=2,
    since="5.16",
)
def moved(live: Live) -> None:
    _need_length_that_moves(live)
    for replaces in (False, True):
        file = new_memfd(live, pages=live.mmu.table(live.size) // live.size)
        ours, theirs = of_two_processes(live, file)
        place = _place_of_two_tables(live, ours)
        if replaces:
            live.map(ours.pages, ours.actor, shared=True, noreserve=True, fd=file.descriptor, at=place, flags=MAP_FIXED)
        there = ours.moved_to(place)
        with live.about(f"in place of another mapping {replaces}"):
            live.expect_signal(signal.SIGSEGV, ours.read)
            live.expect("what is where it was moved", 1, there.read())
            for page, (writer, reader) in enumerate(((theirs, there), (there, theirs))):
                writer.touch(page, 5)
                live.expect("what the other process sees", 5, reader.read(page))
            live.expect_pool(nr=2, free=0)
            there.unmap()
            live.expect("what is left", (5, 5), (theirs.read(0), theirs.read(1)))
            live.expect_pool(nr=2, free=0)
        file.actor.end()
        live.expect_pool(nr=2, free=2)


def _place_of_two_tables(live: Live, memory: Memory) -> int:
    """Return a free place for ``memory`` where its page table could not be shared: moved_alone() has the others."""
    place = free_place(live, memory.actor, memory.pages + 1)
    return place if place % live.mmu.table(live.size) else place + live.size


def _need_length_that_moves(live: Live) -> None:
    """Raise CannotRun where memory of one page table is so long that this kernel takes it for shorter."""
    if live.mmu.table(live.size) >= _CUT_OFF and live.has_bug(Quirk.MOVE_LENGTH_TRUNCATED):
        raise CannotRun(
            f"a page table is for {_CUT_OFF >> 30} GiB or more: /memory/mremap/moved-4-gib tells what moves them"
        )


@SHARED_TABLES.case(
    "memory whose page table no other process has yet moves to where its table could be shared",
    f"mremap(2); {SHARED}, move_hugetlb_page_tables()",
    pages=1,
    since="5.16",
)
def moved_alone(live: Live) -> None:
    quirk = Quirk.MOVE_WAITS_FOR_ITSELF
    if live.mmu.may_be_shared(live.size) and live.has_bug(quirk):
        # "hugepage-qa reproduce" shows it, on a machine that is thrown away
        raise CannotRun(f"{quirk.value}, a known bug of this kernel, leaves a process that nothing ends")
    _need_length_that_moves(live)
    ours = memory_of_one_table(live)
    ours.touch()
    there = ours.moved_to(place_of_a_table(live, ours.actor))
    live.expect("what is where it was moved", 1, there.read())
    live.expect_pool(nr=1, free=0)
    there.unmap()
    live.expect_pool(nr=1, free=1)


@SHARED_TABLES.case(
    "what one process has protected by userfaultfd the other one writes",
    f"{SHARED}, hugetlb_unshare_all_pmds(), since 6dfeaff93be1",
    pages=1,
    since="5.19",
)
def userfault(live: Live) -> None:
    ours, theirs = of_two_processes(live)
    fault = Userfault(ours, Mode.WRITE_PROTECTED, Feature.WP_HUGETLBFS_SHMEM)
    fault.write_protect()
    theirs.touch(0, 5)
    live.expect_signal(signal.SIGBUS, ours.touch, 0, 6)
    live.expect("what both see", (5, 5), (ours.read(), theirs.read()))
    fault.write_protect(on=False)
    ours.touch(0, 7)
    live.expect("what the other process sees", 7, theirs.read())
    live.expect_pool(nr=1, free=0)


@SHARED_TABLES.case(
    "VmPTE counts a table for each process that maps it, and for none that has unmapped it",
    f"Documentation/filesystems/proc.rst VmPTE; {SHARED} mm_inc_nr_pmds(), mm_dec_nr_pmds()",
    pages=1,
)
def counted_tables(live: Live) -> None:
    def tables(memory: Memory) -> int:
        return process_status(live, memory.actor).page_tables

    ours = memory_of_one_table(live)
    # who reads, writes and unmaps has the tables for his own text then
    other = ordinary_memory(live, ours.actor, 2)
    other.fill()
    other.unmap(1, 1)
    before = tables(ours)
    ours.touch()
    table = tables(ours) - before
    theirs = ours.fork()
    # a child lacks tables of files that its parent has touched (mm/memory.c vma_needs_copy())
    live.expect("what the other process sees of other memory", 1, other.seen_by(theirs.actor).read())
    without = tables(theirs)
    live.expect("what the other process sees", 1, theirs.read())
    live.expect("VmPTE of the process that came to the table", without + table, tables(theirs))
    for memory, wanted in ((ours, before), (theirs, without)):
        memory.unmap()
        live.expect("VmPTE without the mapping", wanted, tables(memory))
    live.expect_pool(nr=1, free=1)


@SHARED_TABLES.case(
    "HugetlbPages of each process is what it has mapped by a table, whoever touched it, and 0 when it has unmapped"
    " that, whoever is the last one",
    f"Documentation/filesystems/proc.rst HugetlbPages; {SHARED}; include/linux/hugetlb.h hugetlb_count_add(),"
    " hugetlb_count_sub(), since 5d317b2b6536",
    pages=2,
)
def counted_pages(live: Live) -> None:
    for order in (1, -1):
        both = of_two_processes(live)
        both[1].touch(1, 2)
        live.expect("what the first process sees", 2, both[0].read(1))
        found = [process_status(live, each.actor).hugetlb_pages for each in both]
        for each in both[::order]:
            each.unmap()
            found.append(process_status(live, each.actor).hugetlb_pages)
        # each has the page counted that it touched, and both are taken off the last one, which has one page too few
        counted = [live.size, live.size, live.size, (KIB << 64) - live.size]
        live.expect(
            "HugetlbPages of both, and of the first and the last one that has unmapped the table",
            [2 * live.size, 2 * live.size, 0, 0],
            found,
            {Quirk.SHARED_TABLE_UNCOUNTED: counted},
        )
        for each in both:
            each.actor.end()
        live.expect_pool(nr=2, free=2)


class SharedTables(LiveTest):
    def test_shared_tables(self) -> None:
        self.run_area(SHARED_TABLES)
