"""Reservations: a mapping that came into being can be used, and what is not used goes back."""

import errno
import mmap
import signal
from itertools import product
from typing import Any

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.commit_policy import set_overcommit_memory
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.hugetlb_segments import IPC_CREAT, SHM_NORESERVE, get_segment
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.race import RACERS, race
from hugepage_qa.kernel.uapi import MAP_FIXED
from hugepage_qa.plugins.avocado_test import LiveTest

RESERVATION = Area("reservation/reservation")
RESERVE = "Documentation/mm/hugetlbfs_reserv.rst; mm/hugetlb.c hugetlb_reserve_pages()"
CONSUME = "Documentation/mm/hugetlbfs_reserv.rst, Consuming Reservations; mm/hugetlb.c alloc_hugetlb_folio()"
RELEASE = "Documentation/mm/hugetlbfs_reserv.rst, Freeing Huge Pages; mm/hugetlb.c hugetlb_vm_op_close()"
NO_RESERVE = "mmap(2) MAP_NORESERVE; mm/hugetlb.c hugetlb_reserve_pages(), alloc_hugetlb_folio()"
OF_FILE = "Documentation/mm/hugetlbfs_reserv.rst, Reserve Map Location; mm/hugetlb.c hugetlb_reserve_pages()"

PROTECTIONS = (mmap.PROT_READ | mmap.PROT_WRITE, mmap.PROT_READ, 0)


# --- making them -----------------------------------------------------------------------------------------------------


@RESERVATION.case("a mapping larger than the pool is refused, and keeps no reservation", RESERVE, pages=2)
def more_than_the_pool(live: Live) -> None:
    for shared in (False, True):
        live.expect_errno(errno.ENOMEM, live.map, 3, shared=shared)
        live.expect_pool(nr=2, free=2)
    live.map(2)
    live.expect_pool(nr=2, free=2, resv=2)
    for shared in (False, True):
        live.expect_errno(errno.ENOMEM, live.map, 1, shared=shared)
        live.expect_pool(nr=2, free=2, resv=2)


@RESERVATION.case("a mapping that no address space could hold is refused, and keeps no reservation", RESERVE, pages=1)
def more_than_all(live: Live) -> None:
    actor = live.actor()
    for pages in ((1 << 46) // live.size, (1 << 62) // live.size):
        live.expect_errno(errno.ENOMEM, live.map, pages, actor)
        live.expect_pool(nr=1, free=1)


@RESERVATION.case("a mapping reserves its pages whatever its protection: mprotect(2) may change it", RESERVE, pages=2)
def every_protection_reserves(live: Live) -> None:
    for prot in PROTECTIONS:
        for shared in (False, True):
            memory = live.map(2, prot=prot, shared=shared)
            live.expect_pool(nr=2, free=2, resv=2)
            memory.unmap()
            live.expect_pool(nr=2, free=2)


@RESERVATION.case("the reserved pages are there for the one who reserved them", CONSUME, pages=2)
def reserved_pages_are_there(live: Live) -> None:
    memory = live.map(2)
    live.expect_errno(errno.ENOMEM, live.map, 1)
    memory.touch(0, 1)
    live.expect_pool(nr=2, free=1, resv=1)
    memory.touch(1, 2)
    live.expect_pool(nr=2, free=0)
    live.expect("what the pages hold", (1, 2), (memory.read(0), memory.read(1)))


@RESERVATION.case(
    "a page that is read first takes its reservation, and is not taken again when written", CONSUME, pages=1
)
def read_takes_the_reservation(live: Live) -> None:
    for shared in (False, True):
        memory = live.map(1, shared=shared)
        memory.expect_zero(0)
        live.expect_pool(nr=1, free=0)
        memory.touch()
        live.expect_pool(nr=1, free=0)
        memory.unmap()
        live.expect_pool(nr=1, free=1)


# --- giving them back ------------------------------------------------------------------------------------------------


@RESERVATION.case("what is unmapped gives back its pages and its reservations, and nothing else", RELEASE, pages=4)
def part_of_a_mapping(live: Live) -> None:
    memory = live.map(4)
    memory.touch(0)
    memory.touch(3, 3)
    live.expect_pool(nr=4, free=2, resv=2)
    memory.unmap(0, 1)
    live.expect_pool(nr=4, free=3, resv=2)
    memory.unmap(1, 1)
    live.expect_pool(nr=4, free=3, resv=1)
    memory.touch(2)
    live.expect_pool(nr=4, free=2)
    memory.unmap(2, 1)
    live.expect_pool(nr=4, free=3)
    live.expect("the page that stayed", 3, memory.read(3))
    memory.unmap(3)
    live.expect_pool(nr=4, free=4)


@RESERVATION.case("a killed process gives back its pages and its reservations", RELEASE, pages=2)
def killed_process(live: Live) -> None:
    for shared in (False, True):
        memory = live.map(2, shared=shared)
        memory.touch(1)
        live.expect_pool(nr=2, free=1, resv=1)
        memory.actor.end()
        live.expect_pool(nr=2, free=2)


@RESERVATION.case("a mapping in the place of another gives back what was there", RELEASE, pages=2)
def replaced_mapping(live: Live) -> None:
    memory = live.map(2)
    memory.touch(0)
    live.expect_pool(nr=2, free=1, resv=1)
    fixed = live.map(1, memory.actor, flags=MAP_FIXED, at=memory.at(0))
    live.expect("the address", memory.at(0), fixed.address)
    live.expect_pool(nr=2, free=2, resv=2)
    fixed.expect_zero(0)
    live.expect_pool(nr=2, free=1, resv=1)


@RESERVATION.case("mapping and unmapping again and again loses nothing", RELEASE, pages=2)
def again_and_again(live: Live) -> None:
    actor = live.actor()
    for turn in range(20):
        memory = live.map(2, actor, shared=bool(turn % 2))
        if turn % 3 == 0:
            memory.touch(turn % 2)
        memory.unmap()
    live.expect_pool(nr=2, free=2)


# --- of files --------------------------------------------------------------------------------------------------------


@RESERVATION.case("shared mappings of a page of a file reserve it once", OF_FILE, pages=3)
def shared_mappings_reserve_once(live: Live) -> None:
    file = new_memfd(live)
    live.expect_pool(nr=3, free=3)
    first = file.map(2)
    live.expect_pool(nr=3, free=3, resv=2)
    second = file.map(2, first=1)
    live.expect_pool(nr=3, free=3, resv=3)
    first.touch(1, 5)
    live.expect("the page as the other mapping shows it", 5, second.read(0))
    live.expect_pool(nr=3, free=2, resv=2)


@RESERVATION.case("the reservations of a file stay while it is open, and go with it", OF_FILE, pages=2)
def reservations_stay_with_the_file(live: Live) -> None:
    file = new_memfd(live)
    memory = file.map(2)
    memory.touch(0)
    memory.unmap()
    live.expect_pool(nr=2, free=1, resv=1)
    file.map(2)
    live.expect_pool(nr=2, free=1, resv=1)
    file.actor.end()
    live.expect_pool(nr=2, free=2)


@RESERVATION.case("an open file is not needed for its mapping, which keeps its reservations", OF_FILE, pages=2)
def mapping_outlives_its_descriptor(live: Live) -> None:
    file = new_memfd(live)
    memory = file.map(2)
    file.close()
    live.expect_pool(nr=2, free=2, resv=2)
    memory.touch(1)
    live.expect_pool(nr=2, free=1, resv=1)
    memory.unmap()
    live.expect_pool(nr=2, free=2)


@RESERVATION.case(
    "a private mapping of a file reserves pages of its own, and takes them when written", OF_FILE, pages=2
)
def private_mapping_of_a_file(live: Live) -> None:
    file = new_memfd(live)
    shared = file.map(1)
    shared.touch(value=1)
    live.expect_pool(nr=2, free=1)
    private = file.map(1, shared=False)
    live.expect_pool(nr=2, free=1, resv=1)
    live.expect("the page of the file", 1, private.read())
    live.expect_pool(nr=2, free=1, resv=1)
    private.touch(value=2)
    live.expect_pool(nr=2, free=0)
    live.expect("the page of the file and the private one", (1, 2), (shared.read(), private.read()))
    private.unmap()
    live.expect_pool(nr=2, free=1)


@RESERVATION.case("a refused mapping of a file leaves its size and its reservations as they were", OF_FILE, pages=1)
def refused_mapping_of_a_file(live: Live) -> None:
    file = new_memfd(live)
    live.expect_errno(errno.ENOMEM, file.map, 2)
    live.expect("the size of the file", 0, file.size)
    live.expect_pool(nr=1, free=1)
    file.map(1)
    live.expect_pool(nr=1, free=1, resv=1)
    live.expect_errno(errno.ENOMEM, file.map, 2)
    live.expect("the size of the file", live.size, file.size)
    live.expect_pool(nr=1, free=1, resv=1)


# --- without them ----------------------------------------------------------------------------------------------------


@RESERVATION.case("a mapping without reservation gets what is free, and SIGBUS where nothing is", NO_RESERVE, pages=1)
def sigbus_without_a_page(live: Live) -> None:
    for shared in (False, True):
        memory = live.map(2, noreserve=True, shared=shared)
        live.expect_pool(nr=1, free=1)
        memory.touch(0, 7)
        live.expect_pool(nr=1, free=0)
        live.expect_signal(signal.SIGBUS, memory.touch, 1)
        live.expect_signal(signal.SIGBUS, memory.read, 1)
        live.expect_pool(nr=1, free=0)
        live.expect("the page that it has", 7, memory.read(0))
        memory.unmap()
        live.expect_pool(nr=1, free=1)


@RESERVATION.case("after SIGBUS the same access succeeds once a page is free", NO_RESERVE, pages=1)
def sigbus_is_not_for_ever(live: Live) -> None:
    owner = live.map(1)
    owner.touch()
    memory = live.map(1, noreserve=True)
    live.expect_signal(signal.SIGBUS, memory.touch)
    owner.unmap()
    memory.touch(value=2)
    live.expect("the page", 2, memory.read())
    live.expect_pool(nr=1, free=0)


@RESERVATION.case("a mapping without reservation cannot take a page that another has reserved", NO_RESERVE, pages=1)
def no_theft_of_reserved_pages(live: Live) -> None:
    for shared in (False, True):
        owner = live.map(1, shared=shared)
        thief = live.map(1, noreserve=True, shared=shared)
        live.expect_signal(signal.SIGBUS, thief.touch)
        live.expect_pool(nr=1, free=1, resv=1)
        owner.touch()
        live.expect_pool(nr=1, free=0)
        owner.unmap()
        live.expect_pool(nr=1, free=1)


@RESERVATION.case("a page that was touched without reservation is no reserved page later", NO_RESERVE, pages=2)
def touched_without_reservation(live: Live) -> None:
    file = new_memfd(live, pages=2)
    free_mapping = file.map(2, noreserve=True)
    free_mapping.touch(0)
    live.expect_pool(nr=2, free=1)
    free_mapping.unmap()
    live.expect_pool(nr=2, free=1)
    file.map(2)
    live.expect_pool(nr=2, free=1, resv=1)
    file.actor.end()
    live.expect_pool(nr=2, free=2)


@RESERVATION.case(
    "a reserved page that is touched without reservation takes the reservation, and is not counted twice",
    NO_RESERVE,
    pages=2,
)
def reserved_and_touched_without(live: Live) -> None:
    file = new_memfd(live)
    reserved, free_mapping = file.map(2), file.map(2, noreserve=True)
    live.expect_pool(nr=2, free=2, resv=2)
    free_mapping.touch(0, 5)
    live.expect_pool(nr=2, free=1, resv=1)
    live.expect("the page as the other mapping shows it", 5, reserved.read(0))
    reserved.unmap()
    live.expect_pool(nr=2, free=1, resv=1)
    free_mapping.touch(1)
    live.expect_pool(nr=2, free=0)
    file.actor.end()
    live.expect_pool(nr=2, free=2)


@RESERVATION.case(
    "whether a mapping or a segment reserves is for MAP_NORESERVE and SHM_NORESERVE to say, whatever"
    " vm.overcommit_memory lets others have: with 2, too, none is reserved unasked, and with 1 none is left out",
    "Documentation/mm/overcommit-accounting.rst; mm/mmap.c do_mmap(), hugetlb applies strict overcommit unless"
    " MAP_NORESERVE; ipc/shm.c newseg()",
    pages=2,
)
def overcommitted_base_pages(live: Live) -> None:
    for mode in ("0", "1", "2"):
        set_overcommit_memory(live, mode)
        for noreserve, of_a_file, shared in product((False, True), repeat=3):
            actor = live.actor()
            source = new_memfd(live, actor).descriptor if of_a_file else None
            named: dict[str, Any] = {"shared": shared, "noreserve": noreserve, "fd": source}
            with live.about(f"overcommit_memory {mode}, {named}"):
                memory = live.map(2, actor, **named)
                left = 0 if noreserve else 2
                live.expect_pool(nr=2, free=2, resv=left)
                memory.touch(1)
                live.expect_pool(nr=2, free=1, resv=left and 1)
                memory.unmap()
                if noreserve:
                    live.expect_signal(signal.SIGBUS, _touch_each, live.map(3, actor, **named))
                else:
                    live.expect_errno(errno.ENOMEM, live.map, 3, actor, **named)
            actor.end()
            live.expect_pool(nr=2, free=2)
        for flags, reserved in ((IPC_CREAT | 0o600, 2), (IPC_CREAT | SHM_NORESERVE | 0o600, 0)):
            segment = get_segment(live, 2 * live.size, flags=flags)
            live.expect_pool(nr=2, free=2, resv=reserved)
            segment.remove()
            live.expect_pool(nr=2, free=2)


def _touch_each(memory: Memory) -> None:
    for page in range(memory.pages):
        memory.touch(page)


# --- at the same moment ----------------------------------------------------------------------------------------------


@RESERVATION.case(
    "of processes that want a page of the pool at the same moment as many get one as there are",
    f"{RESERVE}, dequeue_hugetlb_folio_vma()",
    pages=2,
    sizes=Sizes.BUDDY,
)
def race_for_the_pool(live: Live) -> None:
    for noreserve in (False, True):
        got = race(live, noreserve=noreserve)
        live.expect(f"processes that got a page, {'at a fault' if noreserve else 'by a mapping'}", {2}, got)
        live.expect_pool(nr=2, free=2)


@RESERVATION.case(
    "processes that touch a page of a file at the same moment get one page, and all of them",
    f"{OF_FILE}, hugetlb_fault_mutex_table",
    pages=1,
    sizes=Sizes.BUDDY,
)
def race_for_a_page_of_a_file(live: Live) -> None:
    for noreserve in (False, True):
        got = race(live, new_memfd(live), noreserve=noreserve, one_page=True)
        live.expect("processes that got the page", {RACERS}, got)
        live.expect_pool(nr=1, free=1)


class Reservation(LiveTest):
    def test_reservation(self) -> None:
        self.run_area(RESERVATION)
