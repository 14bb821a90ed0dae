"""The hugetlb controller of control groups: what each page of a file is charged to whom, through holes and its end."""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import cycle, product

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.control_group import Version, keeping_hierarchy
from hugepage_qa.cases.hugetlb_files import HugeFile, new_memfd, open_file
from hugepage_qa.cases.hugetlb_group import HUGETLB_CGROUP, V1_DOC, HugetlbGroup, hugetlb_case
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.kernel.uapi import AT_FDCWD
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Refused

VERSION_1 = Area("cgroup/file-charges-v1", around=keeping_hierarchy("hugetlb"))
VERSION_2 = Area("cgroup/file-charges-v2")
case = partial(hugetlb_case, {Version.ONE: VERSION_1, Version.TWO: VERSION_2})

SOURCE = (
    f"{V1_DOC} Reservation accounting; {HUGETLB_CGROUP} hugetlb_cgroup_uncharge_file_region(); mm/hugetlb.c"
    " region_del(), copy_hugetlb_cgroup_uncharge_info()"
)
_PAGES = 4
#: first page and number: one between others, at either end, over the border of two groups, and all
_HOLES = ((1, 1), (2, 1), (0, 1), (3, 1), (1, 2), (0, 3), (0, 4))
#: the same of what is mapped before other pages are: at either end, in the middle and all
_MAPPED_BEFORE = ((0, 1), (1, 2), (2, 2), (0, 4))


class ChargedFile:
    """A file of ``_PAGES`` pages, and whom each page of it is charged to: as reserved, and as used.

    A mapping charges its group for each page that nobody has reserved. A touch charges the group of who touches, for a
    reservation, too, where there is none. A hole and a shorter file take both from the pages that they take out of the
    file; a hole leaves reservations for pages that nobody has touched (remove_inode_hugepages()), a shorter file does
    not.
    """

    def __init__(self, live: Live, file: HugeFile, groups: Iterable[HugetlbGroup]) -> None:
        self._live = live
        self._file = file
        self._groups = list(groups)
        self._reserved = dict[int, HugetlbGroup]()
        self._used = dict[int, HugetlbGroup]()
        file.truncate(_PAGES)

    def reserved_with(self, group: HugetlbGroup, first: int, pages: int) -> int:
        """Return for how many reservations ``group`` is charged once it has mapped pages."""
        charged = dict.fromkeys(range(first, first + pages), group) | self._reserved
        return list(charged.values()).count(group)

    def map(self, group: HugetlbGroup, first: int, pages: int, *, noreserve: bool = False) -> Memory:
        """Have a new process of ``group`` map pages."""
        process = self._file.actor.fork()
        group.add(process)
        if not noreserve:
            for page in range(first, first + pages):
                self._reserved.setdefault(page, group)
        return self._live.map(pages, process, fd=self._file.descriptor, first=first, shared=True, noreserve=noreserve)

    def touch(self, group: HugetlbGroup, memory: Memory, first: int, pages: Iterable[int]) -> None:
        """Have a process of ``group`` touch ``pages`` of the file in ``memory``, which begins at page ``first``."""
        for page in pages:
            memory.touch(page - first)
            self._use(group, page)

    def allocate(self, group: HugetlbGroup, first: int, pages: int) -> None:
        """Have a new process of ``group`` allocate pages (fallocate(2))."""
        process = self._file.actor.fork()
        group.add(process)
        HugeFile(self._live, process, self._file.descriptor).allocate(pages, first)
        for page in range(first, first + pages):
            self._use(group, page)
        process.end()

    def punch(self, first: int, pages: int) -> None:
        """Make a hole."""
        self._file.punch(pages, first)
        self._forget(page for page in range(first, first + pages) if page in self._used)

    def truncate(self, pages: int) -> None:
        """Make the file shorter."""
        self._file.truncate(pages)
        self._forget(range(pages, _PAGES))

    def expect(self) -> None:
        """Expect each group to be charged for its pages."""
        for number, group in enumerate(self._groups):
            reserved, used = (list(one.values()).count(group) for one in (self._reserved, self._used))
            with self._live.about(f"group {number}"):
                group.expect(usage=used, reserved=reserved)
        self._live.expect_pool(nr=_PAGES, free=_PAGES - len(self._used), resv=len(self._reserved) - len(self._used))

    def _use(self, group: HugetlbGroup, page: int) -> None:
        if page not in self._used:
            self._used[page] = group
            self._reserved.setdefault(page, group)

    def _forget(self, pages: Iterable[int]) -> None:
        for page in list(pages):
            self._used.pop(page, None)
            self._reserved.pop(page, None)


@case(
    "a hole takes from each group what it was charged for the pages in it, and for no other; what is before and behind"
    " it stays charged until the file ends before it or is gone, and then no more",
    SOURCE,
    pages=_PAGES,
)
def holes_in_files(live: Live, group: HugetlbGroup) -> None:
    first, second = group.child("first"), group.child("second")
    # gigantic pages take seconds each
    holes = _HOLES[:3] if live.is_gigantic else _HOLES
    for is_shared, ends in ((False, cycle(_ENDS)), (True, cycle(reversed(_ENDS)))):
        for (start, pages), (make, end) in zip(holes, ends, strict=False):
            with live.about(f"{pages} pages from {start} on, of two groups {is_shared}, {end.__name__}"):
                descriptor, path = make(live)
                file = ChargedFile(live, descriptor, (first, second))
                half = _PAGES // 2
                ours = file.map(first, 0, half if is_shared else _PAGES)
                theirs = file.map(second, half, half) if is_shared else ours
                owner = second if is_shared else first
                file.expect()
                hole = range(start, start + pages)
                file.touch(first, ours, 0, (page for page in hole if page < half))
                file.touch(owner, theirs, half if is_shared else 0, (page for page in hole if page >= half))
                file.expect()
                file.punch(start, pages)
                file.expect()
                # nothing is there to be taken
                file.punch(0, _PAGES)
                file.expect()
                for memory in (ours, theirs) if is_shared else (ours,):
                    memory.actor.end()
                file.expect()
                end(live, file, descriptor, path)
                for each in (first, second, group):
                    each.expect(usage=0, reserved=0)
                live.expect_pool(nr=_PAGES, free=_PAGES)


@case(
    "a page that is touched or allocated where none was reserved is charged to whose process that was, in a hole"
    " between the pages of others, too, and to nobody when it is gone",
    f"{SOURCE}; mm/hugetlb.c alloc_hugetlb_folio(), deferred_reserve; fs/hugetlbfs/inode.c hugetlbfs_fallocate()",
    pages=_PAGES,
)
def holes_that_others_fill(live: Live, group: HugetlbGroup) -> None:
    first, second = group.child("first"), group.child("second")
    for allocates in (True, False):
        with live.about(f"allocated {allocates}"):
            descriptor = new_memfd(live)
            file = ChargedFile(live, descriptor, (first, second))
            memory, other = file.map(first, 0, 3), file.map(second, 0, _PAGES, noreserve=True)
            file.touch(first, memory, 0, (1,))
            file.punch(1, 1)
            file.expect()
            if allocates:
                file.allocate(second, 1, 1)
                file.allocate(second, 3, 1)
            else:
                file.touch(second, other, 0, (1, 3))
            file.expect()
            # a page that is reserved is charged as such to who reserved it, whoever touches it
            file.touch(second, other, 0, (2,))
            file.expect()
            file.punch(2, 2)
            file.expect()
            file.truncate(1)
            file.expect()
            for one in (memory, other):
                one.actor.end()
            file.truncate(0)
            file.expect()
            descriptor.actor.end()


@case(
    "pages of a file that are mapped once more, by whom it may be, are charged to nobody again, also where the limit is"
    " reached, and those beside them to who maps them; all stay charged when mappings go, until the file does",
    f"{SOURCE}; mm/hugetlb.c hugetlb_reserve_pages(), region_chg(), region_add()",
    pages=_PAGES,
)
def files_mapped_again(live: Live, group: HugetlbGroup) -> None:
    groups = group.child("first"), group.child("second")
    every = [(first, pages) for first in range(_PAGES) for pages in range(1, _PAGES - first + 1)]
    for before, again in product(_MAPPED_BEFORE, every):
        with live.about(f"first page and number {before}, then {again}"):
            descriptor = new_memfd(live)
            file = ChargedFile(live, descriptor, groups)
            mapped = list[Memory]()
            for one, pages in ((groups[0], before), (groups[1], again), (groups[0], again)):
                one.limit_reservations(file.reserved_with(one, *pages))
                try:
                    mapped.append(file.map(one, *pages))
                except Refused as refusal:
                    live.fail("errno of mmap(2), within the limit", 0, refusal.errno)
            file.expect()
            for memory in mapped:
                memory.actor.end()
            file.expect()
            file.truncate(0)
            file.expect()
            descriptor.actor.end()


# --- files, and what ends them ---------------------------------------------------------------------------------------


def _without_a_name(live: Live) -> tuple[HugeFile, str]:
    return new_memfd(live), ""


def _with_a_name(live: Live) -> tuple[HugeFile, str]:
    path = f"{live.mount()}/file"
    return open_file(live, path), path


def _truncated(_live: Live, file: ChargedFile, descriptor: HugeFile, _path: str) -> None:
    for pages in (2, 1, 0):
        file.truncate(pages)
        file.expect()
    descriptor.actor.end()


def _closed(_live: Live, _file: ChargedFile, descriptor: HugeFile, _path: str) -> None:
    descriptor.actor.end()


def _removed(live: Live, file: ChargedFile, descriptor: HugeFile, path: str) -> None:
    descriptor.actor.end()
    file.expect()
    live.actor().call("unlinkat", AT_FDCWD, path, 0)


_End = Callable[[Live, ChargedFile, HugeFile, str], None]
_ENDS: tuple[tuple[Callable[[Live], tuple[HugeFile, str]], _End], ...] = (
    (_without_a_name, _closed),
    (_with_a_name, _removed),
    (_without_a_name, _truncated),
)


class HugetlbFileCharges(LiveTest):
    def test_version_1(self) -> None:
        self.run_area(VERSION_1)

    def test_version_2(self) -> None:
        self.run_area(VERSION_2)
