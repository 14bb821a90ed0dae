"""Memory that guests on huge pages give back: to a balloon, or because they report it as free."""

import hashlib

from hugepage_qa.guest import machine as drivers
from hugepage_qa.guest.case import GuestArea, guest_case, needs
from hugepage_qa.guest.description import Cell
from hugepage_qa.guest.guest import Guest
from hugepage_qa.guest.guests import Guests
from hugepage_qa.live.live import Live
from hugepage_qa.live.waiting import wait_until
from hugepage_qa.plugins.guest_test import GuestTest
from hugepage_qa.sizes import MIB

QEMU, LIBVIRT = GuestArea("guest/balloon", drivers.QEMU), GuestArea("guest/balloon", drivers.LIBVIRT)
case = guest_case(QEMU, LIBVIRT)

BALLOON = "QEMU hw/virtio/virtio-balloon.c balloon_inflate_page(): a page of the host is given back when it is whole"
REPORTING = (
    "QEMU hw/virtio/virtio-balloon.c virtio_balloon_handle_report(): what is no whole page of the host is ignored"
)

#: what a kernel boots in, with as much to spare
_MEMORY = 256 * MIB
#: a guest tells of free pages two seconds after it has some (mm/page_reporting.c PAGE_REPORTING_DELAY)
_REPORTED_SECONDS = 6
#: a guest reports blocks of the buddy allocator of at least this size (pageblock_order), of none a gigantic page
_REPORTED_BLOCK = 2 * MIB
#: what the guest writes then, in bytes
_WRITTEN = 32 * MIB


def with_balloon(live: Live, guests: Guests, reports_free_pages: bool = False) -> Guest:
    """Return a booted guest with a balloon; it has all pages of the pool."""
    memory = max(guests.pages * live.size, _MEMORY)
    guest = guests.new(Cell(memory, live.size), balloon=True, reports_free_pages=reports_free_pages)
    live.reserve(guest.pages)
    guest.boot()
    guest.expect_all_taken()
    needs(guest.has_virtio_driver("virtio_balloon"), "the guest's kernel has no driver for balloons")
    return guest


@case("what a balloon takes from a guest is free or still mapped, no page is both or neither", BALLOON)
def balloon(live: Live, guests: Guests) -> None:
    guest = with_balloon(live, guests)
    memory = guest.description.memory
    live.expect("memory of the guest with a balloon", memory * 3 // 4, guest.set_balloon(memory * 3 // 4))
    live.expect_pool(nr=guest.pages, free=guest.pages - guest.mapped)
    live.expect("memory of the guest without it", memory, guest.set_balloon(memory))
    # uses what it has back
    guest.run(f"fallocate -l {memory // 8} /tmp/file; rm /tmp/file")
    live.expect_pool(nr=guest.pages, free=guest.pages - guest.mapped)
    guest.destroy()
    live.expect_pool(nr=guest.pages, free=guest.pages)
    guests.expect_files()


@case("pages that a guest reports as free go back to the pool whole, and come again as it uses them", REPORTING)
def free_pages_are_reported(live: Live, guests: Guests) -> None:
    guest = with_balloon(live, guests, reports_free_pages=True)
    if live.size <= _REPORTED_BLOCK:
        wait_until(live, lambda: guest.mapped <= guest.pages * 3 // 4)
    guest.run(f"sleep {_REPORTED_SECONDS}")
    is_back = guest.mapped <= guest.pages * 3 // 4
    # between the two it depends on the base pages of the guest's kernel
    if live.size <= _REPORTED_BLOCK or live.is_gigantic:
        live.expect("whether a quarter of the guest is back in the pool", not live.is_gigantic, is_back)
    expect_given_back(live, guest)
    guest.run(f"yes hugepage | head -c {_WRITTEN} >/tmp/file")
    found = guest.run("md5sum </tmp/file").split()[0]
    live.expect("what the guest wrote into pages that came again", _md5_of_lines("hugepage", _WRITTEN), found)
    guests.await_free_or_mapped(guest)
    expect_given_back(live, guest)
    guest.destroy()
    guests.expect_all_back(guest)


def expect_given_back(live: Live, guest: Guest) -> None:
    """Expect the pages that the guest has not to be in the pool: reserved for it since Linux 6.9 (df7a6d1f6405)."""
    back = guest.pages - guest.mapped
    live.expect_pool(nr=guest.pages, free=back, resv=back if live.pool().resv else 0)


def _md5_of_lines(line: str, length: int) -> str:
    text = f"{line}\n".encode()
    content = (text * (length // len(text) + 1))[:length]
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


class Balloon(GuestTest):
    """See main.fmf."""

    def test_qemu(self) -> None:
        self.run_area(QEMU)

    def test_libvirt(self) -> None:
        self.run_area(LIBVIRT)
