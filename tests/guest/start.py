"""Guests on huge pages start, and take from the pool exactly what they need."""

import errno

from hugepage_qa.cases.guest import guest_machine as drivers
from hugepage_qa.cases.guest.guests import GuestArea, Guests, guest_case
from hugepage_qa.cases.live import Live
from hugepage_qa.plugins.guest_test import GuestTest
from hugepage_qa.qemu.guest.driver import State
from hugepage_qa.qemu.guest.guest_description import Access, Allocation, Source, whole_pages
from hugepage_qa.sizes import MIB

QEMU, LIBVIRT = GuestArea("guest/start", drivers.QEMU), GuestArea("guest/start", drivers.LIBVIRT)
case = guest_case(QEMU, LIBVIRT)

#: what a guest writes, in bytes
_WRITTEN = 32 * MIB

BACKING = "libvirt.org/formatdomain.html memoryBacking; QEMU memory-backend-file"


@case("a guest takes as many pages as its memory has, no page more, and gives all of them back", BACKING)
def takes_exactly_its_memory(live: Live, guests: Guests) -> None:
    guest = guests.new()
    live.reserve(guest.pages + 1)
    guest.start()
    guest.expect_state(State.PAUSED)
    live.expect_pool(nr=guest.pages + 1, free=1)
    guest.expect_mapped()
    guest.destroy()
    guest.expect_state(State.OFF)
    guests.expect_all_free(guest.pages + 1)


@case("a guest that boots works in the pages that it took at its start", BACKING)
def boots_in_its_pages(live: Live, guests: Guests) -> None:
    guest = guests.new_with_pages()
    guest.boot_by_itself()
    live.expect("the guest's kernel", "Linux", guest.run("uname -s").strip())
    guest.keep_busy()
    guest.expect_busy()
    guest.expect_state(State.RUNNING)
    live.expect_pool(nr=guest.pages, free=0)
    guest.expect_mapped()
    guest.expect_no_transparent_pages()


@case("the last page is enough: a pool of exactly the size of the guest is empty while it runs", BACKING)
def takes_the_last_page(_live: Live, guests: Guests) -> None:
    guest = guests.new()
    guests.expect_started(guest)
    guest.destroy()
    guests.expect_all_back(guest)


@case(
    "shared memory takes the same pages as private memory",
    "libvirt.org/formatdomain.html memoryBacking access; QEMU memory-backend share=on",
)
def shared_memory_takes_the_same(_live: Live, guests: Guests) -> None:
    guest = guests.new(access=Access.SHARED)
    guests.expect_started(guest)
    guest.destroy()
    guests.expect_all_back(guest)


@case(
    "a memfd of huge pages takes the same pages as a file in hugetlbfs",
    "libvirt.org/formatdomain.html memoryBacking source memfd; QEMU memory-backend-memfd hugetlbsize=",
)
def memfd_takes_the_same(_live: Live, guests: Guests) -> None:
    guest = guests.new(source=Source.MEMFD, access=Access.SHARED)
    guests.expect_started(guest)
    guest.destroy()
    guests.expect_all_back(guest)


@guest_case(QEMU)(
    "memory that is allocated on demand is reserved as a whole at the start, and taken page by page as it is touched",
    "QEMU memory-backend prealloc=off, reserve=on (libvirt refuses it for huge pages)",
)
def on_demand_memory_is_reserved(live: Live, guests: Guests) -> None:
    guest = guests.new_with_pages(guests.cell(2), allocation=Allocation.ON_DEMAND)
    guest.start()
    # what QEMU loads into the guest's memory itself (a kernel, a device tree) is not all of it
    untouched = guests.expect_rest_in_pool(guest, reserved=True)
    live.expect("whether some of the memory is untouched", True, untouched > 0)
    live.expect_errno(errno.ENOMEM, live.map, 1)
    guest.resume()
    guest.await_shell()
    guest.write_file("/tmp/file", "hugepage", _WRITTEN)
    touched = guest.pages - guests.expect_rest_in_pool(guest, reserved=True)
    live.expect("whether what the guest wrote has pages", True, touched >= whole_pages(_WRITTEN, live.size))
    guest.destroy()
    live.expect_pool(nr=guest.pages, free=guest.pages)


@case(
    "threads that allocate the memory take the same pages as one",
    "libvirt.org/formatdomain.html memoryBacking allocation threads; QEMU memory-backend prealloc-threads=",
)
def threads_take_the_same(_live: Live, guests: Guests) -> None:
    guest = guests.new(threads=2)
    guests.expect_started(guest)
    guest.destroy()
    guests.expect_all_back(guest)


class Start(GuestTest):
    def test_qemu(self) -> None:
        self.run_area(QEMU)

    def test_libvirt(self) -> None:
        self.run_area(LIBVIRT)
