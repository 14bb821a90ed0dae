"""Threads and processes that wait for a program to handle their faults: it is told of the oldest fault first."""

import mmap
from collections.abc import Sequence
from itertools import permutations, product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.handled_pages import (
    PAGES,
    WORD_OF_A_THREAD,
    Watched,
    huge_kinds,
    hugetlb_kinds,
    judge_each,
    other_kinds,
)
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.reached_from_outside import word_read_by
from hugepage_qa.cases.thp_memory import map_aligned
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault
from hugepage_qa.cases.userfaultfd_messages import MESSAGE_SIZE, PageFault, Told
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor_threads import Came

IN_ORDER = Area("userfaultfd/told-in-order")

OF_THREADS = (
    "a program is told of the faults that wait in the order in which they came, by whichever thread and at whichever"
    " page, as many of them at a time as it has room for, also of those that come when it was told of some"
)
OF_PROCESSES = (
    "a program is told of the faults of other processes, which want to read its memory, in the order in which they came"
)
OLDEST_FIRST = "userfaultfd(2); fs/userfaultfd.c find_userfault_in() (FIFO behavior to read userfaults)"
#: messages that there is room for in each of several reads
_ROOMS = ((PAGES,), (1,) * PAGES, (PAGES - 1, 1))


@IN_ORDER.case(OF_THREADS, OLDEST_FIRST, since="5.19", sizes=Sizes.BUDDY, pages=2 * PAGES)
def of_hugetlb_pages(live: Live) -> None:
    judge_each(live, hugetlb_kinds(live), _expect_in_order)
    live.expect_pool(nr=2 * PAGES, free=2 * PAGES)


@IN_ORDER.case(OF_THREADS, OLDEST_FIRST, since="5.19", sizes=Sizes.ONCE)
def of_base_pages(live: Live) -> None:
    judge_each(live, other_kinds(live), _expect_in_order)


@IN_ORDER.case(OF_THREADS, OLDEST_FIRST, since="5.19", sizes=Sizes.ONCE)
def of_huge_pages(live: Live) -> None:
    judge_each(live, huge_kinds(live), _expect_in_order)


def _expect_in_order(live: Live, watched: Watched) -> None:
    """Expect faults to be told of in their order, each that comes when the one before waits: at first, and anew."""
    fault = watched.fault

    def expect_told(pages: Sequence[int], rooms: Sequence[int], when: str) -> None:
        told = [one for room in rooms for one in fault.faults_at_once(live, room * MESSAGE_SIZE)]
        live.expect(f"what is told, in its order, {when}", watched.told_of(pages), told)

    downwards = [*reversed(range(PAGES))]
    for number, page in enumerate(downwards, 1):
        address = watched.memory.at(page) + watched.place(page)
        watched.memory.actor.threads.use(address, WORD_OF_A_THREAD, WORD_OF_A_THREAD)
        _expect_waiting(live, fault, number, number)
    expect_told(downwards, (PAGES,), "at first")
    for pages, rooms in product(permutations(range(PAGES)), _ROOMS):
        _wake_in_turn(live, fault, pages)
        expect_told(pages, rooms, f"of pages {pages}, {rooms} at a time")
    for first, *others in permutations(range(PAGES)):
        _wake_in_turn(live, fault, [first, others[0]])
        expect_told([first], (1,), f"of page {first} when {others[0]} waits, too")
        _wake_in_turn(live, fault, [others[1]], already=1)
        expect_told(others, (PAGES,), f"of pages {others} when {first} was told of")
    for page in range(PAGES):
        watched.handle(page, True)
    came = [done.came for done in watched.memory.actor.threads.stop(0)]
    live.expect("what came of the accesses", PAGES * [Came.DONE], came)
    fault.expect_nothing_told(live)


def _wake_in_turn(live: Live, fault: Userfault, pages: Sequence[int], already: int = 0) -> None:
    """Wake who waits for each of ``pages``, of which a program was told, so that each waits anew before the next."""
    for number, page in enumerate(pages, already + 1):
        fault.wake(page, 1)
        _expect_waiting(live, fault, number, PAGES)


def _expect_waiting(live: Live, fault: Userfault, untold: int, of_all: int) -> None:
    """Expect so many threads to wait, of so many of which nobody was told yet."""
    waiting = untold, of_all
    found = live.host.last_look(lambda: fault.waiting(live), waiting.__eq__)
    if found != waiting:
        # each of the others would be waited for as long
        live.fail("threads that wait and were not told of, and all that wait", waiting, found)


@IN_ORDER.case(OF_PROCESSES, f"{OLDEST_FIRST}; process_vm_readv(2)", since="5.11", sizes=Sizes.BUDDY, pages=PAGES + 1)
def of_processes_at_hugetlb_pages(live: Live) -> None:
    for pages in permutations(range(PAGES)):
        memory = live.map(PAGES)
        _expect_processes_in_order(live, memory, live.map(1, memory.actor), Feature.MISSING_HUGETLBFS, pages)


@IN_ORDER.case(OF_PROCESSES, f"{OLDEST_FIRST}; process_vm_readv(2)", since="5.11", sizes=Sizes.ONCE)
def of_processes_at_base_pages(live: Live) -> None:
    for pages in permutations(range(PAGES)):
        memory = map_aligned(live, PAGES, live.base_page)
        source = map_aligned(live, 1, live.base_page, actor=memory.actor)
        _expect_processes_in_order(live, memory, source, Feature(0), pages)


def _expect_processes_in_order(
    live: Live, memory: Memory, source: Memory, feature: Feature, pages: Sequence[int]
) -> None:
    """Have a process read each of the missing ``pages``, one after the other, and expect to be told in that order."""
    source.fill()
    fault = Userfault(memory, Mode.MISSING, feature, waits=True, of_kernel=True)
    readers = [live.actor() for _page in pages]
    live.expect("what a process may read", 1, word_read_by(live, readers[0], source, 0))
    for number, (reader, page) in enumerate(zip(readers, pages, strict=True), 1):
        buffer = reader.mmap(live.base_page, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        local, remote = (live.host.uapi.pack("2Q", address, WORD) for address in (buffer, memory.at(page)))
        reader.threads.repeat("process_vm_readv", memory.actor.pid, local, 1, remote, 1, 0)
        _expect_waiting(live, fault, number, number)
    told = [one for room in (1, PAGES) for one in fault.faults_at_once(live, room * MESSAGE_SIZE)]
    expected = [PageFault(Told(0), memory.at(page)) for page in pages]
    live.expect(f"what is told, in its order, of pages {pages}", expected, told)
    for reader, page in zip(readers, pages, strict=True):
        fault.copy(source, page)
        live.expect(
            f"what came of the read of page {page}", [Came.DONE], [done.came for done in reader.threads.stop(0)]
        )
        reader.end()
    memory.actor.end()


class ToldInOrder(LiveTest):
    def test_told_in_order(self) -> None:
        self.run_area(IN_ORDER)
