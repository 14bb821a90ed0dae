"""What a program is told of memory whose faults it handles: userfaultfd(2) with UFFD_FEATURE_EVENT_*."""

import errno
import mmap
import signal
from functools import partial
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.clear_refs import while_nothing_moves
from hugepage_qa.cases.commit_policy import GUESSED, set_overcommit_memory
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size, room_for
from hugepage_qa.cases.thp_policy import advised, base_pages, fill_in_huge_pages, huge_pages, set_policy
from hugepage_qa.cases.thp_shared_memory import advised_shared_memory
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault
from hugepage_qa.cases.userfaultfd_messages import Event
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MAP_FIXED
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor, Refused

EVENTS = Area("userfaultfd/transparent-events", sizes=Sizes.ONCE)

DOC = "Documentation/admin-guide/mm/userfaultfd.rst Non-cooperative userfaultfd"
_NEW_VALUE = 77


@EVENTS.case(
    "who handles the faults of memory is told where it has moved, and fills what is missing there",
    f"{DOC} UFFD_EVENT_REMAP; mm/userfaultfd.c mremap_userfaultfd_complete()",
)
def moved(live: Live) -> None:
    for shift in (0, live.base_page):
        memory = huge_pages(live, 2)
        actor, length = memory.actor, memory.length
        fault = Userfault(memory, Mode.MISSING, Feature.EVENT_REMAP, waits=True)
        source = map_aligned(live, 1, memory.size, actor=actor)
        source.fill(_NEW_VALUE)
        memory.advise(mmap.MADV_DONTNEED, 1, 1)
        target = room_for(actor, 3, memory.size) + shift
        move = partial(memory.moved_to, target)
        there = fault.event_of(live, move, Event.REMAP, memory.address, target, length)
        live.expect("bytes copied", memory.size, fault.handling(there).copy(source, 1))
        there.expect_filled(pages=1)
        there.expect_filled(_NEW_VALUE - memory.size, first=1)


@EVENTS.case(
    "who handles the faults of memory is told what of it is given back, a huge page or a part, and fills it anew",
    f"{DOC} UFFD_EVENT_REMOVE; mm/userfaultfd.c userfaultfd_remove(); madvise(2) MADV_DONTNEED",
)
def given_back_and_filled(live: Live) -> None:
    source = base_pages(live)
    for length in (source.size, source.size // 2):
        memory = advised(live, 2, actor=source.actor)
        memory.fill()
        fault = Userfault(memory, Mode.MISSING, Feature.EVENT_REMOVE, waits=True)
        give_back = partial(memory.actor.call, "madvise", memory.at(1), length, mmap.MADV_DONTNEED)
        fault.event_of(live, give_back, Event.REMOVE, memory.at(1), memory.at(1) + length)
        live.expect("bytes copied", length, fault.copy(source, 1, length=length))
        wrong = memory.wrong(0, memory.size) + memory.wrong(memory.size, length, 1 - memory.size)
        wrong += memory.wrong(memory.size + length, memory.size - length)
        live.expect("words that are wrong", 0, wrong)


@EVENTS.case(
    "who handles the faults of memory is told what of it is unmapped, and cannot fill it any more",
    f"{DOC} UFFD_EVENT_UNMAP; mm/userfaultfd.c userfaultfd_unmap_complete()",
)
def unmapped(live: Live) -> None:
    memory = huge_pages(live, 3)
    source = map_aligned(live, 1, memory.size, actor=memory.actor)
    source.fill(_NEW_VALUE)
    fault = Userfault(memory, Mode.MISSING, Feature.EVENT_UNMAP, waits=True)
    fault.event_of(live, partial(memory.unmap, 1, 1), Event.UNMAP, memory.at(1), memory.at(2))
    live.expect_errno(errno.ENOENT, fault.copy, source, 1)
    memory.expect_filled(pages=1)
    memory.expect_filled(first=2)


@EVENTS.case(
    "a huge page, or a part, that UFFDIO_MOVE takes from its place is where it was missing, in the same frames, with"
    " what it holds; its place is empty, and pages that a child has, too, are refused with EBUSY",
    "ioctl_userfaultfd(2) UFFDIO_MOVE; mm/huge_memory.c move_pages_huge_pmd();"
    " mm/userfaultfd.c move_pages_ptes() (adef440691ba)",
    since="6.8",
)
def moved_by_the_program(live: Live) -> None:
    size = pmd_size(live)
    for length in (size, size // 2):
        # a huge page of which a part is taken is split, and compaction may move its base pages
        source, memory, wanted, found = while_nothing_moves(live, partial(_moved_by_the_program, live, length))
        live.expect("frames there, and those that are left", wanted, found)
        live.expect("words that changed", 0, memory.wrong(0, length) + source.wrong(length, size - length))
        live.expect("words that are not zero where it was", 0, source.nonzero(0, length))
        source.actor.end()
    shared = huge_pages(live)
    child = shared.fork()
    fault = Userfault(advised(live, 1, actor=shared.actor), Mode.MISSING, Feature.MOVE)
    live.expect_errno(errno.EBUSY, fault.move, shared)
    for each in (shared, child):
        each.expect_filled()


_Frames = tuple[list[int], list[int]]


def _moved_by_the_program(live: Live, length: int) -> tuple[tuple[Memory, Memory, _Frames, _Frames], bool]:
    """Have ``length`` bytes of a huge page moved; return where they were and where they are, with frames of both.

    These are those that should be there and be left, and those that are; and whether they are the same.
    """
    source = huge_pages(live)
    memory = advised(live, 1, actor=source.actor)
    fault = Userfault(memory, Mode.MISSING, Feature.MOVE)
    frames, moved = source.present_frames(1), length // live.base_page
    live.expect(f"bytes moved of {length}", length, fault.move(source, length=length))
    wanted = frames[:moved], frames[moved:]
    found = memory.present_frames(1), source.present_frames(1)
    return (source, memory, wanted, found), wanted == found


@EVENTS.case(
    "what a program has poisoned, base pages at any place of memory for huge pages, is SIGBUS in a child and in a child"
    " of that one, too, where its parent still tracks what it protects in the child, private and shared, and in private"
    " memory where it does not; what is beside it is there",
    "ioctl_userfaultfd(2) UFFDIO_POISON; include/linux/mm_inline.h copy_pte_marker(); mm/memory.c vma_needs_copy(),"
    " copy_nonpresent_pte()",
    since="6.6",
)
def poisoned_and_forked(live: Live) -> None:
    base = live.base_page
    every = pmd_size(live) // base
    parts = (0, 1), (every // 2, 3), (every - 1, 1), (0, every)
    for (first, count), (shared, is_tracked) in product(parts, ((False, False), (False, True), (True, True))):
        memory = advised_shared_memory(live, 2) if shared else huge_pages(live, 2)
        memory.part(0).fill()
        if not shared:
            memory.advise(mmap.MADV_DONTNEED, 1, 1)
        with live.about(f"{count} base pages from {first} on, shared {shared}, tracked {is_tracked}"):
            _expect_poison_inherited(live, memory, first * base, count * base, is_tracked=is_tracked)
        memory.actor.end()


def _expect_poison_inherited(live: Live, memory: Memory, start: int, length: int, *, is_tracked: bool) -> None:
    """Poison ``length`` bytes of the second huge page from ``start`` on, and expect SIGBUS there in two children."""
    mode, features = Mode.MISSING, Feature.POISON | Feature.MISSING_SHMEM
    if is_tracked:
        # missing pages stay the kernel's: who got one for what is poisoned would wait for ever
        mode, features = Mode.WRITE_PROTECTED, Feature.POISON | Feature.EVENT_FORK | Feature.WP_HUGETLBFS_SHMEM
    fault = Userfault(memory, mode, features, waits=is_tracked)
    fault.poison(1, offset=start, length=length)
    if is_tracked:
        child, faults = fault.fork(live)
        grandchild, _faults = faults.fork(live)
    else:
        child = memory.fork()
        grandchild = child.fork()
    for one in (memory, child, grandchild):
        for offset in (start, start + length - WORD):
            live.expect_signal(signal.SIGBUS, one.actor.read, one.at(1) + offset)
            live.expect_signal(signal.SIGBUS, one.actor.write, one.at(1) + offset, _NEW_VALUE)
        one.expect_filled(pages=1)
    if not is_tracked and length < memory.size:
        absent = child.at(1) + (start + memory.size // 4) % memory.size
        live.expect("what the child reads of a missing page", 0, child.actor.read(absent))
    for one in (grandchild, child):
        one.actor.end()


@EVENTS.case(
    "who handles the faults of memory, private and shared, is not told of a fork() that fails for want of memory, fills"
    " memory afterwards as before, and is told of the next fork()",
    f"{DOC} UFFD_EVENT_FORK; ioctl_userfaultfd(2) UFFDIO_COPY EAGAIN; mm/userfaultfd.c dup_userfaultfd_fail()",
    since="6.12",  # before, it is told of it, and who forks waits until that is read
)
def forks_that_fail(live: Live) -> None:
    set_policy(live, "madvise")
    set_overcommit_memory(live, GUESSED)
    size = pmd_size(live)
    meminfo = read_meminfo(live.host)
    # one part can be committed, and two that are one mapping cannot (mm/util.c __vm_enough_memory())
    pages = 3 * (meminfo["MemTotal"] + meminfo["SwapTotal"]) // (4 * size)
    for shared in (False, True):
        with live.about(f"shared {shared}"):
            actor = live.actor()
            source = map_aligned(live, 1, size, actor=actor)
            source.fill(_NEW_VALUE)
            # a fork copies what is at low addresses first
            start = room_for(actor, 3 + 2 * pages, size)
            memory = _mapped_at(live, actor, start, 3, mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE)
            memory.advise(MADV_HUGEPAGE)
            if shared:
                memory.part(0).fill()
            else:
                fill_in_huge_pages(live, memory.part(0))
            large = [_mapped_at(live, actor, memory.at(3) + part * pages * size, pages) for part in range(2)]
            # one that is told of does not come back before somebody reads that
            _need_failed_fork(actor)
            features = Feature.EVENT_FORK | (Feature.MISSING_SHMEM if shared else Feature(0))
            fault = Userfault(memory, Mode.MISSING, features, waits=True)
            live.expect_errno(errno.ENOMEM, actor.fork)
            fault.expect_nothing_told(live)
            live.expect("bytes copied", size, fault.copy(source, 1))
            fault.zero(2)
            memory.expect_huge(0 if shared else 1)
            for each in large:
                each.unmap()
            child, _faults = fault.fork(live)
            for one in (memory, child):
                one.expect_filled(pages=1)
                one.expect_filled(_NEW_VALUE - size, first=1, pages=1)
                one.expect_zero(first=2)
            actor.end()


def _mapped_at(live: Live, actor: Actor, address: int, pages: int, kind: int = mmap.MAP_PRIVATE) -> Memory:
    """Map anonymous memory of PMD-sized pages at ``address``, whatever is there. Raises Refused."""
    size = pmd_size(live)
    actor.mmap(pages * size, READ_WRITE, kind | mmap.MAP_ANONYMOUS | MAP_FIXED, address=address)
    return Memory(live, actor, address, pages, size)


def _need_failed_fork(actor: Actor) -> None:
    """Fork, and raise CannotRun where that does not fail for want of memory."""
    try:
        actor.fork()
    except Refused as refusal:
        if refusal.errno != errno.ENOMEM:
            raise
        return
    raise CannotRun("more memory than there is can be committed by a fork")


class ThpUserfaultEvents(LiveTest):
    def test_userfault_events(self) -> None:
        self.run_area(EVENTS)
