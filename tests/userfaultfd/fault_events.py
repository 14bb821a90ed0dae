"""What a program is told of memory whose faults it handles itself, of each kind: that it is forked, moved, unmapped."""

import mmap
from functools import partial

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_memory import map_aligned, room_for
from hugepage_qa.cases.thp_policy import huge_pages
from hugepage_qa.cases.thp_shared_memory import advised_shared_memory
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault, protected_pages
from hugepage_qa.cases.watched_memory import (
    expect_child_watched_alike,
    expect_told_of_a_move,
    expect_told_of_what_goes,
    watched,
)
from hugepage_qa.plugins.avocado_test import LiveTest

FAULT_EVENTS = Area("userfaultfd/fault-events")

DOC = "Documentation/admin-guide/mm/userfaultfd.rst Non-cooperative userfaultfd"
FORKED = f"{DOC} UFFD_EVENT_FORK; mm/userfaultfd.c dup_userfaultfd(), dup_userfaultfd_complete()"
CHANGED = f"{DOC} UFFD_EVENT_REMAP, UFFD_EVENT_REMOVE, UFFD_EVENT_UNMAP; mm/userfaultfd.c userfaultfd_remove()"
WATCHED_ALIKE = (
    "what a program asked to be told of memory it is told of that of a child, too, and of its child: the very address"
    " and the thread of a fault, or neither; forks, moves, and what goes; with UFFD_FEATURE_SIGBUS a fault is SIGBUS,"
    " with UFFD_USER_MODE_ONLY one of the kernel is EFAULT"
)
WATCHED = f"{FORKED}; ioctl_userfaultfd(2) UFFDIO_API; fs/userfaultfd.c userfault_msg()"
_PARENTS, _CHILDS = 77, 78


@FAULT_EVENTS.case(
    "who handles the faults of huge pages is told of a fork, and fills what is missing for the child and for itself",
    FORKED,
    sizes=Sizes.ONCE,
)
def forked_huge_pages(live: Live) -> None:
    memory = huge_pages(live, 2)
    memory.advise(mmap.MADV_DONTNEED, 1, 1)
    _expect_told_of_a_fork(live, memory, Feature(0))


@FAULT_EVENTS.case(
    "who handles the faults of shared memory is told of a fork, and what is filled for the child is there for both",
    FORKED,
    sizes=Sizes.ONCE,
)
def forked_shared_memory(live: Live) -> None:
    memory = _shared_memory(live)
    fault = watched(memory, Feature.MISSING_SHMEM | Feature.EVENT_FORK)
    source = _source(live, memory)
    child, faults = fault.fork(live)
    source.fill(_CHILDS)
    live.expect("bytes copied", memory.size, faults.copy(source, 1))
    for one in (child, memory):
        one.expect_filled(_CHILDS - memory.size, first=1)
        one.expect_filled(pages=1)


@FAULT_EVENTS.case(
    "who handles the faults of hugetlb pages is told of a fork, and fills what is missing for the child and for itself",
    f"{FORKED}; mm/hugetlb.c copy_hugetlb_page_range()",
    sizes=Sizes.BUDDY,
    pages=3,
)
def forked_hugetlb_pages(live: Live) -> None:
    child = _expect_told_of_a_fork(live, _hugetlb_pages(live), Feature.MISSING_HUGETLBFS)
    # the first page is that of both, and each has a second one
    live.expect_pool(nr=3, free=0)
    child.actor.end()
    live.expect_pool(nr=3, free=1)


@FAULT_EVENTS.case(
    "what is protected in huge pages and shared memory when who handles its faults is told of a fork is so in the"
    " child, too, each until it is allowed",
    f"{FORKED}; mm/huge_memory.c copy_huge_pmd()",
    since="5.19",
    sizes=Sizes.ONCE,
)
def forked_protected_memory(live: Live) -> None:
    _expect_protected_in_both(live, huge_pages(live, 2), Feature(0), shared=False)
    memory = _shared_memory(live)
    memory.fill()
    _expect_protected_in_both(live, memory, Feature.WP_HUGETLBFS_SHMEM, shared=True)


@FAULT_EVENTS.case(
    "what is protected in hugetlb pages when who handles their faults is told of a fork is so in the child, too, each"
    " until it is allowed",
    f"{FORKED}; mm/hugetlb.c copy_hugetlb_page_range()",
    since="5.19",
    sizes=Sizes.BUDDY,
    pages=4,
)
def forked_protected_hugetlb_pages(live: Live) -> None:
    for shared in (False, True):
        memory = live.map(2, shared=shared)
        memory.fill()
        _expect_protected_in_both(live, memory, Feature.WP_HUGETLBFS_SHMEM, shared=shared)
        memory.actor.end()
        live.expect_pool(nr=4, free=4)


@FAULT_EVENTS.case(
    "who handles the faults of shared memory is told where it moves, what is taken out of its file, and what is"
    " unmapped",
    CHANGED,
    sizes=Sizes.ONCE,
)
def changed_shared_memory(live: Live) -> None:
    memory = _shared_memory(live)
    fault = watched(memory, Feature.MISSING_SHMEM | Feature.EVENT_REMAP)
    expect_told_of_a_move(live, memory, fault, _source(live, memory), room_for(memory.actor, 2, memory.size))
    memory = _shared_memory(live)
    fault = watched(memory, Feature.MISSING_SHMEM | Feature.EVENT_REMOVE | Feature.EVENT_UNMAP)
    expect_told_of_what_goes(live, memory, fault, _source(live, memory), mmap.MADV_REMOVE)


@FAULT_EVENTS.case(
    "who handles the faults of hugetlb pages is told where they move, which are given back, and which are unmapped",
    CHANGED,
    since="5.18",
    sizes=Sizes.BUDDY,
    pages=2,
)
def changed_hugetlb_pages(live: Live) -> None:
    for shared, give_back in ((False, mmap.MADV_DONTNEED), (True, mmap.MADV_REMOVE)):
        memory = _hugetlb_pages(live, shared=shared)
        there = live.map(2, memory.actor, noreserve=True).address
        fault = watched(memory, Feature.MISSING_HUGETLBFS | Feature.EVENT_REMAP)
        expect_told_of_a_move(live, memory, fault, _source(live, memory), there)
        memory.actor.end()
        memory = _hugetlb_pages(live, shared=shared)
        fault = watched(memory, Feature.MISSING_HUGETLBFS | Feature.EVENT_REMOVE | Feature.EVENT_UNMAP)
        expect_told_of_what_goes(live, memory, fault, _source(live, memory), give_back)
        memory.actor.end()
        live.expect_pool(nr=2, free=2)


@FAULT_EVENTS.case(WATCHED_ALIKE, WATCHED, since="5.18", sizes=Sizes.ONCE)
def watched_child(live: Live) -> None:
    def huge() -> Memory:
        memory = huge_pages(live, 2)
        memory.advise(mmap.MADV_DONTNEED, 1, 1)
        return memory

    def room(memory: Memory) -> int:
        return room_for(memory.actor, 2, memory.size)

    with live.about("private"):
        expect_child_watched_alike(live, huge, Feature(0), live.base_page, mmap.MADV_DONTNEED, room)
    with live.about("shared"):
        make = partial(_shared_memory, live)
        expect_child_watched_alike(live, make, Feature.MISSING_SHMEM, live.base_page, mmap.MADV_REMOVE, room)


@FAULT_EVENTS.case(
    WATCHED_ALIKE, f"{WATCHED}; mm/hugetlb.c hugetlb_handle_userfault()", since="5.18", sizes=Sizes.BUDDY, pages=4
)
def watched_child_with_hugetlb_pages(live: Live) -> None:
    def room(memory: Memory) -> int:
        return live.map(2, memory.actor, noreserve=True).address

    for shared, give_back in ((False, mmap.MADV_DONTNEED), (True, mmap.MADV_REMOVE)):
        with live.about(f"shared {shared}"):
            make = partial(_hugetlb_pages, live, shared=shared)
            expect_child_watched_alike(live, make, Feature.MISSING_HUGETLBFS, live.size, give_back, room)
            live.expect_pool(nr=4, free=4)


def _hugetlb_pages(live: Live, *, shared: bool = False) -> Memory:
    """Return two pages of hugetlb, of which one is filled."""
    memory = live.map(2, shared=shared)
    memory.actor.fill(memory.address, memory.size, memory.step, 1)
    return memory


def _shared_memory(live: Live) -> Memory:
    """Return two pages of shared memory, which get huge pages where they are advised, and of which one is filled."""
    memory = advised_shared_memory(live, 2)
    memory.actor.fill(memory.address, memory.size, memory.step, 1)
    return memory


def _source(live: Live, memory: Memory) -> Memory:
    """Return as much ordinary memory as a page in the same actor, to fill pages from."""
    return map_aligned(live, 1, memory.size, actor=memory.actor)


def _expect_told_of_a_fork(live: Live, memory: Memory, feature: Feature) -> Memory:
    """Expect parent and child of private memory to have what each is filled with; return what the child has."""
    fault = watched(memory, feature | Feature.EVENT_FORK)
    source = _source(live, memory)
    child, faults = fault.fork(live)
    source.fill(_CHILDS)
    live.expect("bytes copied for the child", memory.size, faults.copy(source, 1))
    source.fill(_PARENTS)
    live.expect("bytes copied for the parent", memory.size, fault.copy(source, 1))
    for one, value in ((child, _CHILDS), (memory, _PARENTS)):
        one.expect_filled(value - memory.size, first=1)
        one.expect_filled(pages=1)
    return child


def _expect_protected_in_both(live: Live, memory: Memory, feature: Feature, *, shared: bool) -> None:
    """Expect the first of two pages that are filled to stay protected in parent and child, each until it is allowed."""
    features = feature | Feature.PAGEFAULT_FLAG_WP | Feature.EVENT_FORK
    fault = Userfault(memory, Mode.WRITE_PROTECTED, features, waits=True)
    fault.write_protect()
    child, faults = fault.fork(live)
    every = [*range(memory.size // live.base_page)]
    for one in (memory, child):
        live.expect("base pages that are protected", every, protected_pages(one))
    faults.write_protect(on=False)
    live.expect("base pages of the child that are protected", [], protected_pages(child))
    live.expect("base pages of the parent that are protected", every, protected_pages(memory))
    child.fill(_CHILDS)
    child.expect_filled(_CHILDS)
    memory.expect_filled(_CHILDS if shared else 1)
    fault.write_protect(on=False)
    memory.fill(_PARENTS)
    memory.expect_filled(_PARENTS)


class FaultEvents(LiveTest):
    def test_fault_events(self) -> None:
        self.run_area(FAULT_EVENTS)
