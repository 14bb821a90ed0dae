"""Registered memory that moves, of which its program is not told (mremap(2)): the kernel handles its faults then."""

import signal
from collections.abc import Callable
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory, value_or_signal
from hugepage_qa.cases.places import free_place
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size, room_for
from hugepage_qa.cases.thp_policy import advised, set_policy
from hugepage_qa.cases.thp_shared_memory import let_only_pmd_inherit
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault, protected_pages
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MREMAP_DONTUNMAP, MREMAP_FIXED, MREMAP_MAYMOVE
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest

MOVED_AWAY = Area("userfaultfd/moved-away")

DOC = (
    "Documentation/admin-guide/mm/userfaultfd.rst UFFD_FEATURE_EVENT_REMAP; fs/userfaultfd.c mremap_userfaultfd_prep()"
    " (3cfd22be0ad6)"
)
_VALUE, _NEW_VALUE = 7, 77
#: what smaps has among VmFlags of memory that is registered
_FLAGS = frozenset(("um", "uw", "ui"))


@MOVED_AWAY.case(
    "pages that are not there are zero where mremap() has moved them, private or shared ones, also in place of another"
    " mapping of the same file: their program is not asked for them",
    f"{DOC}; mm/hugetlb.c move_hugetlb_page_tables()",
    since="5.16",
    pages=2,
)
def missing(live: Live) -> None:
    for shared, replaces in ((False, False), (True, False), (True, True)):
        file = new_memfd(live, pages=2)
        memory = file.map(2) if shared else live.map(2, file.actor)
        memory.touch(0, _VALUE)
        Userfault(memory, Mode.MISSING, Feature.MISSING_HUGETLBFS)
        live.expect_signal(signal.SIGBUS, memory.touch, 1)
        with live.about(f"shared {shared}, in place of another mapping {replaces}"):
            there = memory.moved_to(file.map(2).address if replaces else free_place(live, file.actor, 2))
            _expect_nobody_asked(live, there, _VALUE, 0)
        live.expect_pool(nr=2, free=0)
        file.actor.end()
        live.expect_pool(nr=2, free=2)


@MOVED_AWAY.case(
    "pages that their file has are mapped where mremap() has moved what was not mapped, also in place of another"
    " mapping of the file: their program is not asked to map them",
    f"{DOC}; mm/hugetlb.c move_hugetlb_page_tables()",
    since="5.16",
    pages=2,
)
def minor(live: Live) -> None:
    for replaces in (False, True):
        file = new_memfd(live, pages=2)
        other = file.map(2)
        for page, value in enumerate((_VALUE, _NEW_VALUE)):
            other.touch(page, value)
        memory = file.map(2)
        Userfault(memory, Mode.MINOR, Feature.MINOR_HUGETLBFS)
        live.expect_signal(signal.SIGBUS, memory.read, 1)
        with live.about(f"in place of another mapping {replaces}"):
            there = memory.moved_to(other.address if replaces else free_place(live, file.actor, 2))
            _expect_nobody_asked(live, there, _VALUE, _NEW_VALUE)
        file.actor.end()
        live.expect_pool(nr=2, free=2)


@MOVED_AWAY.case(
    "huge pages that were not there when they were protected are zero where mremap() has moved them, and are written:"
    " their program is not asked",
    f"{DOC}; mm/hugetlb.c move_huge_pte() (0cef0bb836e3)",
    since="5.19",
    pages=3,
)
def protected_holes_of_huge_pages(live: Live) -> None:
    for shared, touched in product((False, True), (False, True)):
        memory = live.map(3, shared=shared)
        if touched:
            memory.touch(0, _VALUE)
        Userfault(memory, Mode.WRITE_PROTECTED, Feature.WP_HUGETLBFS_SHMEM).write_protect(length=memory.length)
        live.expect_signal(signal.SIGBUS, memory.touch, 2)
        with live.about(f"shared {shared}, the first page was touched {touched}"):
            there = memory.moved_to(free_place(live, memory.actor, 3))
            _expect_unprotected(live, there, _VALUE if touched else 0)
            if not live.differences:
                live.expect_pool(nr=3, free=0)
        memory.actor.end()
        live.expect_pool(nr=3, free=3)


@MOVED_AWAY.case(
    "memory that was not there when it was protected is zero where mremap() has moved it, base pages, huge ones and"
    " shared memory, and is written: its program is not asked",
    f"{DOC}; UFFD_FEATURE_WP_UNPOPULATED; mm/mremap.c move_ptes() (0cef0bb836e3)",
    since="6.4",
    sizes=Sizes.ONCE,
)
def protected_holes(live: Live) -> None:
    let_only_pmd_inherit(live)
    for make, touched in product((_huge, _base, _shared_huge, _shared_base), (False, True)):
        memory = make(live)
        if touched:
            memory.touch(0, _VALUE)
        feature = Feature.WP_HUGETLBFS_SHMEM | Feature.WP_UNPOPULATED
        Userfault(memory, Mode.WRITE_PROTECTED, feature).write_protect(length=memory.length)
        live.expect_signal(signal.SIGBUS, memory.touch, 2)
        with live.about(f"{make.__name__.strip('_')}, the first page was touched {touched}"):
            there = memory.moved_to(room_for(memory.actor, 3, memory.size))
            _expect_unprotected(live, there, _VALUE if touched else 0)
        memory.actor.end()


@MOVED_AWAY.case(
    "memory that is not there is zero where mremap() has moved it, huge pages, base pages and shared memory, all of a"
    " mapping or a part: its program is not asked, and still is for what did not move",
    f"{DOC}; mm/mremap.c move_vma()",
    since="5.1",
    sizes=Sizes.ONCE,
)
def ordinary_memory(live: Live) -> None:
    let_only_pmd_inherit(live)
    for make, moved in product((_huge, _base, _shared_huge, _shared_base), (3, 2)):
        memory = make(live)
        memory.touch(0, _VALUE)
        _register(live, memory)
        with live.about(f"{make.__name__.strip('_')}, {moved} of three pages"):
            there = memory.part(0, moved).moved_to(room_for(memory.actor, 3, memory.size))
            _expect_nobody_asked(live, there, _VALUE, 0)
            if moved < memory.pages:
                _expect_asked(live, memory, moved)
        memory.actor.end()


@MOVED_AWAY.case(
    "the program is asked for what MREMAP_DONTUNMAP has left without pages, and not for what was moved",
    f"{DOC}; mremap(2) MREMAP_DONTUNMAP",
    since="5.7",
    sizes=Sizes.ONCE,
)
def left_behind(live: Live) -> None:
    for make in (_huge, _base):
        memory = make(live)
        memory.touch(0, _VALUE)
        _register(live, memory)
        to, flags = room_for(memory.actor, 3, memory.size), MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP
        memory.actor.call("mremap", memory.address, memory.length, memory.length, flags, to)
        with live.about(make.__name__.strip("_")):
            _expect_nobody_asked(live, Memory(live, memory.actor, to, 3, memory.size), _VALUE, 0)
            for page in range(memory.pages):
                _expect_asked(live, memory, page)
        memory.actor.end()


def _huge(live: Live) -> Memory:
    set_policy(live, "madvise")
    return advised(live, 3)


def _base(live: Live) -> Memory:
    set_policy(live, "never")
    return advised(live, 3)


def _shared_huge(live: Live) -> Memory:
    return _shared(live, "always")


def _shared_base(live: Live) -> Memory:
    return _shared(live, "never")


def _shared(live: Live, enabled: str) -> Memory:
    live.set_knob(f"{DIRECTORY}/shmem_enabled", enabled)
    return map_aligned(live, 3, pmd_size(live), shared=True)


def _register(live: Live, memory: Memory) -> None:
    Userfault(memory, Mode.MISSING, Feature.MISSING_SHMEM)
    _expect_asked(live, memory, memory.pages - 1)


def _expect_asked(live: Live, memory: Memory, page: int) -> None:
    """Expect a page to be registered, and an access to it to be the program's to handle."""
    live.expect("flags of memory that did not move", {"um"}, set(memory.smaps(page).flags & _FLAGS))
    live.expect_signal(signal.SIGBUS, memory.read, page)


def _expect_unprotected(live: Live, there: Memory, value: int) -> None:
    """Expect no base page of moved memory to be protected, its first page to begin with ``value``, and to be written.

    Its last page is written before it is read. Raises KnownBug.
    """
    found = len(protected_pages(there))
    known = {Quirk.MOVED_PAGE_STAYS_PROTECTED: there.length // live.base_page}
    live.expect("base pages that are protected", 0, found, known)
    if found:
        return  # a write would not end
    last = there.pages - 1
    live.expect("signal of a write to the last page", None, value_or_signal(partial(there.touch, last, _NEW_VALUE)))
    _expect_nobody_asked(live, there, value, 0)
    live.expect("what was written to the last page", _NEW_VALUE, there.read(last))


def _expect_nobody_asked(live: Live, there: Memory, *values: int) -> None:
    """Expect moved memory not to be registered, its first two pages to begin with ``values``, and to be written."""
    live.expect("flags of memory that moved", set(), set(there.smaps().flags & _FLAGS))
    reads: list[Callable[[], int]] = [partial(there.read, page) for page in range(2)]
    live.expect("what is read of it", list(values), [value_or_signal(read) for read in reads])
    live.expect(
        "signals of writes to it", [None, None], [value_or_signal(partial(there.touch, page)) for page in (0, 1)]
    )


class MovedAway(LiveTest):
    def test_moved_away(self) -> None:
        self.run_area(MOVED_AWAY)
