"""Forked processes and their huge pages: private ones are copied on write, shared ones are shared."""

import mmap
import signal
from collections.abc import Callable, Sequence
from functools import partial
from itertools import permutations, product

from hugepage_qa.cases.address_space import expect_as_mapped
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.hugetlb_of_a_process import expect_inherited, forked
from hugepage_qa.cases.kept_memory import expect_nothing_kept
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.pinned_pages import Pin
from hugepage_qa.cases.thp_memory import pmd_size
from hugepage_qa.cases.thp_policy import base_pages, huge_pages, huge_zeroes, mapped_in_parts
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault, need_signal_for_poison
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.sizes import MIB

FORK = Area("memory/fork")
_POISON = Feature.POISON | Feature.MISSING_HUGETLBFS
#: page tables that children have of memory, more than are left of one that has ended for other reasons
_TABLES = 96
#: bytes in huge pages that a child inherits at once
_AT_ONCE = 16 * MIB
LEFT = "fork(2); mm/huge_memory.c copy_huge_pmd(); mm/memory.c copy_page_range()"
#: whether they are shared, of a file, and not reserved
_KINDS = (True, True, False), (True, True, True), (False, True, True), (False, False, True)
_MAPPINGS, _CHILDREN = 200, 80
#: bytes, half of what the lock of a mapping has (struct hugetlb_vma_lock)
_LEAST_OBJECT = 32
COPY = "fork(2); mm/hugetlb.c copy_hugetlb_page_range(), hugetlb_wp()"


@FORK.case("parent and child have copies of their own once one of them writes", COPY, pages=2)
def copies(live: Live) -> None:
    for writer_is_child in (False, True):
        memory = live.map(1)
        memory.touch(value=1)
        child = forked(live, memory)
        live.expect_pool(nr=2, free=1)
        (child if writer_is_child else memory).touch(value=2)
        live.expect_pool(nr=2, free=0)
        expected = (1, 2) if writer_is_child else (2, 1)
        live.expect("what parent and child read", expected, (memory.read(), child.read()))
        child.actor.end()
        live.expect_pool(nr=2, free=1)
        memory.actor.end()
        live.expect_pool(nr=2, free=2)


@FORK.case(
    "a copy holds every word of the page, wherever it is written first",
    f"{COPY}; mm/memory.c process_huge_page()",
    pages=2,
)
def whole_copies(live: Live) -> None:
    memory = live.map(1)
    # each copy is made where the one before lay
    for value, place in enumerate(memory.touch_places(), 7):
        memory.fill(value)
        child = forked(live, memory)
        written = child.address + place
        child.actor.write(written, value - 1)
        with live.about(f"written first at {place}"):
            memory.expect_filled(value)
            live.expect("what the child wrote", value - 1, child.actor.read(written))
            # all but that word
            child.actor.write(written, value + place)
            child.expect_filled(value)
        child.actor.end()


@FORK.case(
    "children that have come and gone leave no memory of the kernel behind, whatever mappings of huge"
    " pages they had: of a file, shared and private, or of none, with pages that are reserved and without",
    "fork(2); Documentation/filesystems/proc.rst Slab; mm/hugetlb.c hugetlb_vm_op_open(), hugetlb_vm_op_close(),"
    " hugetlb_vma_lock_alloc(), hugetlb_vma_lock_free()",
    pages=1,
    sizes=Sizes.BUDDY,
)
def nothing_left_of_children(live: Live) -> None:
    if live.host.has_others:
        raise CannotRun("others on this machine take memory of the kernel meanwhile")
    file = new_memfd(live, pages=1)
    for (shared, of_a_file, noreserve), _mapping in product(_KINDS, range(_MAPPINGS)):
        live.map(1, file.actor, shared=shared, noreserve=noreserve, fd=file.descriptor if of_a_file else None)

    def have_children() -> None:
        for _child in range(_CHILDREN):
            file.actor.fork().end()

    expect_nothing_kept(live, have_children, _CHILDREN * _MAPPINGS * _LEAST_OBJECT)
    file.actor.end()
    live.expect_pool(nr=1, free=1)


@FORK.case("every child inherits the pages that its parent has touched", COPY, pages=1)
def every_child_inherits(live: Live) -> None:
    memory = live.map(1)
    memory.touch(value=7)
    for _child in range(24):
        child = forked(live, memory)
        live.expect("what the child reads", 7, child.read())
        child.actor.end()
    live.expect_pool(nr=1, free=0)


@FORK.case("shared pages are the same for parent and child, and taken once", COPY, pages=2)
def shared_pages(live: Live) -> None:
    memory = live.map(2, shared=True)
    memory.touch(0, 1)
    child = memory.fork()
    live.expect_pool(nr=2, free=1, resv=1)
    child.touch(0, 2)
    child.touch(1, 3)
    live.expect("what the parent reads", (2, 3), (memory.read(0), memory.read(1)))
    live.expect_pool(nr=2, free=0)
    memory.actor.exit()
    live.expect("what the child reads", (2, 3), (child.read(0), child.read(1)))
    live.expect_pool(nr=2, free=0)
    child.actor.end()
    live.expect_pool(nr=2, free=2)


@FORK.case("a chain of forks has as many copies as writers, in whatever order they end", COPY, pages=4)
def chain_of_forks(live: Live) -> None:
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)):
        chain = [live.map(1)]
        chain[0].touch(value=1)
        for _link in range(3):
            chain.append(forked(live, chain[-1]))
        for value, memory in enumerate(chain[1:], 2):
            memory.touch(value=value)
        live.expect_pool(nr=4, free=0)
        live.expect("what each of them reads", [1, 2, 3, 4], [memory.read() for memory in chain])
        for free, link in enumerate(order, 1):
            chain[link].actor.exit()
            live.expect_pool(nr=4, free=free)
            rest = [left for left in range(4) if left not in order[:free]]
            live.expect("what the rest reads", [left + 1 for left in rest], [chain[left].read() for left in rest])


@FORK.case("a page that one of them alone still has is written where it is, and not copied", COPY, pages=2)
def page_of_the_last_one(live: Live) -> None:
    for writer_is_child in (False, True):
        memory = live.map(1)
        memory.fill(7)
        child = forked(live, memory)
        writer, other = (child, memory) if writer_is_child else (memory, child)
        before = writer.frames()
        other.unmap()
        writer.fill(8)
        live.expect("whether the page lies where it did", True, writer.frames() == before)
        writer.expect_filled(8)
        known = {Quirk.UNMAP_RESERVES_PAGE_IN_USE: {"resv": -1}} if writer_is_child else None
        live.expect_pool(nr=2, free=1, known=known)
        memory.actor.end()
        live.expect_pool(nr=2, free=2)


@FORK.case(
    "a child has the address space of its parent without what MADV_DONTFORK keeps from it, a whole mapping or any part:"
    " VmSize, VmData and VmStk are those of its mappings",
    "Documentation/filesystems/proc.rst VmSize, VmData; madvise(2) MADV_DONTFORK; kernel/fork.c dup_mmap()",
)
def address_space_of_a_child(live: Live) -> None:
    for shared in (False, True):
        for first, pages in ((0, 0), (0, 3), (0, 1), (1, 1), (2, 1), (1, 2)):
            memory = live.map(3, shared=shared, noreserve=True)
            before = expect_as_mapped(live, memory.actor)
            with live.about(f"pages {first} to {first + pages} kept from the child, shared {shared}"):
                memory.advise(mmap.MADV_DONTFORK, first, pages)
                child = memory.actor.fork()
                grandchild = child.fork()
                for one, kept in ((memory.actor, 0), (child, pages), (grandchild, pages)):
                    live.expect("VmSize", before - kept * live.size, expect_as_mapped(live, one))
            for one in (grandchild, child, memory.actor):
                one.end()


@FORK.case(
    "forks, one after the other, of memory in huge pages, in parts of them, in base pages and in the huge page of"
    " zeroes, leave nothing in the memory of the kernel when parent and child have ended, and no page table",
    LEFT,
    sizes=Sizes.ONCE,
)
def nothing_left(live: Live) -> None:
    _expect_nothing_left(live, (huge_pages, mapped_in_parts, base_pages, huge_zeroes), pinned=False)


@FORK.case(
    "the same of memory of which parts are pinned: a child gets copies of these, for which a fork splits a huge page",
    f"{LEFT}; io_uring_register(2) IORING_REGISTER_BUFFERS",
    sizes=Sizes.ONCE,
    since="5.12",
)
def nothing_left_of_what_is_pinned(live: Live) -> None:
    _expect_nothing_left(live, (huge_pages, mapped_in_parts, base_pages), pinned=True)


def _expect_nothing_left(live: Live, makers: Sequence[Callable[[Live, int], Memory]], *, pinned: bool) -> None:
    for make in makers:
        with live.about(make.__name__.replace("_", " ")):
            expect_nothing_kept(live, partial(_fork_often, live, make, pinned=pinned))


def _fork_often(live: Live, make: Callable[[Live, int], Memory], *, pinned: bool) -> None:
    """Have children of so many parents have a page table for each huge page, of which a base page may be pinned."""
    size = pmd_size(live)
    pages = max(1, _AT_ONCE // size)
    for _round in range(_TABLES // pages):
        memory = make(live, pages)
        pin = Pin(live, memory) if pinned else None
        if pin:
            pin.hold(*((page * size, live.base_page) for page in range(pages)))
        child = memory.fork()
        child.actor.end()
        if pin:
            pin.let_go()
        memory.actor.end()


@FORK.case(
    "a private page that a program has poisoned is SIGBUS in a child and in a child of that one, too, wherever it lies,"
    " and takes no page; beside it they have the page that was there, copy it on write, and get zeroes where none was",
    f"{COPY}; ioctl_userfaultfd(2) UFFDIO_POISON; include/linux/mm_inline.h copy_pte_marker()",
    since="6.6",
    sizes=Sizes.BUDDY,  # it would take minutes to clear gigantic pages again and again
    pages=4,
)
def poisoned_pages(live: Live) -> None:
    need_signal_for_poison(live)
    for poisoned, touched, missing in permutations(range(3)):
        memory = live.map(3)
        memory.touch(touched, 7)
        Userfault(memory, Mode.MISSING, _POISON).poison(poisoned)
        with live.about(f"page {poisoned} poisoned, {touched} touched, {missing} missing"):
            child = forked(live, memory)
            grandchild = forked(live, child)
            for one in (memory, child, grandchild):
                _expect_poisoned(live, one, poisoned, touched)
                live.expect_pool(nr=4, free=3, resv=2)
            live.expect_signal(signal.SIGBUS, memory.read, missing)
            live.expect("what the child reads of a missing page", 0, child.read(missing))
            live.expect_pool(nr=4, free=2, resv=2)
            child.unmap()
            grandchild.touch(touched, 8)
            live.expect_pool(nr=4, free=2, resv=2)
            live.expect("what parent and grandchild read", (7, 8), (memory.read(touched), grandchild.read(touched)))
            for one in (memory, grandchild):
                live.expect_signal(signal.SIGBUS, one.touch, poisoned)
        for each in (grandchild, child, memory):
            each.actor.end()
        live.expect_pool(nr=4, free=4)


@FORK.case(
    "a page that a program has poisoned is SIGBUS in a child whose protected pages it handles, too, private and shared",
    f"{COPY}; ioctl_userfaultfd(2) UFFDIO_POISON; Documentation/admin-guide/mm/userfaultfd.rst UFFD_EVENT_FORK;"
    " include/linux/mm_inline.h copy_pte_marker(); mm/memory.c vma_needs_copy()",
    since="6.6",
    pages=3,
)
def poisoned_pages_that_are_handled(live: Live) -> None:
    need_signal_for_poison(live)
    for shared, poisoned in ((False, 0), (False, 1), (True, 0), (True, 1)):
        memory = live.map(2, shared=shared)
        memory.touch(1 - poisoned, 7)
        features = Feature.POISON | Feature.WP_HUGETLBFS_SHMEM | Feature.EVENT_FORK
        # missing pages stay the kernel's: who got one for what is poisoned would wait for ever
        fault = Userfault(memory, Mode.WRITE_PROTECTED, features, waits=True)
        fault.poison(poisoned)
        child, _faults = fault.fork(live)
        expect_inherited(live, child, 1)
        with live.about(f"page {poisoned} poisoned, shared {shared}"):
            for one in (memory, child):
                _expect_poisoned(live, one, poisoned, 1 - poisoned)
            live.expect_pool(nr=3, free=2, resv=1)
        for each in (child, memory):
            each.actor.end()
        live.expect_pool(nr=3, free=3)


def _expect_poisoned(live: Live, memory: Memory, poisoned: int, touched: int) -> None:
    """Expect a page to be SIGBUS, read and written, and 7 in the one that was touched."""
    for access in (memory.read, memory.touch):
        live.expect_signal(signal.SIGBUS, access, poisoned)
    live.expect("what is read of the page that was touched", 7, memory.read(touched))


class Fork(LiveTest):
    def test_fork(self) -> None:
        self.run_area(FORK)
