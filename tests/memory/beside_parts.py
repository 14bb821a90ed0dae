"""What is done to a part of huge pages leaves those beside it mapped, as far as a shared page table could reach."""

import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import HugeFile, new_memfd
from hugepage_qa.cases.hugetlb_of_a_process import seeming_shared
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import PRESENT, Memory
from hugepage_qa.cases.places import free_place
from hugepage_qa.cases.process_counters import process_status
from hugepage_qa.kernel.uapi import MADV_DONTNEED, MADV_DONTNEED_LOCKED, MAP_FIXED, MAP_FIXED_NOREPLACE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest

BESIDE_PARTS = Area("memory/beside-parts", sizes=Sizes.BUDDY)

SHARED = "mm/hugetlb.c adjust_range_if_pmd_sharing_possible(), huge_pmd_unshare()"
SHOWN = "Documentation/admin-guide/mm/pagemap.rst; Documentation/filesystems/proc.rst Private_Hugetlb, HugetlbPages"
CALLS = "madvise(2) MADV_DONTNEED, MADV_REMOVE; munmap(2); mprotect(2); mremap(2); mmap(2) MAP_FIXED"
#: pages that are there: one before the table, four in it, and one behind it
_THERE = 6


@dataclass(frozen=True)
class _Act:
    """What is done to ``pages`` pages of memory from ``first`` on, which is unmapped for it or stays mapped."""

    name: str
    do: Callable[[Live, HugeFile, Memory, int, int], None]
    unmaps: bool = True
    #: for all that have it
    of_the_file: bool = False


def _advise(advice: int) -> Callable[[Live, HugeFile, Memory, int, int], None]:
    return lambda _live, _file, memory, first, pages: memory.advise(advice, first, pages)


def _punch(_live: Live, file: HugeFile, _memory: Memory, first: int, pages: int) -> None:
    file.punch(pages, first)


def _unmap(_live: Live, _file: HugeFile, memory: Memory, first: int, pages: int) -> None:
    memory.unmap(first, pages)


def _protect(_live: Live, _file: HugeFile, memory: Memory, first: int, pages: int) -> None:
    memory.protect(mmap.PROT_READ, first, pages)


def _move(live: Live, _file: HugeFile, memory: Memory, first: int, pages: int) -> None:
    memory.part(first, pages).moved_to(free_place(live, memory.actor, pages))


def _replace(live: Live, _file: HugeFile, memory: Memory, first: int, pages: int) -> None:
    live.map(pages, memory.actor, noreserve=True, at=memory.at(first), flags=MAP_FIXED)


_ACTS = (
    _Act("MADV_DONTNEED", _advise(MADV_DONTNEED)),
    _Act("MADV_DONTNEED_LOCKED", _advise(MADV_DONTNEED_LOCKED)),
    _Act("munmap()", _unmap),
    _Act("mprotect()", _protect, unmaps=False),
    _Act("mremap()", _move),
    _Act("another mapping in its place", _replace),
    _Act("MADV_REMOVE", _advise(mmap.MADV_REMOVE), of_the_file=True),
    _Act("a hole in the file", _punch, of_the_file=True),
)


@BESIDE_PARTS.case(
    "what a process does to some pages of its mapping, private or shared, at the start of a page table, in it, at its"
    " end or across it, leaves all pages beside them mapped, though another process could have shared the table: they"
    " are present in pagemap, and counted in smaps and as HugetlbPages, without being touched again, and hold what they"
    " held",
    f"{CALLS}; {SHOWN}; {SHARED}",
    pages=_THERE,
    since="5.18",  # MADV_DONTNEED
)
def of_one_process(live: Live) -> None:
    for act, is_shared in product(_acts(live), (True, False)):
        if act.of_the_file and not is_shared:
            continue
        for first, pages in _parts(live):
            with live.about(f"{act.name} of {pages} pages from {first} on, shared {is_shared}"):
                file, memory = _memory_around_a_table(live, is_shared=is_shared)
                there = _there(live)
                _expect_present(live, memory, there, "before")
                act.do(live, file, memory, first, pages)
                beside = [page for page in there if page not in range(first, first + pages)]
                left = beside if act.unmaps else there
                _expect_present(live, memory, left, "afterwards")
                # of a part that moved they are elsewhere
                counted = len(there) if act.name == "mremap()" else len(left)
                found = process_status(live, memory.actor).hugetlb_pages
                live.expect("HugetlbPages", counted * live.size, found)
                shown = sum(each.private_hugetlb for each in memory.all_mappings())
                seeming = seeming_shared(live, map(memory.at, left), shown)
                live.expect("Private_Hugetlb", len(left) * live.size, shown, seeming)
                _expect_values(live, memory, beside)
            memory.actor.end()
            live.expect_pool(nr=_THERE, free=_THERE)


@BESIDE_PARTS.case(
    "what one process does to some pages of a page table that another one shares leaves all of them mapped for the"
    " other, unless they are removed from the file, and those of other tables for both; both see what the pages beside"
    " them hold",
    f"{CALLS}; {SHOWN}; {SHARED}",
    pages=_THERE,
    since="5.18",
)
def of_two_processes(live: Live) -> None:
    for act, is_the_child in product(_acts(live), (False, True)):
        for first, pages in _parts(live):
            with live.about(f"{act.name} of {pages} pages from {first} on, by {'a child' if is_the_child else 'one'}"):
                file, ours = _memory_around_a_table(live, is_shared=True)
                theirs = ours.fork()
                there = _there(live)
                # a fork leaves shared memory to the first access
                _expect_values(live, theirs, there)
                acting, other = (theirs, ours) if is_the_child else (ours, theirs)
                of_acting = HugeFile(live, acting.actor, file.descriptor)
                act.do(live, of_acting, acting, first, pages)
                part = range(first, first + pages)
                beside = [page for page in there if page not in part]
                outside = [page for page in beside if page in (there[0], there[-1])]
                # whoever loses pages of a shared table leaves it, and comes to the others when it touches them
                for memory, kept in ((acting, outside), (other, outside if act.of_the_file else there)):
                    found = [page for page in _present(live, memory) if page in kept]
                    who = "who did it" if memory is acting else "the other process"
                    live.expect(f"pages that are present for {who}", kept, found)
                for memory in (acting, other):
                    _expect_values(live, memory, beside)
            ours.actor.end()
            live.expect_pool(nr=_THERE, free=_THERE)


def _acts(live: Live) -> Iterator[_Act]:
    for act in _ACTS:
        # see /memory/shared-tables/moved-alone: it leaves a process that nothing ends
        if act.name != "mremap()" or not live.has_bug(Quirk.MOVE_WAITS_FOR_ITSELF):
            yield act


def _table(live: Live) -> int:
    """Return how many pages one page table has."""
    return live.mmu.table(live.size) // live.size


def _there(live: Live) -> list[int]:
    """Return which pages are there: page 1 is the first one of the table."""
    end = _table(live)
    return [0, 1, 2, 3, end, end + 1]


def _parts(live: Live) -> tuple[tuple[int, int], ...]:
    """Return first page and number of pages of parts: one at the start, in and at the end of a table, across both."""
    end = _table(live)
    return (1, 1), (2, 1), (end, 1), (0, 2), (end, 2)


def _memory_around_a_table(live: Live, *, is_shared: bool) -> tuple[HugeFile, Memory]:
    """Map all of a page table, a page before it and one behind it, and touch some; a file has them if they are shared.

    Raises CannotRun where a table has fewer pages than that.
    """
    pages = _table(live)
    if pages <= _THERE:
        raise CannotRun(f"page tables have {pages} entries")
    file = new_memfd(live, pages=pages + 2)
    room = live.map(3 * pages, file.actor, noreserve=True)
    room.unmap()
    table = pages * live.size
    place = -(-(room.address + live.size) // table) * table - live.size
    memory = live.map(
        pages + 2,
        file.actor,
        shared=is_shared,
        noreserve=True,
        fd=file.descriptor if is_shared else None,
        at=place,
        flags=MAP_FIXED_NOREPLACE,
    )
    for page in _there(live):
        memory.touch(page, 1 + page)
    return file, memory


def _present(live: Live, memory: Memory) -> list[int]:
    """Return which of the pages that were touched are present in pagemap."""
    pages = _there(live)
    entries = memory.pagemap(memory.at(page) for page in pages)
    return [page for page, entry in zip(pages, entries, strict=True) if entry & PRESENT]


def _expect_present(live: Live, memory: Memory, expected: list[int], where: str) -> None:
    """Expect these pages to be present, and no others. Raises Failed: what else is shown is wrong then, too."""
    found = _present(live, memory)
    if found != expected:
        live.fail(f"pages that are present {where}", expected, found)


def _expect_values(live: Live, memory: Memory, pages: list[int]) -> None:
    live.expect("what the pages hold", [1 + page for page in pages], [memory.read(page) for page in pages])


class BesideParts(LiveTest):
    def test_beside_parts(self) -> None:
        self.run_area(BESIDE_PARTS)
