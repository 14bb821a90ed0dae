"""What hugetlb pages hold when anything is done to them, in any order: a model says what that is, and whose they are.

The operations are drawn, the same in each run, as those on transparent huge pages are (tests/thp/mixed_operations.py).
Who maps, protects, moves or gives back a page meets what earlier operations have left of it, in each process.
"""

from random import Random

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import HugeFile, new_memfd
from hugepage_qa.cases.hugetlb_program import HugetlbProgram
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.modelled_pages import MOST_PROCESSES
from hugepage_qa.cases.pages_of_a_node import reserve_on_all
from hugepage_qa.oracle.rules import HUGETLB_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

ANY_ORDER = Area("memory/in-any-order", sizes=Sizes.BUDDY)

SOURCE = (
    f"{HUGETLB_DOC}; madvise(2); mprotect(2); mremap(2); fork(2); move_pages(2); mm/hugetlb.c hugetlb_fault(),"
    " hugetlb_wp(), move_hugetlb_page_tables(), copy_hugetlb_page_range()"
)
_SINCE = "5.18"  # MADV_DONTNEED of hugetlb pages
_PAGES = 5
_PROGRAMS = 3
_OPERATIONS = 80
_LOOK_AFTER = 8


@ANY_ORDER.case(
    "private hugetlb pages hold what was written there last, for each process its own, zeroes where they were given"
    " back or mapped anew; a process has the pages that it reached, and the pool is without these alone, whatever is"
    " done to them in any order",
    SOURCE,
    since=_SINCE,
)
def private(live: Live) -> None:
    for number in range(_PROGRAMS):
        _have_pages(live)
        _run(live, live.map(_PAGES, noreserve=True), number)


@ANY_ORDER.case(
    "hugetlb pages of a file hold for all processes what one of them wrote there last, zeroes where a hole was made;"
    " a process has those that it reached, and the pool is without those of the file, whatever is done to them in any"
    " order",
    SOURCE,
    since=_SINCE,
)
def of_a_file(live: Live) -> None:
    for number in range(_PROGRAMS, 2 * _PROGRAMS):
        _have_pages(live)
        file = new_memfd(live, pages=_PAGES)
        _run(live, file.map(_PAGES, noreserve=number == _PROGRAMS), number, file)


def _have_pages(live: Live) -> None:
    """Have so many pages on each node that none is ever missing, wherever all of them are moved."""
    reserve_on_all(live, _PAGES * (MOST_PROCESSES + 1))


def _run(live: Live, memory: Memory, number: int, file: HugeFile | None = None) -> None:
    with live.about(f"program {number}"):
        random = Random(number)  # noqa: S311 - what is done, no secret
        HugetlbProgram(live, memory, random, file).run(_OPERATIONS, _LOOK_AFTER)


class MemoryInAnyOrder(LiveTest):
    def test_in_any_order(self) -> None:
        self.run_area(ANY_ORDER)
